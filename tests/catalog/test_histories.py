"""Random histories of commands: the catalog does what the plain rules say, and every version is sound."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import stelae
from stelae.catalog import commands_columns as c
from stelae.catalog import commands_indexes as i
from stelae.catalog import commands_spaces as s
from stelae.catalog import commands_tables as t
from stelae.catalog.check import check_catalog
from stelae.catalog.decide import Command
from stelae.catalog.entries import Update, apply_update
from stelae.catalog.serial.snapshot import decode_snapshot, encode_snapshot
from stelae.catalog.serial.version1 import CATALOG_SERIALIZERS
from stelae.catalog.value import Catalog, CatalogVersion, empty_catalog
from stelae.model.declare import declare, parse_column
from stelae.model.errors import StelaeError
from stelae.model.ids import Txn
from stelae.model.schema import CellsGroup, ColumnsGroup
from stelae.model.types import parse_type
from tests.catalog.plain import PlainCatalog, Refused
from tests.effort import tries

SCHEMA = declare(
    {"id": "string"}, [stelae.columns("data", {"name": "string", "age": "int32"}), stelae.cells("cells", ["click"])]
)
spaces = st.sampled_from(["default", "default", "shop"])
names = st.sampled_from(["a", "b", "c"])
zones = st.sampled_from(["default", "fast", "slow"])
columns = st.sampled_from(["name", "age", "x", "y", "click"])
families = st.sampled_from(["click", "view", "x"])
integers = st.sampled_from(["int8", "int16", "int32", "int64"])
places = st.tuples(spaces, names)
Step = tuple[Command, tuple[Any, ...]]


def name_of(at: tuple[str, str]) -> t.TableName:
    return t.TableName(*at)


STATUSES = {
    i.StartBuildingIndex: ("registered", "building"),
    i.MakeIndexAvailable: ("building", "available"),
}

steps: st.SearchStrategy[Step] = st.one_of(
    spaces.map(lambda n: (s.CreateNamespace(n), ("create_namespace", n))),
    spaces.map(lambda n: (s.DropNamespace(n), ("drop_namespace", n))),
    st.tuples(zones, st.integers(0, 3)).map(lambda a: (s.CreateZone(a[0], a[1]), ("create_zone", *a))),
    st.tuples(zones, st.integers(0, 3)).map(lambda a: (s.AlterZone(a[0], a[1]), ("alter_zone", *a))),
    st.tuples(zones, zones).map(lambda a: (s.RenameZone(*a), ("rename_zone", *a))),
    zones.map(lambda z: (s.DropZone(z), ("drop_zone", z))),
    zones.map(lambda z: (s.SetDefaultZone(z), ("set_default_zone", z))),
    st.tuples(places, st.none() | zones).map(
        lambda a: (t.CreateTable(name_of(a[0]), SCHEMA, a[1]), ("create_table", *a[0], a[1]))
    ),
    places.map(lambda p: (t.DropTable(name_of(p)), ("drop_table", *p))),
    st.tuples(places, st.none() | names).map(
        lambda a: (t.RecallTable(name_of(a[0]), a[1]), ("recall_table", *a[0], a[1]))
    ),
    st.tuples(places, places).map(
        lambda a: (t.RenameTable(name_of(a[0]), name_of(a[1])), ("rename_table", *a[0], *a[1]))
    ),
    st.tuples(places, columns, integers).map(
        lambda a: (c.AddColumns(name_of(a[0]), "data", (parse_column(a[1], a[2]),)), ("add_column", *a))
    ),
    st.tuples(places, columns).map(lambda a: (c.DropColumns(name_of(a[0]), (a[1],)), ("drop_column", *a))),
    st.tuples(places, columns, integers).map(
        lambda a: (c.WidenColumn(name_of(a[0]), a[1], parse_type(a[2])), ("widen_column", *a))
    ),
    st.tuples(places, columns, columns).map(
        lambda a: (c.RenameColumn(name_of(a[0]), a[1], a[2]), ("rename_column", *a))
    ),
    st.tuples(places, families).map(lambda a: (c.AddFamilies(name_of(a[0]), "cells", (a[1],)), ("add_family", *a))),
    st.tuples(places, families).map(lambda a: (c.DropFamilies(name_of(a[0]), (a[1],)), ("drop_family", *a))),
    st.tuples(names, places, st.lists(columns, max_size=2).map(tuple)).map(
        lambda a: (i.CreateIndex(a[0], name_of(a[1]), a[2]), ("create_index", *a))
    ),
    st.tuples(st.sampled_from([*STATUSES]), places).map(
        lambda a: (a[0](name_of(a[1])), ("step_index", a[1], *STATUSES[a[0]]))
    ),
    places.map(lambda p: (i.DropIndex(name_of(p)), ("drop_index", p))),
    places.map(lambda p: (i.RemoveIndex(name_of(p)), ("remove_index", p))),
)


def summary(catalog: Catalog) -> dict[str, Any]:
    space = {id_: namespace.name for id_, namespace in catalog.namespaces.items()}

    def table_summary(table: Any) -> tuple[Any, ...]:
        data, cells = table.schema.groups
        assert isinstance(data, ColumnsGroup)
        assert isinstance(cells, CellsGroup)
        kinds = {column.name: str(column.type) for column in data.columns}
        return catalog.zones[table.zone].name, kinds, [family.name for family in cells.families]

    tables = {f"{space[table.namespace]}.{table.name}": table for table in catalog.tables.values()}
    full_names = {table.id: name for name, table in tables.items()}
    return {
        "namespaces": sorted(space.values()),
        "zones": dict(sorted((zone.name, zone.replicas) for zone in catalog.zones.values())),
        "default_zone": catalog.zones[catalog.default_zone].name,
        "tables": {name: table_summary(table) for name, table in sorted(tables.items())},
        "indexes": dict(
            sorted(
                (
                    f"{space[index.namespace]}.{index.name}",
                    (
                        full_names[index.table],
                        [catalog.tables[index.table].schema.column_by_id(id_)[1].name for id_ in index.columns],
                        index.status.name.lower(),
                    ),
                )
                for index in catalog.indexes.values()
            )
        ),
        "dropped": len(catalog.dropped),
    }


@settings(max_examples=tries(300))
@given(st.lists(st.lists(steps, min_size=1, max_size=3), max_size=40))
def test_histories(history: list[list[Step]]) -> None:
    from stelae.catalog.decide import decide_batch

    plain, catalog = PlainCatalog(), empty_catalog()
    stored = catalog
    for batch in history:
        trial = copy.deepcopy(plain)
        try:
            for _, words in batch:
                trial.run(*words)
            expected = True
        except Refused:
            expected = False
        try:
            entries = decide_batch(catalog, [command for command, _ in batch])
        except StelaeError as error:
            assert not expected, f"{batch} was refused: {error}"
            continue
        assert expected, f"{batch} should be refused"
        plain = trial
        if entries:
            update = Update(CatalogVersion(catalog.version + 1), Txn(catalog.activation + 5), b"t", "me", entries)
            catalog = check_catalog(apply_update(catalog, update))
            read = CATALOG_SERIALIZERS.decode(CATALOG_SERIALIZERS.encode(update))
            assert repr(read) == repr(update)
            stored = apply_update(stored, read)
        assert summary(catalog) == plain.summary()
    assert stored == catalog
    assert decode_snapshot(encode_snapshot(catalog)) == catalog
