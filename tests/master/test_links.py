"""How a master asks a shard: what it says when an answer does not come."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from stelae.catalog.value import CatalogVersion
from stelae.master.links import RemoteServerLink
from stelae.model.errors import (
    ConnectionLost,
    DeadlineExceeded,
    Retryable,
    StelaeError,
    TabletAway,
    Unavailable,
    UnknownOutcome,
    WrongToken,
)
from stelae.model.ids import Row, TableId, TabletId
from stelae.registry.control import AlterTable, ControlRequest, JoinTablets, SplitTablet, TabletReport
from stelae.service.deadlines import Deadline
from stelae.service.operations import Operation
from stelae.sim.clock import SimClock

SPLIT = SplitTablet(TabletId(1), Row(b"m"), TabletId(2), TabletId(3))
JOIN = JoinTablets(TabletId(2), TabletId(3), TabletId(4))
ALTER = AlterTable(TableId(7))
REPORT = TabletReport("n1/0", ())


class ScriptedPeer:
    """`script`: what becomes of each request: an error as it is (it was never sent, or the shard says so), "lost" (no
    answer came), or an answer."""

    def __init__(self, clock: SimClock, script: list[StelaeError | str | TabletReport]) -> None:
        self._clock = clock
        self._script = script
        self.asked: list[ControlRequest] = []

    async def ask(self, operation: Operation[Any, Any], deadline: Deadline, request: ControlRequest, _: int) -> Any:
        self.asked.append(request)
        self._clock.advance(1)
        now = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        if now == "lost":
            raise operation.lost(DeadlineExceeded("not answered"))
        if isinstance(now, StelaeError):
            raise now
        return now


def end_of(request: ControlRequest, *script: StelaeError | str | TabletReport) -> tuple[Any, int]:
    """What comes of it for somebody who waits for five seconds, and how often the shard was asked."""

    async def play() -> tuple[Any, int]:
        clock = SimClock()
        peer: Any = ScriptedPeer(clock, list(script))
        catalog: Any = SimpleNamespace(latest=SimpleNamespace(version=CatalogVersion(3)))
        link = RemoteServerLink("n1/0", peer, catalog, clock, 30.0)
        try:
            found: Any = await link.ask(request, Deadline(clock, 5))
        except StelaeError as error:
            found = type(error)
        assert all(each is request for each in peer.asked), "with the ids that it had at first"
        return found, len(peer.asked)

    return asyncio.run(play())


@pytest.mark.parametrize("request_", [SPLIT, JOIN])
def test_of_a_split_or_join_nobody_is_told_that_nothing_happened_if_that_is_not_known(request_: ControlRequest) -> None:
    """Whoever wanted it would ask for another one, with other ids, at another row perhaps."""
    assert end_of(request_, "lost", REPORT) == (REPORT, 2), "asked again, the shard says what came of it"
    assert end_of(request_, "lost") == (UnknownOutcome, 5)
    assert end_of(request_, "lost", ConnectionLost("nobody there")) == (UnknownOutcome, 5)
    assert end_of(request_, "lost", TabletAway("the old one is not here")) == (UnknownOutcome, 2)


@pytest.mark.parametrize("request_", [SPLIT, JOIN])
def test_a_shard_that_fails_on_a_mistake_of_its_own_is_not_asked_again(request_: ControlRequest) -> None:
    assert end_of(request_, UnknownOutcome("a mistake", is_fault=True)) == (UnknownOutcome, 1)


@pytest.mark.parametrize("request_", [SPLIT, JOIN, ALTER])
def test_what_was_never_sent_or_was_refused_has_not_happened(request_: ControlRequest) -> None:
    assert end_of(request_, ConnectionLost("nobody there")) == (ConnectionLost, 5)
    assert end_of(request_, ConnectionLost("nobody there"), REPORT) == (REPORT, 2)
    assert end_of(request_, TabletAway("not here")) == (TabletAway, 1)


def test_a_shard_that_lets_nobody_in_is_away_for_whoever_asks_what_it_has() -> None:
    """A master asks many at once: that one of them has an expired certificate, say, is nothing to the others."""

    async def refuse(*_: object) -> None:
        raise WrongToken("the two sides do not know the same token")

    async def play() -> None:
        shard: Any = SimpleNamespace(ask=refuse)
        nothing: Any = None
        with pytest.raises(Unavailable, match="shard n1/0 does not say what it has: the two sides do not know"):
            await RemoteServerLink("n1/0", shard, nothing, SimClock(), 30.0).report()

    asyncio.run(play())


def test_what_may_be_asked_again_by_anybody_says_so() -> None:
    kind, asked = end_of(ALTER, "lost")
    assert issubclass(kind, Retryable)
    assert asked == 1
