"""What jobs do with the files of a table: the same as the server would show, from bytes alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import pytest

from stelae.model.declare import columns, declare
from stelae.model.errors import Corruption
from stelae.model.hybrid import micros_of
from stelae.model.ids import Micros, Row, TabletId, Txn
from stelae.model.mutation import Erase, Put, WholeRow
from stelae.model.predicate.selectors import ALL_COLUMNS
from stelae.model.ranges import EVERYTHING, RangeSet, RowRange
from stelae.model.schema import ColumnsGroup
from stelae.model.schema_checks import BLOCK_BYTES_MIN
from stelae.storage.files.fragments import Fragment
from stelae.storage.offline import hidden as hidden_module
from stelae.storage.offline.hidden import Hidden, HiddenPlaces, hidden_places
from stelae.storage.offline.merges import merge_files
from stelae.storage.offline.plain import Layers, layers_of, needed_files
from stelae.storage.offline.scans import Appearing, count_records, history_reader, scan_part, scan_touched
from stelae.storage.offline.snapshots import SnapshotPart, write_snapshot
from stelae.storage.offline.tablets import Fragments, HeldTablet, open_fragments
from tests.storage.engine import TABLE, Engine

SCHEMA = declare({"k": "string"}, [columns("g", {"v": "int64"})])
(V,) = SCHEMA.groups[0].columns  # type: ignore[union-attr]
TABLET = TabletId(1)


def row(number: int) -> Row:
    return Row(f"{number:03}".encode())


def put(engine: Engine, values: dict[int, int]) -> Txn:
    """Durable, and in a file of its own."""
    ((txn, _),) = engine.write([Put(row(at), ((V.id, value),)) for at, value in values.items()])
    engine.flush(TABLET)
    return txn


@pytest.fixture
def engine() -> Engine:
    return Engine(SCHEMA)


def held(engine: Engine, tablet: TabletId = TABLET) -> HeldTablet:
    """As a ticket carries it."""
    engine.upkeep.save()
    return HeldTablet.decode(engine.configs.saved[tablet], SCHEMA, "a ticket")


def shown(engine: Engine, tablet: HeldTablet, at: Txn, rows: RangeSet = EVERYTHING) -> dict[str, Any]:
    batches = scan_part(tablet, open_fragments(engine.blobs), rows, ALL_COLUMNS, at)
    return {each["k"]: each["v"] for batch in batches for each in batch.batch.to_pylist()}


def test_tickets_are_values_that_need_no_storage() -> None:
    program = "import stelae.service.tickets, sys; print([m for m in sys.modules if m.startswith('stelae.storage')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_held_tablet_shows_what_the_server_does(engine: Engine) -> None:
    first = put(engine, {at: at for at in range(10)})
    second = put(engine, {3: 33, 12: 12})
    tablet = held(engine)
    assert shown(engine, tablet, first) == {f"{at:03}": at for at in range(10)}
    assert shown(engine, tablet, second)["003"] == 33
    assert shown(engine, tablet, second, RangeSet.of([RowRange(row(10), None)])) == {"012": 12}
    read = history_reader(tablet, open_fragments(engine.blobs), ALL_COLUMNS, second)
    assert [version.value for version in read(row(3), 5)["v"]] == [33, 3]
    assert read(row(99), 5) == {}


def test_bytes_that_are_no_config_are_refused_by_name() -> None:
    with pytest.raises(Corruption, match="a ticket"):
        HeldTablet.decode(b"no config", SCHEMA, "a ticket")


def test_a_part_keeps_only_the_files_it_needs(engine: Engine) -> None:
    first = put(engine, {at: at for at in range(10)})
    put(engine, {20: 20})
    tablet = held(engine)
    assert len(tablet.files()) == 2
    assert tablet.size_bytes == sum(file.seal.size_bytes for file in tablet.files().values())
    assert len(tablet.at(first).files()) == 1
    part = HeldTablet.decode(tablet.within(RowRange(row(5), row(8))).encode(), SCHEMA, "a part")
    assert shown(engine, part, engine.visible) == {"005": 5, "006": 6, "007": 7}


def test_a_tablet_over_renamed_copies(engine: Engine) -> None:
    put(engine, {1: 1})
    tablet = held(engine)
    ((name, file),) = tablet.files().items()
    moved = tablet.renamed({name: "copies/a.parquet"})
    assert moved.files() == {"copies/a.parquet": file.__class__("copies/a.parquet", file.seal, file.stats)}


def test_files_are_merged_as_upkeep_merges_them(engine: Engine) -> None:
    put(engine, {at: at for at in range(10)})
    engine.write([Erase(row(4), WholeRow())])
    engine.flush(TABLET)
    tablet = held(engine)
    before = shown(engine, tablet, engine.visible)
    names = tuple(tablet.files())

    def merge(name: str, horizon: Txn) -> Any:
        fragments = open_fragments(engine.blobs)
        group = SCHEMA.groups[0].id
        return merge_files(
            tablet, fragments, engine.blobs, name, group, names, horizon=horizon, floor=Txn(0), is_rooted=True
        )

    kept = merge("fragments/0/a.parquet", Txn(0))
    assert (kept.stats.records, kept.stats.erasures) == (11, 1)
    left = merge("fragments/0/b.parquet", engine.visible)
    assert (left.stats.records, left.stats.erasures, len(before)) == (9, 0, 9)


def test_a_snapshot_is_written_as_a_load_wants_it(engine: Engine) -> None:
    first = put(engine, {1: 1, 2: 2})
    put(engine, {2: 22, 3: 3})
    names = iter(["a", "b"])
    part = SnapshotPart(held(engine), SCHEMA.groups[0].id, RowRange(b"", None), first, TABLE)
    (file,) = write_snapshot(part, open_fragments(engine.blobs), engine.blobs, lambda: f"fragments/0/{next(names)}")
    assert (file.stats.records, file.stats.txn_max) == (2, 0)
    assert (file.stats.first_row, file.stats.last_row) == (row(1), row(2))


def test_files_that_lie_over_each_other_are_clean_and_in_order(engine: Engine) -> None:
    put(engine, {at: at for at in range(10)})
    put(engine, {3: 33})
    tablet, fragments = held(engine), open_fragments(engine.blobs)
    stretches = layered(engine, tablet, fragments)
    assert [(len(each.files), each.is_clean) for each in stretches] == [(1, True), (2, True), (1, True)]
    old, new = stretches[1].files
    assert old.file.txn_max < new.file.txn_min
    assert old.stored(V) == ("v", V.type)
    assert {share.file.name for share in needed_files(tablet, fragments, ALL_COLUMNS, Appearing.READ)} == set(
        tablet.files()
    )


def layered(engine: Engine, tablet: HeldTablet, fragments: Fragments) -> list[Layers]:
    group = SCHEMA.groups[0]
    assert isinstance(group, ColumnsGroup)
    time = tablet.asking(engine.visible).time
    return list(layers_of(tablet, fragments, group, [V], engine.visible, time))


def test_rows_that_other_files_touch_are_merged_alone(engine: Engine) -> None:
    put(engine, {at: at for at in range(10)})
    put(engine, {3: 33, 5: 55})
    engine.write([Erase(row(at), WholeRow()) for at in (4, 6)])
    put(engine, {6: 66})
    tablet, fragments = held(engine), open_fragments(engine.blobs)
    touched: list[bytes] = []
    seen: dict[str, Any] = {}
    for each in layered(engine, tablet, fragments):
        hidden = hidden_places(each, fragments, each.rows)
        touched += hidden.touched.to_pylist()
        assert not (each.is_clean and len(hidden.touched))
        found = scan_touched(tablet, fragments, each, hidden, each.rows, ALL_COLUMNS, engine.visible)
        seen |= {row["k"]: row["v"] for batch in found for row in batch.batch.to_pylist()}
    assert touched == [row(6)]
    assert seen == {"006": 66}


@pytest.mark.parametrize("late_us", [0, -1], ids=["erased now", "erased as of a time before"])
def test_rows_that_are_only_erased_are_hidden_and_not_merged(engine: Engine, late_us: int) -> None:
    """Unless the erasure may not cover what there is."""
    first = put(engine, {at: at for at in range(10)})
    engine.write([Erase(row(at), WholeRow(), Micros(micros_of(first) + late_us)) for at in (4, 6)])
    engine.flush(TABLET)
    tablet, fragments = held(engine), open_fragments(engine.blobs)
    (each,) = (found for found in layered(engine, tablet, fragments) if not found.is_clean)
    hidden = hidden_places(each, fragments, each.rows)
    assert hidden.touched.to_pylist() == ([] if late_us == 0 else [row(4), row(6)])
    assert [marked.places(0, 100).tolist() for marked in hidden.marked.values()] == [[4, 6]]
    merged = scan_touched(tablet, fragments, each, hidden, each.rows, ALL_COLUMNS, engine.visible)
    assert [row["v"] for batch in merged for row in batch.batch.to_pylist()] == ([] if late_us == 0 else [4, 6])
    assert len(shown(engine, tablet, engine.visible)) == (8 if late_us == 0 else 10)


def test_what_is_hidden_takes_about_a_bit_for_each_record_and_is_kept_only_if_it_is_small(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a table that was loaded twice all of the first load is hidden."""
    count = 2_000
    for value in (1, 2):
        engine.write([Put(f"{at:06}".encode(), ((V.id, value),)) for at in range(count)])  # type: ignore[arg-type]
        engine.flush(TABLET)
    tablet, fragments = held(engine), open_fragments(engine.blobs)
    (both,) = (each for each in layered(engine, tablet, fragments) if len(each.files) > 1)
    looked: list[Hidden] = []

    def look(*given: Any) -> Hidden:
        looked.append(hidden_places(*given))
        return looked[-1]

    monkeypatch.setattr(hidden_module, "hidden_places", look)
    kept = HiddenPlaces()
    first = kept.of(both, fragments, both.rows)
    (marked,) = first.marked.values()
    assert len(marked.places(0, count)) == count
    assert first.size_bytes < 2 * count, "a number for each would be 8"
    assert kept.of(both, fragments, both.rows) is first
    monkeypatch.setattr(hidden_module, "_KEPT_BYTES_MAX", first.size_bytes - 1)
    small = HiddenPlaces()
    again = [small.of(both, fragments, both.rows) for _ in range(2)]
    assert looked == [first, *again]


