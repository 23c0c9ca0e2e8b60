"""Records of tablets whose writes are answered late, or never: what arrives late changes nothing that was relied on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pytest

from stelae.master.records import Records
from stelae.model.errors import UnknownOutcome
from stelae.model.ids import TableId, TabletId
from stelae.model.ranges import ALL_ROWS
from stelae.ports.metastore import Change, Compare, TxnOutcome
from stelae.registry.tablet_records import RecordsChanged, TabletPhase, TabletRecord, read_tablets
from tests.master.servers import Office

FIRST = TabletRecord(TabletId(20), TableId(17), ALL_ROWS, TabletPhase.RUNNING, "a/0", epoch=1)
SECOND = msgspec.structs.replace(FIRST, server="b/0", epoch=2)
THIRD = msgspec.structs.replace(FIRST, server="c/0", epoch=2)


class Late:
    """Records, of which one write is on its way until it is delivered."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._txn = office.store.txn
        self.records = Records(office.store)
        self._held: tuple[Sequence[Compare], Sequence[Change]] | None = None
        office.run(self.records.write([FIRST]))

    def lose(self, puts: Sequence[TabletRecord], removed: Sequence[TabletRecord] = ()) -> None:
        async def hold(compares: Sequence[Compare], changes: Sequence[Change]) -> TxnOutcome:
            self._held = compares, changes
            raise UnknownOutcome("no answer")

        self._office.store.txn = hold  # type: ignore[method-assign]
        with pytest.raises(UnknownOutcome):
            self._office.run(self.records.write(puts, removed))
        self._office.store.txn = self._txn  # type: ignore[method-assign]

    def deliver(self) -> bool:
        assert self._held is not None
        return self._office.run(self._txn(*self._held)).succeeded

    def write(self, *puts: TabletRecord) -> None:
        self._office.run(self.records.write(puts))

    def settle(self) -> None:
        self._office.run(self.records.settle())

    def stored(self) -> list[TabletRecord]:
        return self._office.run(read_tablets(self._office.store))


@pytest.fixture
def late() -> Iterator[Late]:
    office = Office().start()
    try:
        yield Late(office)
    finally:
        office.close()


def test_what_arrives_after_something_else_was_written_changes_nothing(late: Late) -> None:
    """Otherwise another shard would be on record as the leader, in the same epoch, as whoever was asked to lead."""
    late.lose([SECOND])
    late.write(THIRD)
    assert not late.deliver()
    assert late.stored() == [THIRD]


def test_what_has_arrived_before_is_read_before_anything_else_is_written(late: Late) -> None:
    late.lose([SECOND])
    assert late.deliver()
    with pytest.raises(RecordsChanged):
        late.write(THIRD)
    assert late.records.is_in_doubt(FIRST.table)
    late.settle()
    assert not late.records.is_in_doubt(FIRST.table)
    assert late.records.maps.all() == (SECOND,)
    late.write(THIRD)
    assert late.stored() == [THIRD]


def test_what_was_found_to_be_so_stays_so(late: Late) -> None:
    """A tablet that was to become others is led again: it must not become them later."""
    others = [msgspec.structs.replace(FIRST, tablet=TabletId(each)) for each in (21, 22)]
    late.lose(others, [FIRST])
    assert late.records.is_in_doubt(FIRST.table)
    late.settle()
    assert not late.records.is_in_doubt(FIRST.table)
    assert not late.deliver()
    assert late.stored() == [FIRST]
    assert late.records.maps.all() == (FIRST,)


def test_nothing_is_written_twice_if_nothing_is_in_doubt(late: Late) -> None:
    late.write(SECOND)
    before = late._office.store.txns
    late.settle()
    late._office.run(late.records.read())
    assert late._office.store.txns == before
