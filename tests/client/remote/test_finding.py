"""Which of several addresses is connected to: who says nothing is given up soon, and is the last to be tried again."""

from __future__ import annotations

import pytest

from stelae.adapters.clock import SystemClock
from stelae.client.remote.cluster.masters import AnyMaster
from stelae.client.remote.finding import SILENCE_S, AnyConnector
from stelae.model.errors import ConnectionLost, DeadlineExceeded, Unavailable
from stelae.ports.blocking import BlockingConnection
from stelae.ports.transport import Frame, FrameKind
from stelae.registry.control_operations import PLACES, ClusterPlaces
from stelae.service.deadlines import Deadline
from stelae.wire.hello import HELLO_ID, PROTOCOL_MAX, PROTOCOL_MIN, Hello, hello_frame

CLOCK = SystemClock()
THEIRS = Hello(PROTOCOL_MIN, PROTOCOL_MAX, "1", "store", "master")
OURS = Hello(PROTOCOL_MIN, PROTOCOL_MAX, "1", "", "client")


class Masters:
    """Those that are stopped let anybody connect, and say nothing. `waits`: how long each was waited for."""

    def __init__(self) -> None:
        self.stopped: set[str] = set()
        self.away: set[str] = set()
        self.waits: list[tuple[str, float | None]] = []
        self.asked: list[str] = []

    def connector(self, address: str) -> Connector:
        return Connector(self, address)


class Connector:
    def __init__(self, masters: Masters, address: str) -> None:
        self._masters = masters
        self.address = address

    def connect(self, timeout_s: float | None) -> BlockingConnection:
        if self.address in self._masters.away:
            raise Unavailable(f"{self.address}: nobody listens there")
        return Connected(self._masters, self.address)


class Connected:
    def __init__(self, masters: Masters, peer: str) -> None:
        self._masters = masters
        self._last: Frame | None = None
        self.peer = peer
        self.is_closed = False

    def send(self, frame: Frame, timeout_s: float | None) -> None:
        self._last = frame

    def receive(self, timeout_s: float | None) -> Frame | None:
        self._masters.waits.append((self.peer, timeout_s))
        if self.peer in self._masters.stopped:
            raise DeadlineExceeded(f"{self.peer}: nothing came")
        assert self._last is not None
        if self._last.request_id == HELLO_ID:
            return hello_frame(THEIRS, FrameKind.ANSWER)
        self._masters.asked.append(self.peer)
        body = PLACES.result.encode(ClusterPlaces("store", (), self.peer))
        return Frame(FrameKind.ANSWER, self._last.request_id, body=bytes(body))

    def is_quiet(self) -> bool:
        return not self.is_closed

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def masters() -> Masters:
    return Masters()


def until(seconds: float = 30.0) -> Deadline:
    return Deadline(CLOCK, seconds)


def any_of(masters: Masters, *addresses: str) -> AnyMaster:
    return AnyMaster(AnyConnector(addresses, masters.connector, CLOCK, is_brief=True), OURS, CLOCK)


def test_one_that_is_stopped_when_it_is_connected_to_is_passed_over_within_the_call(masters: Masters) -> None:
    masters.stopped = {"a"}
    asker = any_of(masters, "a", "b")
    assert asker.ask(PLACES, until()).master == "b"
    first, seconds = masters.waits[0]
    assert first == "a"
    assert seconds is not None
    assert seconds <= SILENCE_S
    masters.waits.clear()
    asker.lines.close()
    assert "a" not in [peer for peer, _ in masters.waits]


def test_one_that_is_stopped_later_is_passed_over_within_the_call(masters: Masters) -> None:
    asker = any_of(masters, "a", "b")
    assert asker.ask(PLACES, until()).master == "a"
    masters.stopped = {"a"}
    assert asker.ask(PLACES, until()).master == "b"
    masters.waits.clear()
    assert asker.ask(PLACES, until()).master == "b"
    assert {peer for peer, _ in masters.waits} == {"b"}, "the other is not tried again while this one answers"


def test_connections_to_one_that_is_silent_are_not_used_again(masters: Masters) -> None:
    asker = any_of(masters, "a", "b")
    lines = [asker.lines.take(until()) for _ in range(3)]
    for line in lines:
        asker.lines.give(line)
    masters.stopped, masters.waits = {"a"}, []
    assert asker.ask(PLACES, until()).master == "b"
    assert [peer for peer, _ in masters.waits].count("a") == 1, "not once for each connection"


def test_there_is_time_for_the_next_even_if_there_is_little(masters: Masters) -> None:
    masters.stopped = {"a"}
    assert any_of(masters, "a", "b").ask(PLACES, until(0.5)).master == "b"
    (_, seconds), *_ = masters.waits
    assert seconds is not None
    assert seconds <= 0.25


def test_where_all_are_silent_each_is_given_more_time_until_one_answers(masters: Masters) -> None:
    masters.stopped = {"a", "b"}
    asker = any_of(masters, "a", "b")
    for _ in range(2):
        with pytest.raises(ConnectionLost, match="it does not answer"):
            asker.ask(PLACES, until(1_000))
    waits = [(peer, round(seconds or 0.0)) for peer, seconds in masters.waits]
    assert waits == [("a", 2), ("b", 4), ("a", 5), ("b", 5)], "a connection is made within 10 s, of which each has half"
    masters.stopped, masters.waits = set(), []
    assert asker.ask(PLACES, until()).master == "a"
    masters.stopped = {"a"}
    assert asker.ask(PLACES, until()).master == "b"
    assert masters.waits[2][1] == SILENCE_S, "one answered, so all begin anew"


def test_the_only_one_is_waited_for(masters: Masters) -> None:
    masters.stopped = {"a"}
    asker = any_of(masters, "a")
    with pytest.raises(ConnectionLost):
        asker.ask(PLACES, until(1_000))
    ((_, seconds),) = masters.waits
    assert seconds is not None
    assert seconds > SILENCE_S


def test_work_that_may_take_long_is_waited_for_though_there_are_others(masters: Masters) -> None:
    asker = AnyMaster(AnyConnector(["a", "b"], masters.connector, CLOCK), OURS, CLOCK)
    assert asker.ask(PLACES, until(1_000)).master == "a"
    _, seconds = masters.waits[-1]
    assert seconds is not None
    assert seconds > 900


def test_who_does_not_listen_is_passed_over(masters: Masters) -> None:
    masters.away = {"a"}
    assert any_of(masters, "a", "b").ask(PLACES, until()).master == "b"
    masters.away = {"a", "b"}
    with pytest.raises(Unavailable, match="nobody listens there"):
        any_of(masters, "a", "b").ask(PLACES, until())