def test_of_files_that_others_lie_over_blocks_are_read_where_those_have_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows at the ends of a table cost two blocks, and if they are erased no values."""
    engine = Engine(declare({"k": "string"}, [columns("g", {"v": "int64"}, block_bytes=BLOCK_BYTES_MIN)]))
    engine.write([Put(row(at), ((V.id, at),)) for at in range(900)])
    engine.flush(TABLET)
    engine.write([Erase(row(at), WholeRow()) for at in (1, 898)])
    engine.flush(TABLET)
    read: list[int] = []
    tablet, fragments = held(engine), open_fragments(engine.blobs)
    base = next(name for name, file in tablet.files().items() if file.stats.rows == 900)
    inner = Fragment.block

    def block(self: Fragment, number: int, columns: Iterable[str], keep: bool) -> Any:
        if self.file.name == base:
            read.append(number)
        return inner(self, number, columns, keep)

    monkeypatch.setattr(Fragment, "block", block)
    blocks = next(fragments.of(file) for file in tablet.files().values() if file.name == base).reader.block_count
    assert blocks > 2
    for each in layered(engine, tablet, fragments):
        hidden = hidden_places(each, fragments, each.rows)
        assert not [*scan_touched(tablet, fragments, each, hidden, each.rows, ALL_COLUMNS, engine.visible)]
    assert read == [0, blocks - 1]


def test_records_are_counted_within_the_rows_of_a_reference(engine: Engine) -> None:
    put(engine, {at: at for at in range(10)})
    engine.split(TABLET, row(4))
    fragments = open_fragments(engine.blobs)
    counts = [count_records(ref, fragments) for tablet in (2, 3) for ref in held(engine, TabletId(tablet)).refs()]
    assert counts == [(4, 0), (6, 0)]
