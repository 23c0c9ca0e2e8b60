"""Whoever is silent is waited for, unless another has its rows by now: on connections of threads and of event loops."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from stelae.adapters.clock import SystemClock
from stelae.client.remote.cluster import silence
from stelae.client.remote.cluster.silence import SilentPeers
from stelae.client.remote.lines import Line, Lines, LineSettings
from stelae.model.errors import ConnectionLost, DeadlineExceeded
from stelae.ports.transport import Frame, FrameKind, RequestId
from stelae.service.deadlines import Deadline
from stelae.wire.handshake import introduce
from stelae.wire.hello import PROTOCOL_MAX, PROTOCOL_MIN, Hello

ANSWER = Frame(FrameKind.ANSWER, RequestId(1), "", b"")
HELLO = introduce(Hello(PROTOCOL_MIN, PROTOCOL_MAX, "1", "store", "test"))


class SilentLine:
    """Answers the n-th time it is waited for; None: never."""

    peer = "shard a/0"
    is_broken = False

    def __init__(self, answers_at: int | None) -> None:
        self.waits: list[float] = []
        self._answers_at = answers_at

    def receive(self, timeout_s: float) -> Frame:
        self.waits.append(timeout_s)
        if len(self.waits) == self._answers_at:
            return ANSWER
        raise DeadlineExceeded("it did not answer")


def receive(line: SilentLine, wait_s: float, *moved: bool) -> tuple[Frame, int]:
    """What comes, and how often somebody was asked whether it has moved."""
    said = list(moved)

    def has_moved(peer: str, deadline: Deadline) -> bool:
        assert peer == SilentLine.peer
        assert deadline.left_s <= 2.0
        return said.pop(0)

    lines = Lines(cast(Any, None), HELLO, LineSettings(silence_s=2.0), has_moved=has_moved)
    frame = lines.receive(cast(Line, line), wait_s, Deadline(SystemClock(), wait_s))
    return frame, len(moved) - len(said)


def test_who_is_slow_and_has_not_moved_is_waited_for() -> None:
    line = SilentLine(answers_at=3)
    assert receive(line, 30.0, False, False) == (ANSWER, 2)
    assert line.waits == [2.0, 2.0, 2.0]
    assert not line.is_broken


def test_who_has_moved_is_not_waited_for_and_its_connection_is_not_used_again() -> None:
    line = SilentLine(answers_at=None)
    with pytest.raises(ConnectionLost, match="shard a/0: it is silent, and another has its place by now"):
        receive(line, 30.0, False, True)
    assert line.waits == [2.0, 2.0]
    assert line.is_broken


def test_nobody_waits_longer_than_was_said_and_short_waits_ask_nobody() -> None:
    line = SilentLine(answers_at=None)
    with pytest.raises(DeadlineExceeded):
        receive(line, 5.0, False, False)
    assert line.waits == [2.0, 2.0, 1.0]
    line = SilentLine(answers_at=None)
    with pytest.raises(DeadlineExceeded):
        receive(line, 1.5)
    assert line.waits == [1.5]


class FakeWire:
    heard = 0
    why = ""

    def give_up(self, why: str) -> None:
        self.why = why


class FakePeer:
    def __init__(self) -> None:
        self.awaited: FakeWire | None = FakeWire()


class FakeRouting:
    def __init__(self) -> None:
        self.moved: set[str] = set()
        self.asked: list[str] = []

    def until(self, _: None) -> Deadline:
        return Deadline(SystemClock(), 10.0)

    def has_moved(self, shard: str, _: Deadline) -> bool:
        self.asked.append(shard)
        return shard in self.moved


def test_of_many_peers_only_the_one_that_is_silent_and_has_moved_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "SILENCE_S", 0.01)

    async def play() -> None:
        routing = FakeRouting()
        peers = {name: FakePeer() for name in ("busy", "slow", "stopped", "idle")}
        wires = {name: cast(FakeWire, peer.awaited) for name, peer in peers.items()}
        peers["idle"].awaited = None
        routing.moved = {"stopped", "busy", "idle"}
        watched = SilentPeers(cast(Any, peers), cast(Any, routing))
        watched.watch()
        while not wires["stopped"].why or "slow" not in routing.asked:
            wires["busy"].heard += 1
            await asyncio.sleep(0)
        assert "silent" in wires["stopped"].why
        assert [name for name, wire in wires.items() if wire.why] == ["stopped"]
        assert set(routing.asked) <= {"slow", "stopped"}
        watched.close()

    asyncio.run(play())


def test_when_nothing_is_under_way_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "SILENCE_S", 0.0)

    async def play() -> None:
        routing, peer = FakeRouting(), FakePeer()
        peer.awaited = None
        watched = SilentPeers(cast(Any, {"idle": peer}), cast(Any, routing))
        watched.watch()
        for _ in range(5):
            await asyncio.sleep(0.001)
        assert watched._timer is None
        assert not routing.asked

    asyncio.run(play())
