"""The tables of TPC-H, what is done to them, and DuckDB, which says what is right afterwards.

A change is a Parquet file: rows with all columns or only some, which are updated or added by their keys, or keys that
are erased. Every contender gets the same files. Nothing of Stelae is imported: the peers' processes read this too.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
from tpch_queries import Answer, plain

_MONEY = "decimal(15, 2)"


@dataclass(frozen=True, slots=True)
class Shape:
    """`tablets`: of the same width by the first column of the key, which goes from 1 to `keys_per_scale` at scale 1."""

    key: dict[str, str]
    values: dict[str, str]
    tablets: int = 1
    keys_per_scale: int = 0

    @property
    def columns(self) -> list[str]:
        return [*self.key, *self.values]

    def splits(self, scale: float) -> list[int]:
        last = int(self.keys_per_scale * scale)
        return [last * place // self.tablets for place in range(1, self.tablets)]


TABLES = {
    "region": Shape({"r_regionkey": "int64"}, {"r_name": "string", "r_comment": "string"}),
    "nation": Shape({"n_nationkey": "int64"}, {"n_name": "string", "n_regionkey": "int64", "n_comment": "string"}),
    "supplier": Shape(
        {"s_suppkey": "int64"},
        {"s_name": "string", "s_address": "string", "s_nationkey": "int64", "s_phone": "string"}
        | {"s_acctbal": _MONEY, "s_comment": "string"},
    ),
    "customer": Shape(
        {"c_custkey": "int64"},
        {"c_name": "string", "c_address": "string", "c_nationkey": "int64", "c_phone": "string"}
        | {"c_acctbal": _MONEY, "c_mktsegment": "string", "c_comment": "string"},
    ),
    "part": Shape(
        {"p_partkey": "int64"},
        {"p_name": "string", "p_mfgr": "string", "p_brand": "string", "p_type": "string", "p_size": "int32"}
        | {"p_container": "string", "p_retailprice": _MONEY, "p_comment": "string"},
    ),
    "partsupp": Shape(
        {"ps_partkey": "int64", "ps_suppkey": "int64"},
        {"ps_availqty": "int32", "ps_supplycost": _MONEY, "ps_comment": "string"},
        tablets=2,
        keys_per_scale=200_000,
    ),
    "orders": Shape(
        {"o_orderkey": "int64"},
        {"o_custkey": "int64", "o_orderstatus": "string", "o_totalprice": _MONEY, "o_orderdate": "date"}
        | {"o_orderpriority": "string", "o_clerk": "string", "o_shippriority": "int32", "o_comment": "string"},
        tablets=2,
        keys_per_scale=6_000_000,
    ),
    "lineitem": Shape(
        {"l_orderkey": "int64", "l_linenumber": "int32"},
        {"l_partkey": "int64", "l_suppkey": "int64", "l_quantity": _MONEY, "l_extendedprice": _MONEY}
        | {"l_discount": _MONEY, "l_tax": _MONEY, "l_returnflag": "string", "l_linestatus": "string"}
        | {"l_shipdate": "date", "l_commitdate": "date", "l_receiptdate": "date"}
        | {"l_shipinstruct": "string", "l_shipmode": "string", "l_comment": "string"},
        tablets=8,
        keys_per_scale=6_000_000,
    ),
}

# -- what is done to them


@dataclass(frozen=True, slots=True)
class Change:
    """`rows`: a query for the rows that are written, or for the keys that are erased."""

    name: str
    table: str
    rows: str
    erases: bool = False


def _each(part: int, place: int, *key: str) -> str:
    """A condition for one row of so many, all over the table; the same rows in every run of one DuckDB."""
    return f"hash({', '.join(key)}) % {part} = {place}"


_ERASED = f"select o_orderkey from main.orders where {_each(1000, 11, 'o_orderkey')}"
_INSERTED = f"select o_orderkey from main.orders where {_each(100, 22, 'o_orderkey')}"
# Of 32 numbers in a row TPC-H uses the first 8 as keys of orders.
_CHANGES = {
    "whole": (
        Change(
            "whole",
            "lineitem",
            "select * replace (cast(51 - l_quantity as decimal(15, 2)) as l_quantity, "
            "cast(0.10 - l_discount as decimal(15, 2)) as l_discount, "
            "l_shipdate + 1 as l_shipdate, 'replaced' as l_comment) "
            f"from main.lineitem where {_each(20, 3, 'l_orderkey', 'l_linenumber')}",
        ),
    ),
    "narrow": (
        Change(
            "narrow",
            "lineitem",
            "select l_orderkey, l_linenumber, cast(51 - l_quantity as decimal(15, 2)) as l_quantity "
            f"from main.lineitem where {_each(20, 7, 'l_orderkey', 'l_linenumber')}",
        ),
    ),
    "erased": (
        Change("erased", "orders", _ERASED, erases=True),
        Change(
            "erased",
            "lineitem",
            f"select l_orderkey, l_linenumber from main.lineitem where l_orderkey in ({_ERASED})",
            erases=True,
        ),
    ),
    "inserted": (
        Change(
            "inserted",
            "orders",
            f"select * replace (o_orderkey + 8 as o_orderkey) from main.orders where o_orderkey in ({_INSERTED})",
        ),
        Change(
            "inserted",
            "lineitem",
            f"select * replace (l_orderkey + 8 as l_orderkey) from main.lineitem where l_orderkey in ({_INSERTED})",
        ),
    ),
}
CLEAN, COMPACTED = "clean", "compacted"
STATES = (CLEAN, *_CHANGES, COMPACTED)


def changes_of(state: str) -> tuple[Change, ...]:
    """From the clean tables to the state; what is compacted has seen all of them."""
    if state == COMPACTED:
        return tuple(change for changes in _CHANGES.values() for change in changes)
    return _CHANGES.get(state, ())


def changed_tables(state: str) -> list[str]:
    return sorted({change.table for change in changes_of(state)})


def merge_sql(target: str, source: str, shape: Shape, columns: Sequence[str], *, erases: bool) -> str:
    """The change as SQL that DuckDB, Delta and Iceberg take alike. Rows with some columns only add nothing."""
    same = " and ".join(f"t.{name} = c.{name}" for name in shape.key)
    if erases:
        return f"merge into {target} as t using {source} as c on {same} when matched then delete"
    values = [name for name in columns if name not in shape.key]
    text = f"merge into {target} as t using {source} as c on {same} when matched then update set " + ", ".join(
        f"{name} = c.{name}" for name in values
    )
    if len(columns) == len(shape.columns):
        listed = ", ".join(columns)
        text += f" when not matched then insert ({listed}) values ({', '.join(f'c.{name}' for name in columns)})"
    return text


# -- where it comes from, and what is right


def generate(directory: Path, scale: float) -> None:
    """A Parquet file for each table."""
    beside = Path(sys.executable).with_name("tpchgen-cli")
    program = str(beside) if beside.exists() else shutil.which("tpchgen-cli")
    if program is None:
        raise SystemExit("tpchgen-cli is not installed: pip install tpchgen-cli (it is in the extra `dev`)")
    command = [program, "parquet", "-s", f"{scale:g}", f"--output-dir={directory}", "--no-progress", "--quiet"]
    subprocess.run(command, check=True, timeout=1800)


class Truth:
    """The tables in DuckDB: the clean ones, and in a schema for each state those that it changed."""

    def __init__(self, directory: Path, scale: float) -> None:
        self._directory = directory
        self._made: set[str] = {CLEAN}
        generate(directory / "generated", scale)
        self._duck = duckdb.connect(str(directory / "truth.duckdb"), config={"threads": 2, "memory_limit": "3GB"})
        for table, shape in TABLES.items():
            self._duck.execute(
                f"create table main.{table} as select {', '.join(shape.columns)} from '{self.generated(table)}'"
            )

    def generated(self, table: str) -> Path:
        return self._directory / "generated" / f"{table}.parquet"

    def change_file(self, change: Change) -> Path:
        path = self._directory / f"change-{change.name}-{change.table}.parquet"
        if not path.exists():
            self._duck.execute(f"copy ({change.rows}) to '{path}' (format parquet)")
        return path

    def rows_file(self, state: str, table: str) -> Path:
        """What the table holds in that state."""
        if table not in changed_tables(state):
            return self.generated(table)
        path = self._directory / f"truth-{state}-{table}.parquet"
        if not path.exists():
            self._make(state)
            self._duck.execute(f"copy {state}.{table} to '{path}' (format parquet)")
        return path

    def answer(self, state: str, sql: str) -> Answer:
        self._make(state)
        self._duck.execute("set search_path = 'main'" if state == CLEAN else f"set search_path = '{state},main'")
        return plain(self._duck.execute(sql).fetchall())

    def _make(self, state: str) -> None:
        if state in self._made:
            return
        self._duck.execute(f"create schema {state}")
        for table in changed_tables(state):
            self._duck.execute(f"create table {state}.{table} as from main.{table}")
        for change in changes_of(state):
            source = f"'{self.change_file(change)}'"
            columns = [row[0] for row in self._duck.execute(f"describe from {source}").fetchall()]
            shape = TABLES[change.table]
            target = f"{state}.{change.table}"
            self._duck.execute(merge_sql(target, source, shape, columns, erases=change.erases))
        self._made.add(state)

    def close(self) -> None:
        self._duck.close()
