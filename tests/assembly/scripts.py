"""A script that does everything that can be done to tables, what should come of it, and how to see whether it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stelae.assembly.embedded import EmbeddedStore
from stelae.client.intake.mutations import blocks_of, key_of
from stelae.model.declare import cells, columns, declare
from stelae.model.ids import Row, TableId
from stelae.model.predicate.plan import ScanPredicate
from stelae.model.predicate.selectors import ALL_COLUMNS
from stelae.model.ranges import RowRange, check_cover
from stelae.registry.meta import META0, META1
from stelae.registry.tablet_records import TabletPhase, read_tablets
from stelae.service.scans import ScanAsk
from stelae.service.tables import AlterAsk, CreateAsk
from stelae.storage.files.fragments import Fragments
from stelae.tserver.configs import read_configs
from tests.assembly.worlds import GRACE_S, Machine
from tests.master.covers import gaps

SCHEMA = declare({"id": "int64"}, [columns("data", {"a": "int32", "b": "string"}), cells("rest", families=["f"])])


def row(key: int) -> Row:
    return key_of(SCHEMA, key)


# -- what should be


Rows = dict[int, dict[str, Any]]


@dataclass(frozen=True)
class PlainTable:
    """Column names to values, by key; `columns` in the order of the schema."""

    columns: tuple[str, ...] = ("a", "b")
    rows: Rows = field(default_factory=dict)

    def put(self, given: Sequence[dict[str, Any]]) -> PlainTable:
        rows = dict(self.rows)
        for each in given:
            values = {name: value for name, value in each.items() if name != "id"}
            rows[each["id"]] = {**dict.fromkeys(self.columns), "f:x": None, **rows.get(each["id"], {}), **values}
        return replace(self, rows=rows)

    def reshaped(self, names: dict[str, str | None]) -> PlainTable:
        """Old name to new; "+name" is added."""

        def renamed(values: dict[str, Any]) -> dict[str, Any]:
            kept = [(names.get(name, name), value) for name, value in values.items()]
            added = [(name[1:], None) for name in names if name.startswith("+")]
            return {name: value for name, value in (*kept, *added) if name is not None}

        columns = tuple(renamed(dict.fromkeys(self.columns)))
        return PlainTable(columns, {key: renamed(values) for key, values in self.rows.items()})


@dataclass(frozen=True)
class PlainStore:
    tables: dict[str, PlainTable] = field(default_factory=dict)
    dropped: dict[str, PlainTable] = field(default_factory=dict)

    def having(self, name: str, table: PlainTable) -> PlainStore:
        return replace(self, tables={**self.tables, name: table})

    def without(self, name: str) -> PlainStore:
        kept = {other: table for other, table in self.tables.items() if other != name}
        return PlainStore(kept, {**self.dropped, name: self.tables[name]})

    def recalled(self, name: str, new_name: str) -> PlainStore:
        kept = {other: table for other, table in self.dropped.items() if other != name}
        return PlainStore({**self.tables, new_name: self.dropped[name]}, kept)


# -- what is done


@dataclass(frozen=True)
class Step:
    """`then`: what the store is afterwards. `by_row`: half of it may have happened, each row for itself."""

    name: str
    act: Callable[[Machine, EmbeddedStore], None]
    then: Callable[[PlainStore], PlainStore] = lambda plain: plain
    by_row: bool = False


def id_of(store: EmbeddedStore, name: str) -> TableId:
    return store.find(name).id


def create(name: str, *cuts: int) -> Step:
    ask = CreateAsk(name, SCHEMA, tuple(row(cut) for cut in cuts))
    return Step(f"create {name}", lambda _, store: _done(store.create(ask)), lambda p: p.having(name, PlainTable()))


def put(name: str, keys: range, **values: Any) -> Step:
    def given(columns: Sequence[str]) -> list[dict[str, Any]]:
        plain: dict[str, Any] = {"a": 1, "b": "text", "c": 3, "z": 4, "f:x": b"cell"} | values
        of = [column for column in (*columns, "f:x") if column in plain]
        return [{"id": key, **{c: plain[c] + key if c in "acz" else plain[c] for c in of}} for key in keys]

    def act(_: Machine, store: EmbeddedStore) -> None:
        info = store.find(name)
        names = [column.name for column in info.schema.groups[0].columns]  # type: ignore[union-attr]
        store.write(info.id, blocks_of(info.schema, given(names)))

    def then(plain: PlainStore) -> PlainStore:
        table = plain.tables[name]
        return plain.having(name, table.put(given(table.columns)))

    return Step(f"put {name} {keys.start}-{keys.stop}", act, then, by_row=True)


def alter(name: str, names: dict[str, str | None], **changes: Any) -> Step:
    return Step(
        f"alter {name} {changes}",
        lambda _, store: _done(store.alter(name, AlterAsk(**changes))),
        lambda plain: plain.having(name, plain.tables[name].reshaped(names)),
    )


def upkeep(name: str, what: str, *args: Any, **options: Any) -> Step:
    return Step(f"{what} {name}", lambda _, store: getattr(store, what)(id_of(store, name), *args, **options))


def truncate(name: str) -> Step:
    return Step(
        f"truncate {name}",
        lambda _, store: _done(store.truncate(id_of(store, name))),
        lambda plain: plain.having(name, replace(plain.tables[name], rows={})),
    )


def drop(name: str) -> Step:
    return Step(f"drop {name}", lambda _, store: store.drop(name), lambda plain: plain.without(name))


def recall(name: str, new_name: str | None = None) -> Step:
    return Step(
        f"recall {name}",
        lambda _, store: _done(store.recall(name, new_name)),
        lambda plain: plain.recalled(name, new_name or name),
    )


def forget() -> Step:
    """The grace of whatever is dropped ends, and the cleaner comes."""

    def act(machine: Machine, store: EmbeddedStore) -> None:
        machine.pass_s(int(GRACE_S))
        store.compact_step()

    return Step("forget", act, lambda plain: replace(plain, dropped={}))


def keep() -> Step:
    def act(_: Machine, store: EmbeddedStore) -> None:
        while store.flush_step() or store.compact_step() or store.log_step():
            pass

    return Step("keep", act)


def _done(_: object) -> None:
    return


SCRIPT = [
    create("t", 10, 20),
    put("t", range(30)),
    create("u"),
    put("u", range(6)),
    alter("t", {"+c": ""}, add={"data": {"c": "int64"}}),
    put("t", range(5, 15)),
    upkeep("t", "flush"),
    alter("t", {"a": "z"}, rename_columns={"a": "z"}, widen={"z": "int64"}),
    put("t", range(8, 25), b="later"),
    upkeep("t", "split", row(5)),
    put("t", range(12), b="after the split"),
    upkeep("t", "join", row(10)),
    put("t", range(3, 22), b="after the join"),
    upkeep("t", "compact"),
    truncate("u"),
    put("u", range(3, 9)),
    keep(),
    put("t", range(20, 40), b="more"),
    drop("t"),
    create("t", 4),
    put("t", range(8)),
    recall("t", "old"),
    put("old", range(2)),
    alter("old", {"b": None}, drop=["b"]),
    upkeep("old", "split"),
    upkeep("old", "compact", erase_now=True),
    drop("u"),
    forget(),
    keep(),
    drop("old"),
    put("t", range(4, 12)),
    upkeep("t", "split", row(7)),
    drop("t"),
    forget(),
    create("t"),
    put("t", range(5)),
    drop("t"),
    recall("t"),
    Step("close", lambda _, store: store.close()),
]


# -- what is


def rows_of(store: EmbeddedStore, name: str) -> Rows:
    """As a scan has them, and the same by point reads."""
    info = store.find(name)
    found: Rows = {}
    columns = [column.name for group in info.schema.groups for column in getattr(group, "columns", ())]
    for batch in store.scan(info.id, ScanAsk(ScanPredicate(), store.now())):
        for each in batch.to_pylist():
            assert each["id"] not in found, f"row {each['id']} of {name} is there twice"
            cell = dict(each["f"] or ()).get("x")
            found[each["id"]] = {**{column: each[column] for column in columns}, "f:x": cell}
    for key, values in found.items():
        _, point = store.newest(info.id, row(key), ALL_COLUMNS)
        assert point is not None
        assert {"f:x": None, **point} == values, f"row {key} of {name}: {point} by key, {values} in a scan"
    return found


def check_table(store: EmbeddedStore, name: str, before: PlainTable, after: PlainTable, by_row: bool) -> PlainTable:
    """It is one of the two, or a mixture of their rows; which."""
    schema = store.find(name).schema
    columns = tuple(column.name for column in schema.groups[0].columns)  # type: ignore[union-attr]
    found = rows_of(store, name)
    if by_row:
        mixed = {key: values for key, values in found.items() if values not in (before.rows.get(key), after.rows[key])}
        assert not mixed
        assert before.rows.keys() <= found.keys() <= after.rows.keys()
        assert columns == after.columns
    else:
        assert PlainTable(columns, found) in (before, after)
    return PlainTable(columns, found)


def check_store(store: EmbeddedStore, before: PlainStore, after: PlainStore, by_row: bool) -> PlainStore:
    names = {name.removeprefix("main.").removeprefix("default.") for name in store.names()}
    assert names in (before.tables.keys(), after.tables.keys())
    tables = {}
    for name in names:
        known = [plain.tables[name] for plain in (before, after) if name in plain.tables]
        tables[name] = check_table(store, name, known[0], known[-1], by_row)
    gone = store.catalog.latest.dropped
    dropped = {each.table.name for each in gone.values()}
    assert dropped in (before.dropped.keys(), after.dropped.keys())
    either = {**before.dropped, **after.dropped}
    return PlainStore(tables, {name: either[name] for name in dropped})


def check_whole(machine: Machine, store: EmbeddedStore, *, replaced: bool = False) -> None:
    """Tablets cover all rows and run; no record, META row or file is of what is gone. `replaced`: until the next start,
    tablets that were given up are remembered."""
    catalog = store.catalog.latest
    assert gaps(store.master, store.catalog) == []
    shard = store.server.shard
    records = store.world.loop.run(read_tablets(store.world.metastore))
    assert sorted(records, key=lambda r: r.tablet) == sorted(store.master.maps.all(), key=lambda r: r.tablet)
    records = [record for record in records if not replaced or record.phase is not TabletPhase.REPLACED]
    for id_, table in catalog.tables.items():
        tablets = store.tablets(id_)
        check_cover([RowRange(each.start, each.stop) for each in tablets])
        assert {each.phase for each in tablets} == {"running"}
        assert {each.life for each in tablets} == {"ACTIVE"}
        assert {each.schema_version for each in tablets} == {table.schema.version}
        mine = [record for record in records if record.table == id_]
        assert {record.phase for record in mine} == {TabletPhase.RUNNING}
        assert {(r.tablet, r.rows.start, r.rows.stop) for r in mine} == {(t.tablet, t.start, t.stop) for t in tablets}
    known = {*catalog.tables, *catalog.dropped}
    assert {record.table for record in records} <= known
    store.server.upkeep.save()
    store.server.upkeep.collect_files()
    configs = read_configs(shard.of_table(META1), shard.fragments)
    assert {(c.tablet, c.table, c.rows) for c in configs} == {(r.tablet, r.table, r.rows) for r in records}
    meta = read_configs(shard.of_table(META0), Fragments(machine.blobs, shard.cache))
    named = {file for config in (*configs, *meta) for file in config.files()}
    here = {file for table in (META0, META1) for state in shard.of_table(table) for file in state.files()}
    assert machine.files() == named | here
    found = store.check()
    assert found.problems == ()
    assert found.counts["unneeded fragments"] == 0


def work_on(machine: Machine, store: EmbeddedStore, plain: PlainStore) -> PlainStore:
    """All that can be recalled is, and everything can be written, read, split and dropped."""
    for name in sorted(plain.dropped):
        store.recall(name, f"again_{name}")
        plain = plain.recalled(name, f"again_{name}")
    steps = [create("new", 3), put("new", range(6)), upkeep("new", "split", row(2)), put("new", range(1, 4), b="x")]
    steps += [put(name, range(2, 50, 7), b="on") for name in sorted(plain.tables)]
    steps += [upkeep(name, "flush") for name in sorted(plain.tables)]
    for step in steps:
        step.act(machine, store)
        plain = step.then(plain)
    return plain
