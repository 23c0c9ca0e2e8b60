"""Numbered writes of a whole store: one that comes again is answered, whatever has become of its tablet meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from unittest import mock

import pytest
from msgspec.structs import replace

from stelae.model.errors import Conflict, DiskFailed, Retryable, UnknownOutcome
from stelae.model.ids import ClientId, TableId, Txn
from stelae.model.once import WINDOW_MS, Once, sequence_of
from stelae.service.blocks import OrderedBlock, cut_block
from stelae.storage.log.segments import WalSegments
from tests.tserver.stores import Place, row

LANE = ClientId(4_711)


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.close()


def _numbered(place: Place, table: TableId, *keys: int, a: int, call: int = 1, age_ms: int = 0) -> list[OrderedBlock]:
    """As a client sends them that comes with the schema of this moment."""
    blocks = place.blocks(table, *keys, a=a)
    return [replace(each, once=Once(LANE, sequence_of(call, at), age_ms)) for at, each in enumerate(blocks)]


def _again(blocks: list[OrderedBlock], age_ms: int = 50) -> list[OrderedBlock]:
    return [replace(each, once=each.once and each.once._replace(age_ms=age_ms)) for each in blocks]


def _flush(place: Place, table: TableId) -> None:
    place.store.flush(table)


def _leave_the_log(place: Place, table: TableId) -> None:
    place.store.compact(table, erase_now=True)
    place.reopen("kill")


def _kill(place: Place, _: TableId) -> None:
    place.reopen("kill")


def _lose_power(place: Place, _: TableId) -> None:
    place.reopen("power")


def _split(place: Place, table: TableId) -> None:
    place.store.split(table, row(3))


def _split_and_kill(place: Place, table: TableId) -> None:
    place.store.split(table, row(3))
    place.reopen("kill")


def _split_and_join(place: Place, table: TableId) -> None:
    place.store.split(table, row(3))
    place.store.join(table, row(3))
    place.reopen("kill")


def _nothing(_: Place, __: TableId) -> None:
    """It comes again at once."""


MEANWHILE = [
    _nothing,
    _flush,
    _kill,
    _lose_power,
    _leave_the_log,
    _split,
    _split_and_kill,
    _split_and_join,
]


@pytest.mark.parametrize("meanwhile", MEANWHILE, ids=lambda each: each.__name__.strip("_"))
def test_a_write_that_comes_again_is_answered_and_not_done(
    place: Place, meanwhile: Callable[[Place, TableId], None]
) -> None:
    table = place.create().id
    first = place.store.write(table, _numbered(place, table, 1, 2, 5, a=7))
    place.put(table, 2, 5, a=8)
    meanwhile(place, table)
    assert place.store.write(table, _again(_numbered(place, table, 1, 2, 5, a=7))) == first
    assert [place.get(table, key) for key in (1, 2, 5)] == [7, 8, 8], "what others wrote since is not written over"
    then = place.store.write(table, _numbered(place, table, 1, 2, 5, a=9, call=2))
    assert then > first
    assert [place.get(table, key) for key in (1, 2, 5)] == [9, 9, 9]


@pytest.mark.parametrize("meanwhile", MEANWHILE, ids=lambda each: each.__name__.strip("_"))
def test_a_conditional_write_never_conflicts_with_itself(
    place: Place, meanwhile: Callable[[Place, TableId], None]
) -> None:
    table = place.create().id
    read = place.put(table, 1, a=1)
    first = place.store.write(table, _numbered(place, table, 1, a=2), read)
    meanwhile(place, table)
    assert place.store.write(table, _again(_numbered(place, table, 1, a=2)), read) == first
    with pytest.raises(Conflict):
        place.store.write(table, _numbered(place, table, 1, a=3, call=2), read)
    assert place.get(table, 1) == 2


def test_a_refusal_stays_one(place: Place) -> None:
    """The first try was refused, or comes late: the row has changed since, and always will have."""
    table = place.create().id
    read = place.put(table, 1, a=1)
    place.put(table, 1, a=5)
    for age_ms in (0, 10, 20):
        with pytest.raises(Conflict):
            place.store.write(table, _numbered(place, table, 1, a=2, age_ms=age_ms), read)
    assert place.get(table, 1) == 5


def test_of_a_block_of_which_one_side_of_a_split_has_its_part_the_rest_is_written_after_a_join(place: Place) -> None:
    table = place.create("t", 3).id
    (block,) = _numbered(place, table, 1, 2, 4, 5, a=7)
    left, right = cut_block(block, 2)
    first = place.store.write(table, [left])
    place.put(table, 1, 4, a=8)
    place.store.join(table, row(3))
    place.reopen("kill")
    second = place.store.write(table, _again([block]))
    assert second > first
    assert [place.get(table, key) for key in (1, 2, 4, 5)] == [8, 7, 7, 7]
    place.put(table, 5, a=9)
    assert place.store.write(table, _again([right])) == second
    assert place.store.write(table, _again([block])) == second
    assert place.get(table, 5) == 9


def test_parts_are_cut_by_whoever_likes(place: Place) -> None:
    """By a client that believes in other tablets than there are, then by the store."""
    table = place.create().id
    (block,) = _numbered(place, table, 1, 2, 4, 5, a=7)
    left, right = cut_block(block, 1)
    place.store.write(table, [right])
    place.put(table, 4, a=8)
    place.store.write(table, [left])
    place.store.write(table, _again([block]))
    place.store.split(table, row(4))
    place.store.write(table, _again([block]))
    assert [place.get(table, key) for key in (1, 2, 4, 5)] == [7, 7, 8, 7]


def test_what_has_failed_is_let_in_when_it_comes_again(place: Place) -> None:
    table = place.create().id
    blocks = _numbered(place, table, 1, a=7)
    with mock.patch.object(WalSegments, "write", side_effect=DiskFailed("it does not write")), pytest.raises(Retryable):
        place.store.write(table, blocks)
    assert place.get(table, 1) is None
    txn = place.store.write(table, _again(blocks))
    assert place.get(table, 1) == 7
    assert place.store.write(table, _again(blocks)) == txn


def test_one_that_comes_while_the_first_is_on_its_way_waits_for_it(place: Place) -> None:
    table = place.create().id
    blocks = _numbered(place, table, 1, a=7)
    futures = [place.server.submit(table, blocks), place.server.submit(table, _again(blocks))]
    assert not any(future.done() for future in futures)
    place.server.log_step()
    assert len({future.result(0) for future in futures}) == 1


def test_who_comes_too_late_is_told_that_it_is_not_known(place: Place) -> None:
    table = place.create().id
    old = _numbered(place, table, 1, a=7)
    place.store.write(table, old)
    place.store.write(table, _numbered(place, table, 1, a=8, call=2))
    with pytest.raises(UnknownOutcome):
        place.store.write(table, _again(old))
    with pytest.raises(UnknownOutcome):
        place.store.write(table, _numbered(place, table, 1, a=9, call=3, age_ms=WINDOW_MS + 1))
    assert place.get(table, 1) == 8


def test_what_is_not_numbered_is_written_each_time(place: Place) -> None:
    table = place.create().id
    blocks = place.blocks(table, 1, a=7)
    txns: set[Txn] = {place.store.write(table, blocks), place.store.write(table, blocks)}
    assert len(txns) == 2
    assert not any(state.commits.done for state in place.server.shard.tablets().values())
