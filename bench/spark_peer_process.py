"""A table format on a Spark of its own: what the Spark bench starts for Delta and for Iceberg.

    spark_peer_process.py delta|iceberg|parquet PACKAGE DIRECTORY MASTER MEMORY REPLY_FD

Commands are lines of JSON on standard input, answers lines of JSON on the descriptor: `{"seconds": 1.5,
"processor_s": 2.5}`, or `{"error": "in words"}`. The first answer comes when the session stands and a small table was
written, merged into and read back: it says on which Spark, or why it does not work. A format is used as its documents
say for many small updates: Delta with deletion vectors, Iceberg merge-on-read with format version 3.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from processor_time import ProcessTree
from spark_data import KEEP_GENERATED, KEY, SETTINGS, all_of, in_tablets, totals
from tpch_queries import plain

_EXTENSIONS = {
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # Its own state in 50 parts, as it is by default, costs seconds on two cores.
        "spark.databricks.delta.snapshotPartitions": "2",
    },
    "iceberg": {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.ice.type": "hadoop",
    },
    "parquet": {},
}
_ICEBERG = {
    "format-version": "3",
    "write.merge.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.delete.mode": "merge-on-read",
}
_WORDS_MAX = 300


class Format:
    def __init__(self, spark: Any, kind: str, directory: Path) -> None:
        self._spark = spark
        self.kind = kind
        self._directory = directory

    def _name(self, table: str) -> str:
        match self.kind:
            case "delta":
                return f"delta.`{self._directory / table}`"
            case "iceberg":
                return f"ice.bench.{table}"
            case _:
                return f"parquet.`{self._directory / table}`"

    def make(self, table: str, frame: Any) -> None:
        match self.kind:
            case "delta":
                writer = frame.write.format("delta").option("delta.enableDeletionVectors", "true")
                writer.mode("overwrite").save(str(self._directory / table))
            case "iceberg":
                writer = frame.writeTo(self._name(table))
                for key, value in _ICEBERG.items():
                    writer = writer.tableProperty(key, value)
                writer.create()
            case _:
                frame.write.mode("overwrite").parquet(str(self._directory / table))

    def read(self, table: str) -> Any:
        match self.kind:
            case "iceberg":
                return self._spark.table(self._name(table))
            case _:
                return self._spark.read.format(self.kind).load(str(self._directory / table))

    def read_all(self, frame: Any) -> None:
        if self.kind == "delta":
            # Delta reads no deletion vectors for a write, and `noop` is one to it; this passes over the same rows.
            frame._jdf.queryExecution().toRdd().count()
        else:
            all_of(frame)

    def merge(self, table: str, updates: Any) -> None:
        """Of a frame with some of the columns, only rows that are there are changed."""
        updates.createOrReplaceTempView("changes")
        values = [column for column in updates.columns if column != KEY]
        if set(updates.columns) == set(self.read(table).columns):
            then = "when matched then update set * when not matched then insert *"
        else:
            then = f"when matched then update set {', '.join(f't.{name} = c.{name}' for name in values)}"
        self._spark.sql(f"merge into {self._name(table)} as t using changes as c on t.{KEY} = c.{KEY} {then}")

    def change(self, table: str, changes: Any, sql: str) -> None:
        """`sql` calls the table {target}, and what changes it `changes`."""
        changes.createOrReplaceTempView("changes")
        self._spark.sql(sql.replace("{target}", self._name(table)))

    def compact(self, table: str) -> None:
        """Afterwards no reader meets a deletion."""
        if self.kind == "delta":
            self._spark.sql(f"reorg table {self._name(table)} apply (purge)")
        elif self.kind == "iceberg":
            name = self._name(table).removeprefix("ice.")
            options = "map('delete-file-threshold', '1')"
            self._spark.sql(f"call ice.system.rewrite_data_files(table => '{name}', options => {options})")

    def drop(self, table: str) -> None:
        if self.kind == "iceberg":
            self._spark.sql(f"drop table {self._name(table)} purge")
        else:
            shutil.rmtree(self._directory / table)


class Commands:
    def __init__(self, spark: Any, format_: Format) -> None:
        self._spark = spark
        self._format = format_
        self.processes = ProcessTree()

    def try_out(self) -> dict[str, Any]:
        """All that will be asked for, with few rows."""
        frame = self._spark.range(1000).selectExpr("id", "id as v")
        self._format.make("tried", frame)
        if self._format.kind != "parquet":
            self._format.merge("tried", self._spark.range(990, 1010).selectExpr("id", "-id as v"))
            found = self._format.read("tried").selectExpr("count(*)", "sum(v)").first()
            wanted = (1010, sum(range(990)) - sum(range(990, 1010)))
            if tuple(found) != wanted:
                return {"error": f"merge gave {tuple(found)}, not {wanted}"}
        return {"spark": self._spark.version}

    def make(self, table: str, source: str, rows: int) -> None:
        self._format.make(table, in_tablets(self._spark.read.parquet(source), rows))

    def merge(self, table: str, source: str) -> None:
        self._format.merge(table, self._spark.read.parquet(source))

    def read(self, table: str, columns: list[str] | None) -> None:
        frame = self._format.read(table)
        self._format.read_all(frame if columns is None else frame.select(*columns))

    def count(self, table: str) -> None:
        self._format.read(table).count()

    def drop(self, table: str) -> None:
        self._format.drop(table)

    def totals(self, table: str) -> dict[str, Any]:
        return {"totals": totals(self._format.read(table))}

    def store(self, table: str, source: str, key: list[str], parts: int) -> None:
        """As it is read, cut by the key and sorted."""
        frame = self._spark.read.parquet(source)
        self._format.make(table, frame.repartitionByRange(parts, *key).sortWithinPartitions(*key))

    def change(self, table: str, source: str, sql: str) -> None:
        self._format.change(table, self._spark.read.parquet(source), sql)

    def compact(self, table: str) -> None:
        self._format.compact(table)

    def show(self, tables: dict[str, str]) -> None:
        """`tables`: by the name that queries use."""
        for name, table in tables.items():
            self._format.read(table).createOrReplaceTempView(name)

    def query(self, sql: str) -> dict[str, Any]:
        rows: list[Any] = []
        took = self.processes.measured(lambda: rows.extend(self._spark.sql(sql).collect()))
        return {"wall_s": took.wall_s, "processor_s": took.processor_s, "rows": plain(rows)}

    def warm(self) -> None:
        all_of(self._spark.range(1_000_000).selectExpr("id", "id * 2 as v").repartition(4))


def in_words(error: BaseException) -> str:
    """Of a Java exception, the first line that says what it is."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"(Exception|Error)\b.*: ", line)] or lines or [type(error).__name__]
    return telling[0].removeprefix(": ")[:_WORDS_MAX]


