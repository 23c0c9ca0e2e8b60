"""Which records of a log count for which tablet: the rule that the room's README gives, for the tablets of one table.

It is needed for logs of shards that tablets come to and leave. In a log of blocks, and changes of whole tables, every
record counts, for whichever tablet holds its rows: whoever reads one can leave this out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from stelae.format.log.marks import Dropped, EpochBegun, Hosted, JoinedOfTwo, SplitInTwo, decode_mark
from stelae.format.log.positions import Position
from stelae.format.log.records import NO_INDEX, NO_TABLET, LogKind, LogRecord
from stelae.model.ids import Index, TabletId


class PlacedRecord(NamedTuple):
    """A record, how many of the table came before it, and a position that it lies at or behind."""

    place: int
    begin: Position
    record: LogRecord


class Stays:
    """The tablets of one table, while its records are taken in the order of the log."""

    def __init__(self) -> None:
        self._held: dict[TabletId, list[PlacedRecord]] = {}
        self._of_all: list[PlacedRecord] = []
        """Changes of the table, for tablets that were there all along."""
        self._begun: set[TabletId] = set()
        """Tablets that began in this log, after whatever it holds of others."""
        self._ended: set[TabletId] = set()
        self._last: dict[TabletId, Index] = {}
        self._count = 0

    def take(self, begin: Position, records: Iterable[LogRecord]) -> None:
        for record in records:
            self._count += 1
            self._take(PlacedRecord(self._count, begin, record))

    def counting_for(self, here: Collection[TabletId]) -> dict[TabletId, list[PlacedRecord]]:
        """For each of the tablets that are here now what counts of the log, in its order."""
        unclaimed = [each for tablet, held in self._held.items() if tablet not in here for each in held]
        counting: dict[TabletId, list[PlacedRecord]] = {}
        for tablet in here:
            counting[tablet] = [*self._held.get(tablet, ())]
            if tablet not in self._begun and tablet not in self._ended:
                counting[tablet] += (*self._of_all, *unclaimed)
                counting[tablet].sort(key=lambda each: each.place)
        return counting

    def last_index(self, tablet: TabletId) -> Index:
        """Of the last record of the tablet's own that counts; 0 if the log knows of none."""
        return self._last.get(tablet, NO_INDEX)

    def _take(self, placed: PlacedRecord) -> None:
        record = placed.record
        tablet = record.tablet
        match record.kind:
            case LogKind.BLOCK | LogKind.CHANGE:
                if tablet == NO_TABLET:
                    self._of_all.append(placed)
                    for begun in self._begun:
                        self._held[begun].append(placed)
                elif tablet not in self._ended:
                    self._held.setdefault(tablet, []).append(placed)
                    self._last[tablet] = record.index
            case LogKind.EPOCH if not record.payload:
                return  # of version 1
            case LogKind.EPOCH | LogKind.HOSTED | LogKind.DROPPED | LogKind.SPLIT | LogKind.JOINED:
                self._mark(record)
            case LogKind.CONFIG | LogKind.REPLICA:
                return  # of replicas, which were taken out before

    def _mark(self, record: LogRecord) -> None:
        tablet = record.tablet
        match decode_mark(record):
            case EpochBegun(_, kept):
                held = self._held.get(tablet, [])
                self._held[tablet] = [
                    each for each in held if each.record.tablet != tablet or each.record.index <= kept
                ]
                self._last[tablet] = min(kept, self._last.get(tablet, kept))
            case Hosted(stable, _):
                self._begin(tablet, [], stable)
            case Dropped():
                self._end(tablet)
            case SplitInTwo(_, left, right):
                was_there = tablet not in self._begun and tablet not in self._ended
                for child in (left, right):
                    self._begin(child, [*self._held.get(tablet, ())], NO_INDEX)
                    if was_there:
                        self._begun.discard(child)
                self._end(tablet)
            case JoinedOfTwo(left, right):
                for parent in (left, right):
                    self._end(parent)
                self._begin(tablet, [], NO_INDEX)

    def _begin(self, tablet: TabletId, held: list[PlacedRecord], last: Index) -> None:
        self._ended.discard(tablet)
        self._begun.add(tablet)
        self._held[tablet] = held
        self._last[tablet] = last

    def _end(self, tablet: TabletId) -> None:
        self._held.pop(tablet, None)
        self._begun.discard(tablet)
        self._ended.add(tablet)
        self._last.pop(tablet, None)
