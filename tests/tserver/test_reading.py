"""Reads at snapshots, with something happening at the worst moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stelae.model.errors import Closed, NotFound, SnapshotTooOld
from stelae.model.ids import TableId, Txn
from stelae.model.predicate.plan import ScanPredicate
from stelae.model.predicate.selectors import ALL_COLUMNS
from stelae.service.scans import ScanAsk
from stelae.tserver.reading import now
from tests.tserver.stores import Place, row


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.close()


def before_the_state_is_taken(place: Place, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Once, the next time somebody looks for a row's tablet."""
    tablets, waiting = place.server.shard.map, [act]
    plain = tablets.at

    def at(*args: Any) -> Any:
        if waiting:
            waiting.pop()()
        return plain(*args)

    monkeypatch.setattr(tablets, "at", at)


def rewritten(place: Place, table: TableId) -> Callable[[], None]:
    """The row gets another value, and all history goes."""

    def act() -> None:
        place.put(table, 1, a=2)
        place.store.compact(table, erase_now=True)

    return act


def test_a_row_is_never_missing_because_history_goes_under_the_read(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = place.create()
    place.put(info.id, 1, a=1)
    before_the_state_is_taken(place, monkeypatch, rewritten(place, info.id))
    assert place.get(info.id, 1) == 2


def after_the_state_is_taken(place: Place, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Once, when somebody has looked for a row's tablet next."""
    tablets, waiting = place.server.shard.map, [act]
    plain = tablets.at

    def at(*args: Any) -> Any:
        found = plain(*args)
        if waiting:
            waiting.pop()()
        return found

    monkeypatch.setattr(tablets, "at", at)


CHANGES: dict[str, Callable[[Place, TableId], object]] = {
    "truncated": lambda place, table: place.store.truncate(table),
    "flushed, and written again": lambda place, table: (place.store.flush(table), place.put(table, 1, a=2)),
    "split, and written again": lambda place, table: (place.store.split(table, row(5)), place.put(table, 1, a=2)),
}


@pytest.mark.parametrize("is_asked_for_history", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_read_is_what_the_snapshot_shows_that_is_told_with_it(
    place: Place, monkeypatch: pytest.MonkeyPatch, change: str, is_asked_for_history: bool
) -> None:
    """The tablet was looked for just before a change, and what is visible just after it."""
    info = place.create()
    place.put(info.id, 1, 7, a=1)
    after_the_state_is_taken(place, monkeypatch, lambda: CHANGES[change](place, info.id))
    now = {"truncated": None}.get(change, 2)
    if is_asked_for_history:
        found = place.store.history(info.id, row(1), ALL_COLUMNS, 1)
        assert (None if found is None else found["a"][0].value) == now
        return
    txn, values_then = place.store.newest(info.id, row(1), ALL_COLUMNS)
    assert values_then == place.store.newest(info.id, row(1), ALL_COLUMNS, txn)[1]
    assert (None if values_then is None else values_then["a"]) == now


def test_a_snapshot_that_becomes_too_old_under_the_read_says_so(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    info = place.create()
    at = place.put(info.id, 1, a=1)
    before_the_state_is_taken(place, monkeypatch, rewritten(place, info.id))
    with pytest.raises(SnapshotTooOld):
        place.get(info.id, 1, at=at)


def test_a_history_that_becomes_too_old_under_the_read_says_so(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    info = place.create()
    at = place.put(info.id, 1, a=1)
    before_the_state_is_taken(place, monkeypatch, rewritten(place, info.id))
    with pytest.raises(SnapshotTooOld):
        place.store.history(info.id, row(1), ALL_COLUMNS, 5, at)
    found = place.store.history(info.id, row(1), ALL_COLUMNS, 5)
    assert found is not None
    assert [version.value for version in found["a"]] == [2]


@pytest.mark.parametrize("is_given", [True, False])
def test_many_rows_are_of_one_snapshot(place: Place, monkeypatch: pytest.MonkeyPatch, is_given: bool) -> None:
    info = place.create("t", 5)
    place.put(info.id, 1, 9, a=1)
    at = place.store.now() if is_given else None
    before_the_state_is_taken(place, monkeypatch, rewritten(place, info.id))
    read_at, found = place.store.newest_many(info.id, [row(9), row(1), row(7)], ALL_COLUMNS, at)
    assert found == [{"a": 1}, {"a": 1}, None]
    assert at is None or read_at == at
    assert place.get(info.id, 1) == 2


def test_a_file_that_goes_under_a_read_is_no_error(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tablet as it is now is read instead."""
    info = place.create()
    place.put(info.id, 1, a=1)
    place.store.flush(info.id)
    shard, old = place.server.shard, place.server.shard.of_table(info.id)[0]
    place.put(info.id, 2)
    place.store.compact(info.id, erase_now=True)
    plain, waiting = shard.map.at, [old]
    monkeypatch.setattr(shard.map, "at", lambda *args: waiting.pop() if waiting else plain(*args))
    assert place.get(info.id, 1) == 1


def scan(place: Place, table: TableId, at: Txn | None = None) -> Any:
    return place.store.scan(table, ScanAsk(ScanPredicate(), place.store.now() if at is None else at))


def values(batches: Any) -> dict[int, int]:
    return {each["id"]: each["a"] for batch in batches for each in batch.to_pylist()}


def test_a_scan_reads_the_snapshot_that_its_caller_holds(place: Place) -> None:
    info = place.create()
    at = place.put(info.id, 1, a=1)
    pin = place.store.pin(at)
    batches = scan(place, info.id, at)
    rewritten(place, info.id)()
    assert values(batches) == {1: 1}
    assert values(scan(place, info.id, at)) == {1: 1}
    pin.close()
    pin.close()
    rewritten(place, info.id)()
    with pytest.raises(SnapshotTooOld):
        scan(place, info.id, at)


def test_a_scan_pins_nothing_and_says_so_when_history_goes(place: Place) -> None:
    info = place.create("t", 5)
    at = place.put(info.id, 1, 9, a=1)
    batches = scan(place, info.id, at)
    assert values([next(batches)]) == {1: 1}
    rewritten(place, info.id)()
    assert place.server.shard.horizon(info.id) > at
    with pytest.raises(SnapshotTooOld):
        next(batches)


def test_history_that_goes_under_a_scan_is_noticed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """After it was found to be there, and before the tablet's state is taken."""
    info = place.create()
    at = place.put(info.id, 1, a=1)
    batches = scan(place, info.id, at)
    before_the_state_is_taken(place, monkeypatch, rewritten(place, info.id))
    with pytest.raises(SnapshotTooOld):
        next(batches)


def test_a_snapshot_can_be_pinned_while_one_table_has_its_history(place: Place) -> None:
    kept, gone = place.create("kept"), place.create("gone")
    at = place.put(kept.id, 1, a=1)
    place.put(gone.id, 1)
    rewritten(place, gone.id)()
    pin = place.store.pin(at)
    assert values(scan(place, kept.id, at)) == {1: 1}
    with pytest.raises(SnapshotTooOld):
        scan(place, gone.id, at)
    pin.close()
    rewritten(place, kept.id)()
    with pytest.raises(SnapshotTooOld):
        place.store.pin(at)


def test_a_scan_of_a_table_that_is_dropped_says_so(place: Place) -> None:
    info = place.create()
    place.put(info.id, 1)
    batches = scan(place, info.id)
    place.store.drop("t")
    with pytest.raises(NotFound, match="was dropped"):
        next(batches)
    with pytest.raises(NotFound, match="was dropped"):
        scan(place, info.id)


def test_a_scan_that_is_closed_is_over(place: Place) -> None:
    info = place.create("t", 5)
    place.put(info.id, 1, 9)
    batches = scan(place, info.id)
    assert values([next(batches)]) == {1: 1}
    batches.close()
    batches.close()
    assert list(batches) == []


def test_a_scan_of_a_closed_store_says_so() -> None:
    place = Place()
    info = place.create("t", 5)
    place.put(info.id, 1, 9)
    batches = scan(place, info.id)
    place.close()
    with pytest.raises(Closed):
        next(batches)


def test_the_newest_snapshot_is_as_late_as_what_was_heard_of(place: Place) -> None:
    shard, wall_ms = place.server.shard, 0
    heard = Txn(now(shard, wall_ms) + 1_000)
    assert now(shard, wall_ms, heard) == heard
    assert now(shard, wall_ms) == heard
