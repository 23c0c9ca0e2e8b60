"""Which memory is written to files next: a pure choice by what each holds up.

A memory holds memory, and it holds the log from its first block on: those segments cannot go before it is flushed. The
worst offender by `A * memory + B * log` goes first, once any limit is passed. Of one range of rows the older memory
goes before the younger, so that what files hold of it is always everything up to one txn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stelae.format.log.positions import POSITION_MAX, Position
from stelae.model.ids import TableId, Txn
from stelae.model.ranges import RowRange
from stelae.storage.log.replay import SegmentInfo


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    size_bytes: int
    txn_min: Txn
    rows: RowRange
    is_sealed: bool
    table: TableId = TableId(0)  # noqa: RUF009 - a number
    log_from: Position = POSITION_MAX


@dataclass(frozen=True, slots=True)
class SerializerSettings:
    """`memory_weight` is the A and `log_weight` the B of the rule above."""

    seal_bytes: int = 32 * 2**20
    memory_bytes: int = 128 * 2**20
    log_bytes: int = 512 * 2**20
    memory_weight: float = 1.0
    log_weight: float = 0.25


def log_held(memory: MemoryInfo, segments: Sequence[SegmentInfo]) -> int:
    return sum(segment.size_bytes for segment in segments if segment.has_records and segment.end > memory.log_from)


def choose_memory(
    memories: Sequence[MemoryInfo], segments: Sequence[SegmentInfo], settings: SerializerSettings
) -> int | None:
    """The place of the one to flush; None if there is no need. Sealed ones always go."""
    total = sum(memory.size_bytes for memory in memories)
    held = sum(segment.size_bytes for segment in segments)
    pressed = total > settings.memory_bytes or held > settings.log_bytes
    due = [
        at
        for at, memory in enumerate(memories)
        if pressed or memory.is_sealed or memory.size_bytes >= settings.seal_bytes
    ]
    if not due:
        return None

    def score(at: int) -> tuple[float, int]:
        memory = memories[at]
        return (
            settings.memory_weight * memory.size_bytes + settings.log_weight * log_held(memory, segments),
            -memory.txn_min,
        )

    return oldest_first(memories, max(due, key=score))


def oldest_first(memories: Sequence[MemoryInfo], chosen: int) -> int:
    """What must be flushed before the chosen one can be: the oldest of those that share rows with it, or with one that
    must go before it; itself, if there is none."""
    while True:
        table, rows = memories[chosen].table, memories[chosen].rows
        oldest = min(
            (at for at, memory in enumerate(memories) if memory.table == table and memory.rows.overlaps(rows)),
            key=lambda at: memories[at].txn_min,
        )
        if oldest == chosen:
            return chosen
        chosen = oldest
