"""Numbers for writes (`model.once`), so that one whose answer was lost is sent again and happens once.

Writes to a store in this process have none: their answers cannot be lost. Of any other, a call takes a lane when it
first writes, and gives it back when it ends. What is tried again has the number that it had, wherever its rows are by
then, and in whichever blocks it is made anew because the table was altered.

A write is *in doubt* from the moment its outcome was unknown until it is answered: with success, or with a refusal
that will be the same whenever the first try arrives. A call that ends in doubt, however it ends, ends as unknown.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from stelae.client.calls.steps import Write
from stelae.model.errors import (
    Conflict,
    PartialWrite,
    Retryable,
    SnapshotTooOld,
    StelaeError,
    UnknownOutcome,
)
from stelae.model.ids import ClientId
from stelae.model.once import BLOCKS_MAX, CALLS_MAX, PLACES_MAX, Once, sequence_of
from stelae.ports.clock import Clock
from stelae.ports.rng import Rng
from stelae.service.blocks import OrderedBlock

_CLIENT_MAX = 2**63 - 1
_FINAL = (Conflict, SnapshotTooOld)
"""Refusals that stay what they are: a row that has changed since will always have. WouldBeHidden is none: a time that
lies ahead is soon over, and an earlier try may be let in then."""


class Lane:
    """`calls`: how many it has numbered."""

    __slots__ = ("calls", "client")

    def __init__(self, client: ClientId) -> None:
        self.client = client
        self.calls = 0


class Lanes:
    """Those of one session. Safe for threads: what a list does in one step needs no lock."""

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        self._free: list[Lane] = []

    def take(self) -> Lane:
        try:
            return self._free.pop()
        except IndexError:
            return Lane(ClientId(1 + self._rng.below(_CLIENT_MAX)))

    def give(self, lane: Lane) -> None:
        if lane.calls < CALLS_MAX - 1:
            self._free.append(lane)


class Numbering:
    """The numbers of one call, and whether it is in doubt."""

    __slots__ = ("_clock", "_doubt", "_lane", "_lanes", "_sent", "_since_s")

    def __init__(self, lanes: Lanes, clock: Clock) -> None:
        self._lanes = lanes
        self._clock = clock
        self._lane: Lane | None = None
        self._sent: Sequence[OrderedBlock] = ()
        self._since_s = 0.0
        self._doubt: UnknownOutcome | None = None

    @property
    def is_in_doubt(self) -> bool:
        return self._doubt is not None

    def number(self, step: Write) -> None:
        """Before a step is tried: give its blocks their numbers, or say how old they are. UnknownOutcome if they were
        sent in another shape, and may have been written."""
        if step.blocks[0].once is None:
            step.blocks = self._numbered(step.blocks)
        if self._doubt is not None:
            age_ms = max(1, int((self._clock.monotonic_s() - self._since_s) * 1_000))
            step.blocks = [replace(block, once=_aged(block.once, age_ms)) for block in step.blocks]
        self._sent = step.blocks

    def _numbered(self, blocks: Sequence[OrderedBlock]) -> Sequence[OrderedBlock]:
        if self._doubt is not None:
            if [block.count for block in blocks] != [block.count for block in self._sent]:
                raise UnknownOutcome(
                    f"the table was altered meanwhile, and the write may or may not be done: {self._doubt}"
                )
            return [replace(new, once=old.once) for new, old in zip(blocks, self._sent, strict=True)]
        if len(blocks) > BLOCKS_MAX or any(block.count >= PLACES_MAX - 1 for block in blocks):
            return blocks  # too much to be numbered: its outcome may be unknown
        lane = self._lane
        if lane is None or lane.calls >= CALLS_MAX - 1:
            lane = self._lane = self._lanes.take()
        lane.calls += 1
        self._since_s = self._clock.monotonic_s()
        client, calls = lane.client, lane.calls
        return [replace(block, once=Once(client, sequence_of(calls, at))) for at, block in enumerate(blocks)]

    def note_done(self) -> None:
        """The store has answered the write: nothing is in doubt any more."""
        self._doubt = None

    def judge(self, step: Write, error: StelaeError) -> StelaeError:
        """What to wait after, if the step is to be tried again; raises what ends it otherwise."""
        if isinstance(error, UnknownOutcome):
            if error.is_fault or step.blocks[0].once is None:
                raise error  # sent again, it would meet the same mistake until the deadline
            self._doubt = error
            return error
        if isinstance(error, Retryable) and not isinstance(error, step.handles):
            return error
        if isinstance(error, _FINAL):
            self._doubt = None
        raise error

    def told(self, error: StelaeError) -> StelaeError:
        """What the caller is told, if the call ends with an error."""
        if self._doubt is None or isinstance(error, UnknownOutcome):
            return error
        rest = error.args[0] if isinstance(error, PartialWrite) else error
        return UnknownOutcome(f"{self._doubt}; it was sent again, and then: {rest}")

    def end(self) -> None:
        """Let others have the lane. What of it is still on its way is over once the next call has begun."""
        lane, self._lane = self._lane, None
        if lane is not None:
            self._lanes.give(lane)


def _aged(once: Once | None, age_ms: int) -> Once | None:
    return None if once is None else once._replace(age_ms=age_ms)
