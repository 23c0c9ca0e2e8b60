"""Tablet configs as META rows: found by row, whole again, and refused where they contradict themselves."""

from __future__ import annotations

import pytest

from stelae.format.fragment.footer import FragmentFile, FragmentSeal, FragmentStats
from stelae.model.errors import Corruption
from stelae.model.hybrid import pack
from stelae.model.ids import ColumnId, GroupId, SchemaVersion, TableId, TabletId, Txn
from stelae.model.mutation import Erase, PutCell, WholeRow
from stelae.model.ranges import ALL_ROWS, RowRange
from stelae.registry.meta import (
    META0,
    META1,
    META_SCHEMA,
    by_parent,
    from_cells,
    meta_row,
    parent_of,
    removal,
    to_mutations,
)
from stelae.storage.tablet.config import SavedRef, TabletConfig
from stelae.storage.tablet.config_bytes import CONFIG_VERSION
from stelae.storage.tablet.parts import FamilySet, Naming
from tests.storage.plain import PlainTable

USERS = TableId(7)


def config(rows: RowRange = ALL_ROWS, table: TableId = USERS, files: int = 2) -> TabletConfig:
    seal = FragmentSeal(100, 50, 1, 70, 2)
    refs = tuple(
        SavedRef(FragmentFile(f"f/{n}", seal, FragmentStats(records=n)), rows, (0, 3, 4), Naming())
        for n in range(files)
    )
    wild = SavedRef(
        FragmentFile("f/w", seal, FragmentStats(), Txn(9)),
        rows,
        FamilySet(frozenset({"a"}), others=True),
        Naming((("a", "b"),)),
    )
    groups = ((GroupId(5), refs), (GroupId(12), (wild,))) if files else ()
    return TabletConfig(
        version=CONFIG_VERSION,
        tablet=TabletId(3),
        table=table,
        rows=rows,
        schema_version=SchemaVersion(4),
        groups=groups,
        flushed=((rows, Txn(11)),),
        floors=(Txn(2),),
        prepared=(("job", ((GroupId(5), refs[:1]),)),) if files else (),
        epoch=0,  # type: ignore[arg-type]
        resize=6,
        log="shard-1",
    )


def stored(*configs: TabletConfig, then: tuple[TabletConfig, ...] = ()) -> dict[bytes, dict[str, bytes]]:
    """What a META table gives back after these were saved, and others after them."""
    table = PlainTable(META_SCHEMA)
    txn = pack(1_000)
    for each in (*configs, *then):
        txn = Txn(txn + (1 << 16))
        table.commit(txn, to_mutations(each, "here"))
    read = table.read(txn)
    return {row: {name: versions[0].value for name, versions in found.versions.items()} for row, found in read.items()}


@pytest.mark.parametrize(
    "rows",
    [ALL_ROWS, RowRange(b"", b"m"), RowRange(b"m", b"\x00\xff"), RowRange(b"a b", None), RowRange(b"", b"!")],
    ids=str,
)
def test_a_config_comes_back_whole(rows: RowRange) -> None:
    saved = config(rows)
    ((row, cells),) = stored(saved).items()
    assert row == meta_row(USERS, rows)
    assert from_cells(row, cells) == saved
    assert cells["first:"] == rows.start
    assert cells["location:"] == b"here"
    assert cells["log:"] == b"shard-1"


def test_saving_again_leaves_nothing_of_the_groups_that_are_gone() -> None:
    ((row, cells),) = stored(config(), then=(config(files=0),)).items()
    assert from_cells(row, cells) == config(files=0)
    assert not any(name.startswith("fragments:") for name in cells)


def test_rows_sort_as_their_tablets_do_and_tables_stay_apart() -> None:
    ranges = [RowRange(b"", b"a"), RowRange(b"a", b"a\x00"), RowRange(b"a\x00", b"b"), RowRange(b"b", None)]
    rows = [meta_row(USERS, each) for each in ranges]
    assert rows == sorted(rows)
    for other in (TableId(6), TableId(8), META1):
        others = [meta_row(other, each) for each in ranges]
        assert max(others) < min(rows) or max(rows) < min(others)


def test_who_holds_whose() -> None:
    assert parent_of(USERS) == META1
    assert parent_of(META1) == META0
    assert parent_of(META0) is None
    parted = by_parent([config(), config(table=META1), config(table=META0)])
    assert {parent: [each.table for each in some] for parent, some in parted.items()} == {
        META1: [USERS],
        META0: [META1],
        None: [META0],
    }


def test_a_removal_takes_the_row_away() -> None:
    gone = removal(USERS, RowRange(b"", b"m"))
    assert gone == Erase(meta_row(USERS, RowRange(b"", b"m")), WholeRow())


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"config:": None}, "has no config"),
        ({"config:": b"{}"}, "version 0"),
        ({"config:": b"\xff"}, "cannot be read"),
        ({"first:": b"x"}, "not that of tablet 3"),
        ({"first:": None}, "not that of tablet 3"),
        ({"fragments:5": b"[1]"}, "list of fragments cannot be read"),
        ({"fragments:x": b"[]"}, "'x' is no group"),
    ],
    ids=str,
)
def test_rows_that_make_no_sense_are_refused(change: dict[str, bytes | None], complaint: str) -> None:
    ((row, cells),) = stored(config()).items()
    damaged = {name: value for name, value in (cells | change).items() if value is not None}
    with pytest.raises((Corruption, Exception), match=complaint) as caught:
        from_cells(row, damaged)
    assert "META row" in str(caught.value)


def test_a_row_of_another_tablet_is_refused() -> None:
    ((_, cells),) = stored(config()).items()
    with pytest.raises(Corruption, match="not that of tablet"):
        from_cells(meta_row(TableId(8), ALL_ROWS), cells)


def test_every_cell_is_of_a_declared_family() -> None:
    names = {family.name for family in META_SCHEMA.groups[0].families}  # type: ignore[union-attr]
    assert {m.family for m in to_mutations(config(), "x") if isinstance(m, PutCell)} <= names
    assert ColumnId(0) not in {family.id for family in META_SCHEMA.groups[0].families}  # type: ignore[union-attr]
