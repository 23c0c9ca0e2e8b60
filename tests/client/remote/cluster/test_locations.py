"""What a program knows of where tables are: asked for once, and again when it proved wrong."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any, cast

import pytest

from stelae.adapters.clock import SystemClock
from stelae.client.remote.changes import ChangesUnderWay
from stelae.client.remote.cluster.locations import Locations
from stelae.client.remote.cluster.routing import Routing
from stelae.model.errors import ConnectionLost, DeadlineExceeded, NotFound, StelaeError
from stelae.model.ids import Row, TableId
from stelae.registry.control_operations import TableLocation
from stelae.service.deadlines import Deadline
from tests.effort import HANG_S

TABLE = TableId(16)
OLD = TableLocation(TABLE, ((Row(b""), "n1/0"),), ())
NEW = TableLocation(TABLE, ((Row(b""), "n1/1"),), ())


class Master:
    """Answers with what it was given, in order."""

    def __init__(self, *answers: TableLocation | StelaeError) -> None:
        self.answers = list(answers)
        self.deadlines: list[Deadline] = []

    def __call__(self, table: TableId, deadline: Deadline) -> TableLocation:
        assert table == TABLE
        self.deadlines.append(deadline)
        answer = self.answers.pop(0)
        if isinstance(answer, StelaeError):
            raise answer
        return answer


@pytest.fixture
def until() -> Deadline:
    return Deadline(SystemClock(), HANG_S)


def test_a_master_is_asked_once(until: Deadline) -> None:
    locations = Locations(Master(OLD))
    assert locations.known(TABLE) is None
    found = locations.find(TABLE, until)
    assert found.servers == ("n1/0",)
    assert locations.find(TABLE, until) is found
    assert locations.known(TABLE) is found


def test_what_proved_wrong_is_asked_for_again(until: Deadline) -> None:
    locations = Locations(Master(OLD, NEW))
    old = locations.find(TABLE, until)
    locations.doubt(TABLE, old)
    assert locations.known(TABLE) is None
    new = locations.find(TABLE, until)
    assert new.servers == ("n1/1",)
    locations.doubt(TABLE, old)
    assert locations.find(TABLE, until) is new, "who found out late doubts nothing that is newer"


def test_while_no_master_answers_what_was_known_is_used(until: Deadline) -> None:
    master = Master(OLD, ConnectionLost("no master"), ConnectionLost("no master"), NEW)
    locations = Locations(master)
    old = locations.find(TABLE, until)
    locations.doubt(TABLE, old)
    assert locations.find(TABLE, until) is old
    assert locations.find(TABLE, until) is old, "each time a master is asked first"
    assert master.deadlines[-1].until_s < until.until_s, "and some time is left for the shard"
    assert locations.find(TABLE, until).servers == ("n1/1",)


@pytest.mark.parametrize("known", [True, False])
def test_a_table_that_is_gone_is_gone(until: Deadline, known: bool) -> None:
    locations = Locations(Master(*([OLD] if known else []), NotFound("it was dropped")))
    if known:
        locations.doubt(TABLE, locations.find(TABLE, until))
    with pytest.raises(NotFound, match="dropped"):
        locations.find(TABLE, until)


def test_without_any_answer_the_reason_is_told(until: Deadline) -> None:
    with pytest.raises(ConnectionLost, match="no master"):
        Locations(Master(ConnectionLost("no master"))).find(TABLE, until)


class SlowMaster:
    """Answers when it may."""

    def __init__(self) -> None:
        self.begun, self.go = Event(), Event()
        self.asked = 0

    def __call__(self, _: TableId, __: Deadline) -> TableLocation:
        self.asked += 1
        self.begun.set()
        assert self.go.wait(HANG_S)
        return OLD


def test_those_who_ask_at_once_wait_for_one_answer(until: Deadline) -> None:
    master = SlowMaster()
    locations = Locations(master)
    with ThreadPoolExecutor(8) as pool:
        found = [pool.submit(locations.find, TABLE, until) for _ in range(8)]
        assert master.begun.wait(HANG_S)
        master.go.set()
        assert len({id(each.result(HANG_S)) for each in found}) == 1
    assert master.asked == 1


def test_who_has_no_time_does_not_wait_for_others(until: Deadline) -> None:
    master = SlowMaster()
    locations = Locations(master)
    with ThreadPoolExecutor(1) as pool:
        patient = pool.submit(locations.find, TABLE, until)
        assert master.begun.wait(HANG_S)
        with pytest.raises(DeadlineExceeded, match="nobody said in time"):
            locations.find(TABLE, Deadline(SystemClock(), 0.01))
        master.go.set()
        assert patient.result(HANG_S).servers == ("n1/0",)


def test_not_all_tables_that_were_ever_asked_for_are_remembered(until: Deadline) -> None:
    asked: list[TableId] = []

    def locate(table: TableId, _: Deadline) -> TableLocation:
        asked.append(table)
        return TableLocation(table, OLD.tablets, ())

    locations = Locations(locate)
    for number in range(1_001):
        locations.find(TableId(number), until)
    assert locations.known(TableId(0)) is None
    assert locations.known(TableId(1_000)) is not None
    assert len(asked) == 1_001


def test_who_is_silent_has_moved_when_a_master_says_that_another_has_its_rows(until: Deadline) -> None:
    locations = Locations(Master(OLD, OLD, ConnectionLost("nobody listens there"), NEW))
    routing = Routing(locations, cast(Any, None), cast(Any, None), ChangesUnderWay("c"), lambda _: until, Event.wait)
    assert not routing.has_moved("n1/0", until), "nothing is known of it"
    locations.find(TABLE, until)
    assert not routing.has_moved("n1/0", until), "it has them still"
    assert not routing.has_moved("n1/0", until), "no master says anything"
    assert routing.has_moved("n1/0", until)
    assert not routing.has_moved("n1/0", until), "nobody asks it any more"
    found = locations.known(TABLE)
    assert found is not None
    assert found.servers == ("n1/1",)
