"""Random histories of commands: the catalog does what the plain rules say, and every version is sound."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import stelae
from stelae.catalog.check import check_catalog
from stelae.catalog.commands import columns as c
from stelae.catalog.commands import spaces as s
from stelae.catalog.commands import tables as t
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
from tests.effort import examples

SCHEMA = declare(
    {"id": "string"}, [stelae.columns("data", {"name": "string", "age": "int32"}), stelae.cells("cells", ["click"])]
)
spaces = st.sampled_from(["default", "default", "shop"])
names = st.sampled_from(["a", "b", "c"])
zones = st.sampled_from(["default", "fast", "slow"])
columns = st.sampled_from(["name", "age", "x", "y", "click"])
families = st.sampled_from(["click", "view", "x"])
groups = st.sampled_from(["data", "more"])
integers = st.sampled_from(["int8", "int16", "int32", "int64"])
FIRST = ("default", "a")
places = st.just(FIRST) | st.tuples(spaces, names)
Step = tuple[Command, tuple[Any, ...]]


def name_of(at: tuple[str, str]) -> t.TableName:
    return t.TableName(*at)


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
    st.tuples(places, groups).map(
        lambda a: (c.AddGroup(name_of(a[0]), stelae.columns(a[1], {})), ("add_group", *a)),
    ),
    st.tuples(places, groups).map(lambda a: (c.DropGroup(name_of(a[0]), a[1]), ("drop_group", *a))),
    st.tuples(places, st.lists(columns, max_size=2).map(tuple), groups).map(
        lambda a: (c.MoveMembers(name_of(a[0]), a[1], a[2]), ("move_columns", *a))
    ),
)


def parted(place: tuple[str, str], members: tuple[str, ...], group: str, after: list[Step]) -> list[Step]:
    """A group is made and filled in one batch, and what follows sees it."""
    return [
        (c.AddGroup(name_of(place), stelae.columns(group, {})), ("add_group", place, group)),
        (c.MoveMembers(name_of(place), members, group), ("move_columns", place, members, group)),
        *after,
    ]


batches = st.lists(steps, min_size=1, max_size=3) | st.builds(
    parted, places, st.lists(columns, max_size=2).map(tuple), st.just("more"), st.lists(steps, max_size=1)
)


def summary(catalog: Catalog) -> dict[str, Any]:
    space = {id_: namespace.name for id_, namespace in catalog.namespaces.items()}

    def table_summary(table: Any) -> tuple[Any, ...]:
        (cells,) = (group for group in table.schema.groups if isinstance(group, CellsGroup))
        homes = {c.name: (g, c) for g in table.schema.groups if isinstance(g, ColumnsGroup) for c in g.columns}
        kinds = {name: str(column.type) for name, (_, column) in homes.items()}
        names = [family.name for family in cells.families]
        return catalog.zones[table.zone].name, kinds, names, sorted((name, g.name) for name, (g, _) in homes.items())

    tables = {f"{space[table.namespace]}.{table.name}": table for table in catalog.tables.values()}
    return {
        "namespaces": sorted(space.values()),
        "zones": dict(sorted((zone.name, zone.replicas) for zone in catalog.zones.values())),
        "default_zone": catalog.zones[catalog.default_zone].name,
        "tables": {name: table_summary(table) for name, table in sorted(tables.items())},
        "dropped": len(catalog.dropped),
    }


@settings(max_examples=examples(300))
@given(st.lists(batches, max_size=40))
def test_histories(history: list[list[Step]]) -> None:
    from stelae.catalog.decide import decide_batch

    plain, catalog = PlainCatalog(), empty_catalog()
    stored = catalog
    first: list[Step] = [(t.CreateTable(name_of(FIRST), SCHEMA), ("create_table", *FIRST, None))]
    for batch in [first, *history]:
        trial = copy.deepcopy(plain)
        try:
            for _, words in batch:
                trial.run(*words)
            trial.end_batch()
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
