"""Whatever looks into a tablet's files without the lock may find that a compaction has put others in their place: that
is no error, and nobody hears of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stelae.model.errors import Conflict, Corruption
from stelae.model.ids import TableId, Txn
from tests.tserver.stores import Place, row


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.close()


def before_a_file_is_opened(place: Place, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> list[Any]:
    """Once, when somebody is about to look into a file. Returns what is still to be done."""
    fragments, waiting = place.server.shard.fragments, [act]
    plain = fragments.of

    def of(file: Any) -> Any:
        if waiting:
            waiting.pop()()
        return plain(file)

    monkeypatch.setattr(fragments, "of", of)
    return waiting


def filled(place: Place) -> tuple[TableId, Txn]:
    """A table of two files that nobody has looked into, and the txn of the last put."""
    table = place.create().id
    place.put(table, 1, 2, 3)
    place.store.flush(table)
    last = place.put(table, 3, 4, 5, a=9)
    place.store.flush(table)
    place.reopen("closed")
    return table, last


def write_on_a_condition(place: Place, table: TableId, last: Txn) -> None:
    place.store.write(table, place.blocks(table, 1, a=7), last)
    assert place.get(table, 1) == 7


def write_what_has_changed(place: Place, table: TableId, last: Txn) -> None:
    with pytest.raises(Conflict):
        place.store.write(table, place.blocks(table, 3, a=7), Txn(last - 1))


def compact(place: Place, table: TableId, _: Txn) -> None:
    place.server.compact(table)


def erase(place: Place, table: TableId, _: Txn) -> None:
    place.server.compact(table, erase_now=True)


def choose_a_split(place: Place, table: TableId, _: Txn) -> None:
    at = place.server.choose_split(table, None, None)[1]
    assert row(1) < at <= row(5)


def list_tablets(place: Place, table: TableId, _: Txn) -> None:
    (tablet,) = place.server.tablets(table)
    assert tablet.files == 1


def look_at_sizes(place: Place, table: TableId, _: Txn) -> None:
    place.server.look_at_sizes()
    while place.server.keeper.compact_step():
        pass


ASKED = [
    write_on_a_condition,
    write_what_has_changed,
    compact,
    erase,
    choose_a_split,
    list_tablets,
    look_at_sizes,
]


@pytest.mark.parametrize("ask", ASKED, ids=[ask.__name__ for ask in ASKED])
def test_files_that_go_meanwhile_are_no_error(
    place: Place, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Place, TableId, Txn], None]
) -> None:
    table, last = filled(place)
    waiting = before_a_file_is_opened(place, monkeypatch, lambda: place.server.compact(table))
    ask(place, table, last)
    assert not waiting
    assert place.keys(table) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("ask", ASKED[:-1], ids=[ask.__name__ for ask in ASKED[:-1]])
def test_a_file_that_the_tablet_needs_and_that_is_not_there_is_corruption(
    place: Place, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Place, TableId, Txn], None]
) -> None:
    table, last = filled(place)
    blobs = place.server.shard.blobs
    (tablet,) = place.server.shard.of_table(table)
    for name in tablet.files():
        blobs.delete(name)
    with pytest.raises(Corruption, match="the file is missing"):
        ask(place, table, last)