def answer(processes: ProcessTree, call: Callable[[], Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        took = processes.measured(lambda: found.update(call() or {}))
    except Exception as error:  # noqa: BLE001 - whatever it is, the bench says it in words and goes on without
        return {"error": in_words(error)}
    return {"seconds": took.wall_s, "processor_s": took.processor_s, **found}


def main() -> None:
    kind, package, directory, master, memory, reply_fd = sys.argv[1:]
    conf = SETTINGS | KEEP_GENERATED | _EXTENSIONS[kind] | {"spark.driver.memory": memory}
    if package:
        conf["spark.jars.packages"] = package
    if kind == "iceberg":
        conf["spark.sql.catalog.ice.warehouse"] = directory
    with os.fdopen(int(reply_fd), "w") as replies:

        def reply(content: dict[str, Any]) -> None:
            replies.write(json.dumps(content) + "\n")
            replies.flush()

        try:
            from stelae.spark.driver.sessions import session

            spark = session(f"bench-{kind}", master, **conf)
        except Exception as error:  # noqa: BLE001 - as above
            reply({"error": in_words(error)})
            return
        commands = Commands(spark, Format(spark, kind, Path(directory)))
        reply(answer(commands.processes, commands.try_out))
        for line in sys.stdin:
            said = json.loads(line)
            call = getattr(commands, said.pop("do"))
            reply(answer(commands.processes, lambda: call(**said)))  # noqa: B023 - called at once
        spark.stop()


if __name__ == "__main__":
    main()
