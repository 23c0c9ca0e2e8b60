"""Writes of rows that several shards have: each shard is sent its part, all at once, and each part in its order.

Of a part that was refused nothing happened: it is sent again, cut anew if the routes proved wrong, until the deadline.
What is durable then cannot be taken back, and need not be a beginning of what was written: so if it is some and not
all, the caller is told UnknownOutcome and how much there is, never PartialWrite.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

from stelae.client.calls.lanes import HalfRefused
from stelae.client.calls.retries import Attempts
from stelae.model.errors import (
    ClockTooFarAhead,
    DiskFull,
    PartialWrite,
    Retryable,
    StaleSchema,
    StelaeError,
    UnknownOutcome,
)
from stelae.model.ids import Txn
from stelae.service.blocks import OrderedBlock, blocks_behind

Parts: TypeAlias = Mapping[str, Sequence[OrderedBlock]]
"""Blocks, by the shard that has their rows."""

Outcomes: TypeAlias = Mapping[str, Txn | StelaeError]
"""What became of each shard's part."""


class PartsWritten:
    """What became of the parts of one write so far."""

    def __init__(self, blocks: Sequence[OrderedBlock]) -> None:
        self._count = sum(block.count for block in blocks)
        self._durable = 0
        self._newest = Txn(0)
        self.left: Sequence[OrderedBlock] = blocks
        """What is to be sent, or sent again."""

    @property
    def newest(self) -> Txn:
        """The largest txn of what is durable."""
        return self._newest

    def take(self, parts: Parts, outcomes: Outcomes) -> StelaeError | None:
        """Note what became of the parts. None: all that was left is durable. What is Retryable, or PartialWrite: try
        again what is left now. Any other error ends the write."""
        left: list[OrderedBlock] = []
        errors: list[StelaeError] = []
        for shard, outcome in outcomes.items():
            part = parts[shard]
            if not isinstance(outcome, StelaeError):
                self._newest = max(self._newest, outcome)
                self._durable += sum(block.count for block in part)
                continue
            behind = outcome.durable if isinstance(outcome, PartialWrite) else 0
            self._durable += behind
            left += blocks_behind(part, behind)
            errors.append(outcome)
        self.left = left
        return min(errors, key=_rank, default=None)

    def delay_s(self, error: StelaeError, attempts: Attempts) -> float:
        """How long to wait before what is left is sent again; the error, if that is of no use, or not done here."""
        if not self._durable or not may_repeat(error):
            raise error
        return attempts.delay_s(error)

    def tell(self, error: StelaeError) -> StelaeError:
        """What to raise in the end, if the last thing that was said is this."""
        if not self._durable:
            return error  # whoever is told StaleSchema makes all of it anew, and writes all of it again
        others = "the others may be" if isinstance(error, UnknownOutcome) else "nothing happened of the others"
        kind = UnknownOutcome if isinstance(error, UnknownOutcome | Retryable) else HalfRefused
        if isinstance(error, DiskFull | ClockTooFarAhead):
            kind = HalfRefused  # it takes people to mend that
        return kind(f"{self._durable} of {self._count} records are durable, {others}: {error}")


def _rank(error: StelaeError) -> int:
    """Of errors of several parts the one that counts has the lowest: what leaves the most open comes first."""
    if isinstance(error, UnknownOutcome):
        return 0
    if isinstance(error, StaleSchema):
        return 2
    return 3 if may_repeat(error) else 1


def may_repeat(error: StelaeError) -> bool:
    """Whether what is left may be written by asking again with nothing changed."""
    if isinstance(error, PartialWrite):
        return bool(error.durable)
    return isinstance(error, Retryable) and not isinstance(error, StaleSchema)


def write_parts(
    blocks: Sequence[OrderedBlock],
    cut: Callable[[Sequence[OrderedBlock]], Parts],
    send: Callable[[Parts], Outcomes],
    attempts: Attempts,
    pause: Callable[[float], None],
) -> Txn:
    """Send parts until all are durable; return the largest txn. While none is, whoever asks tries again."""
    written = PartsWritten(blocks)
    try:
        while True:
            try:
                parts = cut(written.left)
                error = written.take(parts, send(parts))
            except Retryable as failed:
                error = failed
            if error is None:
                return written.newest
            pause(written.delay_s(error, attempts))
    except StelaeError as last:
        told = written.tell(last)
        if told is last:
            raise
        raise told from last


async def write_parts_on_loop(
    blocks: Sequence[OrderedBlock],
    cut: Callable[[Sequence[OrderedBlock]], Awaitable[Parts]],
    send: Callable[[Parts], Awaitable[Outcomes]],
    attempts: Attempts,
) -> Txn:
    """`write_parts` for an event loop."""
    written = PartsWritten(blocks)
    try:
        while True:
            try:
                parts = await cut(written.left)
                error = written.take(parts, await send(parts))
            except Retryable as failed:
                error = failed
            if error is None:
                return written.newest
            await asyncio.sleep(written.delay_s(error, attempts))
    except StelaeError as last:
        told = written.tell(last)
        if told is last:
            raise
        raise told from last
