"""A refusal stands on what is durable: whoever is told of a conflict can read what caused it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from stelae.model.errors import Conflict, DeadlineExceeded, DiskFailed, StelaeError
from stelae.model.ids import Txn
from stelae.service.tables import TableInfo
from tests.tserver.stores import Place
from tests.tserver.test_deadlines import soon, stuck_disk


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place()
    yield place
    place.close()


def begin(place: Place, info: TableInfo) -> tuple[Txn, Future[Txn]]:
    """Row 1 is 1, and a change to 2 is on its way to the disk: the snapshot before it, and what becomes of it."""
    place.put(info.id, 1)
    before = place.store.now()
    on_its_way = place.store.submit(info.id, place.blocks(info.id, 1, a=2))
    assert not on_its_way.done()
    assert place.get(info.id, 1) == 1
    return before, on_its_way


def test_a_write_is_refused_when_what_it_meets_is_durable(place: Place) -> None:
    info = place.create()
    before, on_its_way = begin(place, info)
    with pytest.raises(Conflict, match="changed at"):
        place.store.write(info.id, place.blocks(info.id, 1, a=3), before)
    assert on_its_way.done()
    assert place.get(info.id, 1) == 2


def test_a_write_is_let_in_when_what_it_met_has_failed(place: Place) -> None:
    info = place.create()
    before, on_its_way = begin(place, info)
    place.machine.disk.fail("sync", DiskFailed)
    place.store.write(info.id, place.blocks(info.id, 1, a=3), before)
    assert isinstance(on_its_way.exception(), StelaeError)
    assert place.get(info.id, 1) == 3


@pytest.mark.parametrize("fails", [False, True])
def test_a_submitted_write_is_refused_no_earlier(place: Place, fails: bool) -> None:
    info = place.create()
    before, on_its_way = begin(place, info)
    second = place.store.submit(info.id, place.blocks(info.id, 1, a=3), before)
    assert not second.done()
    if fails:
        place.machine.disk.fail("sync", DiskFailed)
    place.store.log_step()
    assert on_its_way.done()
    assert isinstance(second.exception(), Conflict) != fails
    assert place.get(info.id, 1) == (3 if fails else 2)


def test_a_table_that_is_being_emptied_is_a_conflict_once_it_is(place: Place) -> None:
    info = place.create()
    place.put(info.id, 1)
    before = place.store.now()
    place.machine.disk.fail("sync", DiskFailed)
    with pytest.raises(StelaeError):
        place.store.truncate(info.id)
    place.store.write(info.id, place.blocks(info.id, 1, a=3), before)
    now = place.store.now()
    place.store.truncate(info.id)
    with pytest.raises(Conflict, match="emptied"):
        place.store.write(info.id, place.blocks(info.id, 1, a=4), now)
    assert place.get(info.id, 1) is None


def test_what_is_undecided_is_waited_for_until_the_deadline(place: Place) -> None:
    """Nothing was written then, and nothing will be."""
    info = place.create()
    place.put(info.id, 1)
    before = place.store.now()
    with stuck_disk(place, info.id, 1), pytest.raises(DeadlineExceeded, match="was not all on disk"):
        place.store.write(info.id, place.blocks(info.id, 1, a=3), before, deadline=soon())
    assert place.get(info.id, 1) == 1
