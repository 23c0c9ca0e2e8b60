"""The number of a write, by which a store knows it again when it comes a second time because its answer was lost.

A program has as many *lanes* as it has writes under way at once. A lane is a random id that no other has (`client`),
and numbers the calls that go along it, one after the other: the next begins when the one before has ended. The number
of what is written, 63 bits, says which call it is of, which block of the call, and where in the block it begins:

    call 23 bits | block 16 bits | place 24 bits

A part of a block, cut off where tablets end, therefore has a number of its own, and it does not matter who cuts blocks,
how often, and where: what is done are places of a block.
"""

from __future__ import annotations

from typing import NamedTuple

from stelae.model.ids import ClientId, Sequence

PLACE_BITS = 24
BLOCK_BITS = 16
CALL_BITS = 23

PLACES_MAX = 1 << PLACE_BITS
BLOCKS_MAX = 1 << BLOCK_BITS
CALLS_MAX = 1 << CALL_BITS

WINDOW_MS = 600_000
"""So long after it was first sent, a write is known again. It is not let in later than that: whether it is done might
be forgotten."""


class Once(NamedTuple):
    """`age_ms`: how long ago the write was first sent, if it may have happened since; 0: it has not."""

    client: ClientId
    sequence: Sequence
    age_ms: int = 0

    def behind(self, places: int) -> Once:
        """Of what is left of a block without its first so many places."""
        return self._replace(sequence=Sequence(self.sequence + places))


def sequence_of(call: int, block: int) -> Sequence:
    """The number of a whole block of a call."""
    return Sequence((call << BLOCK_BITS | block) << PLACE_BITS)


def call_of(sequence: Sequence) -> int:
    return sequence >> (BLOCK_BITS + PLACE_BITS)


def block_of(sequence: Sequence) -> int:
    return sequence >> PLACE_BITS & (BLOCKS_MAX - 1)


def place_of(sequence: Sequence) -> int:
    return sequence & (PLACES_MAX - 1)
