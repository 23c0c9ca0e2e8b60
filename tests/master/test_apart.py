"""Tables and servers do not wait for each other: one that is slow or gone holds up only what needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import cast

import msgspec
import pytest

from stelae.catalog.commands.tables import CreateTable, TableName
from stelae.model.errors import Corruption, InternalFault, Retryable, UnknownOutcome
from stelae.model.events import LeadingFailed, TableForgotten
from stelae.model.ids import Row, SchemaVersion, TableId
from stelae.registry.control import AlterTable, CreateTablets, DeleteTablets
from stelae.registry.tablet_records import TabletPhase, read_tablets
from stelae.service.deadlines import Deadline
from stelae.service.spaces import CreateZoneAsk
from stelae.service.tables import AlterAsk
from tests.master.covers import gaps
from tests.master.servers import SCHEMA, SETTINGS, SILENCE_S, Office, ScriptedServers, named

MORE = AlterAsk(add={"data": {"b": "int32"}})
T = TableName.parse("t")


@pytest.fixture
def office() -> Iterator[Office]:
    made = Office(3).start()
    yield made
    made.close()


def took_s(office: Office, since_s: float) -> float:
    return office.clock.monotonic_s() - since_s


def make_on_all(office: Office, name: str) -> TableId:
    """A table with a tablet on each server."""
    table = office.create(name, b"g", b"p")
    assert {each.server for each in office.master.maps.of_table(table)} == {"s1", "s2", "s3"}
    return table


def if_not_exists(name: str) -> CreateTable:
    return CreateTable(TableName.parse(name), SCHEMA, if_not_exists=True)


async def under_way(office: Office, kind: type) -> None:
    while not any(isinstance(request, kind) for request in office.server.asked):
        await asyncio.sleep(0.01)


# -- one table


def test_who_creates_what_is_there_keeps_nobody_from_creating_others(office: Office) -> None:
    """It waits for the table, which is being altered on a server that does not answer."""
    make_on_all(office, "t")
    office.server.is_stopped = True

    async def story() -> None:
        altered = asyncio.create_task(office.master.alter(T, MORE))
        await under_way(office, AlterTable)
        waiting = asyncio.create_task(office.master.create(if_not_exists("t"), []))
        await asyncio.sleep(0.1)
        cast(ScriptedServers, office.servers).silent.add("s1")
        soon = Deadline(office.clock, 2.0)
        await office.master.create(named("other"), [], deadline=soon)
        await office.master.change_spaces(CreateZoneAsk("z"), deadline=soon)
        assert not waiting.done()
        assert not altered.done()
        office.server.is_stopped = False
        with suppress(Retryable, UnknownOutcome):
            await altered
        table = await waiting
        assert table.schema.version == 2, "as it is by then"

    office.run(story())


def test_who_creates_what_is_dropped_meanwhile_makes_it(office: Office) -> None:
    before = make_on_all(office, "t")
    office.server.is_stopped = True

    async def story() -> None:
        altered = asyncio.create_task(office.master.alter(T, MORE))
        await under_way(office, AlterTable)
        dropped = asyncio.create_task(office.master.drop(T, if_exists=False))
        await asyncio.sleep(0.1)
        waiting = asyncio.create_task(office.master.create(if_not_exists("t"), [Row(b"m")]))
        office.server.is_stopped = False  # what it was asked before is not answered all the same
        with suppress(Retryable, UnknownOutcome):
            await altered
        await dropped
        table = await waiting
        assert table.id != before
        assert len(office.master.maps.of_table(table.id)) == 2

    office.run(story())


# -- a server that is stopped


def test_tables_in_doubt_on_a_silent_server_hold_up_nobody(office: Office) -> None:
    tables = [make_on_all(office, f"t{number}") for number in range(10)]
    office.server.is_stopped = True
    cast(ScriptedServers, office.servers).silent.add("s1")
    for table in tables:
        office.master._alignment.doubt(table)
    begun_s = office.clock.monotonic_s()
    office.run(office.master.tend())
    assert took_s(office, begun_s) < 1.0
    assert office.master.has_work
    office.server.is_stopped = False
    cast(ScriptedServers, office.servers).silent.clear()
    office.run(office.master.tend())
    assert not office.master.has_work


def test_tables_in_doubt_on_a_server_that_does_not_answer_are_waited_for_together_and_not_long(office: Office) -> None:
    """Nobody has called it silent yet."""
    tables = [make_on_all(office, f"t{number}") for number in range(10)]
    office.server.is_stopped = True
    for table in tables:
        office.master._alignment.doubt(table)
    office.master.note_back("s2")
    begun_s = office.clock.monotonic_s()
    office.run(office.master.tend())
    assert took_s(office, begun_s) < SILENCE_S
    assert list(office.master._alignment._late) == []
    office.server.is_stopped = False
    office.run(asyncio.sleep(SILENCE_S))  # until what was begun has been given up
    office.run(office.master.tend())
    office.run(office.master.tend())
    assert not office.master.has_work


def test_a_server_that_missed_a_change_hears_of_it_while_another_is_away(office: Office) -> None:
    table = make_on_all(office, "t")
    office.server.is_stopped = True
    office.all[1].minds, office.all[1].moods = AlterTable, ["lost"]
    with pytest.raises(UnknownOutcome):
        office.run(office.master.alter(T, MORE))
    cast(ScriptedServers, office.servers).silent.add("s1")
    office.run(office.master.tend())
    versions = {each.schema_version for server in office.all[1:] for each in server.tablets.values()}
    assert versions == {2}
    assert {each.table for each in office.all[1].tablets.values()} == {table}


# -- a server that fails for good


def failures(office: Office) -> list[tuple[str, str]]:
    return [(each.part, each.words) for each in office.told if isinstance(each, LeadingFailed)]


def test_what_one_server_meets_for_good_is_told_once_and_keeps_no_other_waiting(office: Office) -> None:
    tables = {name: office.create(name) for name in "abc"}
    assert [office.master.maps.of_table(table)[0].server for table in tables.values()] == ["s1", "s2", "s3"]
    office.run(office.master.drop(TableName.parse("b"), if_exists=False))
    office.run(asyncio.sleep(SETTINGS.grace_s + 1))
    office.server.mistake = InternalFault("a mistake")
    office.master.note_back("s1")
    office.master._alignment.doubt(tables["c"])
    for _ in range(3):
        office.run(office.master.tend())
    assert list(office.master._alignment._doubted) == []
    assert TableForgotten(tables["b"], 1) in office.told
    assert failures(office) == [("lining up s1", "InternalFault: a mistake")]
    assert office.master.has_work, "it is tried again"
    office.server.mistake = None
    office.run(office.master.tend())
    assert not office.master.has_work


def test_of_one_server_what_a_table_meets_for_good_keeps_no_other_table_waiting(office: Office) -> None:
    first, second = office.create("first"), office.create("second", b"g", b"p")
    (there,) = office.master.maps.of_table(first)
    server = next(each for each in office.all if each.server == there.server)
    for tablet in (old for old in server.tablets.values() if old.table in (first, second)):
        server.tablets[tablet.tablet] = msgspec.structs.replace(tablet, schema_version=SchemaVersion(0))
    server.mistake, server.mistakes_at = Corruption("torn", "a file"), (AlterTable,)
    office.master.note_back(server.server)
    asked = len(server.asked)
    office.run(office.master.tend())
    assert server.asked[asked:] == [AlterTable(first), AlterTable(second)]
    assert [words for _, words in failures(office)] == ["Corruption: a file: torn"]


def test_who_takes_a_server_out_is_told_no_error_of_another(office: Office) -> None:
    """Which came after nobody waited for it any more."""
    table = make_on_all(office, "t")
    office.server.mistake, office.server.mistake_s = InternalFault("a mistake"), 5.0
    office.master.note_back("s1")
    office.run(office.master.tend())
    assert not failures(office)
    office.run(asyncio.sleep(3.0))
    assert failures(office) == [("lining up s1", "InternalFault: a mistake")]
    cast(ScriptedServers, office.servers).taken_out = ("s3",)
    office.run(office.master.replace_lost())
    assert {each.server for each in office.master.maps.of_table(table)} == {"s1", "s2"}


def test_who_takes_a_server_out_is_told_what_keeps_others_from_taking_its_place(office: Office) -> None:
    table = make_on_all(office, "t")
    for server in office.all:
        server.mistake, server.mistakes_at = InternalFault("a mistake"), (CreateTablets,)
    cast(ScriptedServers, office.servers).taken_out = ("s3",)
    with pytest.raises(InternalFault, match="a mistake"):
        office.run(office.master.replace_lost())
    for server in office.all:
        server.mistake = None
    office.run(office.master.tend())
    assert {each.server for each in office.master.maps.of_table(table)} == {"s1", "s2"}
    assert gaps(office.master, office.catalog) == []


def test_who_drops_a_table_is_told_nothing_of_another_that_is_forgotten_meanwhile(office: Office) -> None:
    first, second = office.create("first"), office.create("second")
    office.run(office.master.drop(TableName.parse("first"), if_exists=False))
    office.run(asyncio.sleep(SETTINGS.grace_s + 1))
    for server in office.all:
        server.mistake, server.mistakes_at = Corruption("torn", "a file"), (DeleteTablets,)
    office.run(office.master.drop(TableName.parse("second"), if_exists=False))
    assert second in office.catalog.latest.dropped
    assert failures(office) == [(f"forgetting table {first}", "Corruption: a file: torn")]


# -- what was replaced


@pytest.mark.parametrize("is_made", [True, False])
def test_a_replaced_tablet_that_is_made_late_is_deleted_soon(office: Office, *, is_made: bool) -> None:
    """Neither the request to make it nor the one to delete it was answered."""
    office.server.minds = CreateTablets | DeleteTablets  # type: ignore[assignment]
    office.server.moods = ["lost", "lost"]
    table = office.create("t", b"g", b"p")
    (replaced,) = [each for each in office.run(read_tablets(office.store)) if each.phase is TabletPhase.REPLACED]
    if is_made:
        late = office.server.fresh(replaced.tablet, table, replaced.rows)
        office.server.tablets[late.tablet] = late
    office.run(office.master.tend())
    assert replaced.tablet not in office.server.tablets
    assert office.server.asked[-1] == DeleteTablets((replaced.tablet,)), "one that comes later yet is not made"
    assert {each.phase for each in office.run(read_tablets(office.store))} == {TabletPhase.RUNNING}
    assert not office.master.has_work
