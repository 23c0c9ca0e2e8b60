"""A table whose creation was not answered: it is made late, or has not been heard of yet. Its tablets are there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from stelae.model.errors import Closed, StelaeError, UnknownOutcome
from stelae.ports.metastore import Change, Compare, DeleteKey, PutKey, TxnOutcome
from stelae.registry.catalog.update_log import UPDATE_PREFIX
from stelae.registry.tablet_records import read_tablets
from stelae.service.spaces import CreateNamespaceAsk, CreateZoneAsk
from tests.master.covers import gaps
from tests.master.servers import Office, named


@pytest.fixture
def office() -> Iterator[Office]:
    made = Office().start()
    yield made
    made.close()


class Late:
    """The next transaction that makes a version of the catalog is on its way until it is delivered."""

    def __init__(self, office: Office) -> None:
        self._store, self._txn = office.store, office.store.txn
        self._held: tuple[Sequence[Compare], Sequence[Change]] | None = None
        self._store.txn = self._hold  # type: ignore[method-assign]

    async def _hold(self, compares: Sequence[Compare], changes: Sequence[Change]) -> TxnOutcome:
        is_version = any(isinstance(each, PutKey) and each.key.startswith(UPDATE_PREFIX) for each in changes)
        if is_version:
            self._held = self._held or (compares, changes)
            raise UnknownOutcome("no answer")
        return await self._txn(compares, changes)

    def pass_others(self) -> None:
        self._store.txn = self._txn  # type: ignore[method-assign]

    async def deliver(self) -> bool:
        """Whether it has changed anything."""
        assert self._held is not None
        return (await self._txn(*self._held)).succeeded


def create_unanswered(office: Office) -> Late:
    late = Late(office)
    with pytest.raises(UnknownOutcome):
        office.create("t", b"m")
    late.pass_others()
    return late


def check_tablets(office: Office, *names: str) -> None:
    """Every table has all its rows, and no record is of a table that is not there."""
    catalog = office.catalog.latest
    assert {table.name for table in catalog.tables.values()} == set(names)
    assert gaps(office.master, office.catalog) == []
    assert {record.table for record in office.run(read_tablets(office.store))} == set(catalog.tables)


def test_a_table_that_this_master_has_not_heard_of_yet_keeps_its_tablets(office: Office) -> None:
    late = create_unanswered(office)

    async def story() -> None:
        assert await late.deliver()
        assert not office.catalog.latest.tables, "what follows the catalog comes later"
        await office.master.tend()

    office.run(story())
    check_tablets(office, "t")


def test_once_its_tablets_are_given_up_a_table_is_made_no_more(office: Office) -> None:
    late = create_unanswered(office)
    office.run(office.master.tend())
    assert not office.run(late.deliver())
    check_tablets(office)
    office.create("t", b"m")
    check_tablets(office, "t")


def test_whoever_stops_while_a_creation_is_in_doubt_leaves_its_tablets_on_record(office: Office) -> None:
    late = Late(office)

    async def story() -> None:
        creation = asyncio.create_task(office.master.create(named("t"), []))
        while late._held is None:
            await asyncio.sleep(0)
        await office.catalog.close()
        with pytest.raises(StelaeError) as error:
            await creation
        assert isinstance(error.value, UnknownOutcome | Closed)

    office.run(story())
    late.pass_others()
    assert office.run(late.deliver())
    office.restart()
    check_tablets(office, "t")


@pytest.mark.parametrize("ask", [CreateNamespaceAsk("n"), CreateZoneAsk("z")])
def test_a_zone_or_namespace_that_is_made_beside_takes_no_tables_id(
    office: Office, ask: CreateNamespaceAsk | CreateZoneAsk
) -> None:
    """The tablets of a table are recorded before it is made, by the id that it will have."""
    plain = office.store.txn
    wrong: list[Change] = []

    async def note(compares: Sequence[Compare], changes: Sequence[Change]) -> TxnOutcome:
        await asyncio.sleep(0.01)  # so that others come in between, if they may
        wrong.extend(each for each in changes if isinstance(each, DeleteKey) and each.key.startswith("tablets/"))
        return await plain(compares, changes)

    office.store.txn = note  # type: ignore[method-assign]

    async def story() -> None:
        await asyncio.gather(office.master.create(named("t"), []), office.master.change_spaces(ask))

    office.run(story())
    assert not wrong, "records by an id that the table has not got"
    check_tablets(office, "t")
