"""One replica of a tablet: a config, and the records of the tablet that the config's files do not hold.

A leader has one beside the tablet's state, a follower has nothing else: it inserts nothing anywhere. Whoever takes over
makes the state of the config and replays the records (`opening`).

- A record has a *place*, (epoch, index). Two replicas that have a record at the same place have the same bytes there,
  and the same before it.
- What a leader sends names the place before its first record. A replica takes it if it has a record there, too; what
  it has behind that and the leader has not, was never acknowledged, and is cut.
- A replica follows no leader of a smaller epoch than one that it has followed.
- A CONFIG is a record like any other. When every replica has it, it takes the place of the config before it, and the
  records that its files hold are needed no more.

Plain values in, decisions out; the caller holds the shard's lock, and writes to the log what was decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from stelae.format.log.copies import ReplicaKept, copy_record, record_of
from stelae.format.log.positions import POSITION_MAX, Position
from stelae.format.log.records import NO_INDEX, LogKind, LogRecord
from stelae.model.errors import Corruption
from stelae.model.ids import Epoch, Index, TableId, TabletId
from stelae.storage.tablet.config import TabletConfig, decode_config


class Place(NamedTuple):
    """Of a record among those of its tablet. Places of one tablet compare: the greater has all that counts."""

    epoch: Epoch
    index: Index  # type: ignore[assignment]  # nobody looks for the place of a part in it


NOWHERE = Place(Epoch(0), NO_INDEX)


class Stale(msgspec.Struct, frozen=True):
    """The leader is of an older epoch than this one, which the replica follows."""

    epoch: Epoch


class Gap(msgspec.Struct, frozen=True):
    """The replica lacks what comes before, or has something else there: send what follows `last`."""

    last: Place


class Taking(msgspec.Struct, frozen=True):
    """`cut`: forget what has a greater index; None: nothing has. `records`: those that are new here. `matched`: up to
    which index the replica has what its leader has, once they are durable."""

    cut: Index | None
    records: Sequence[LogRecord]
    matched: Index


class Replica:
    """See the module. `promised`: the greatest epoch that it has followed. `begin`: the place of the last record that
    the config's files hold. `committed`: all replicas have the records up to this index."""

    def __init__(
        self, table: TableId, tablet: TabletId, config: bytes, begin: Place = NOWHERE, promised: Epoch = NOWHERE.epoch
    ) -> None:
        self.table = table
        self.tablet = tablet
        self.encoded = config
        self.config: TabletConfig = decode_config(config, f"the config of tablet {tablet}")
        self.begin = begin
        self.promised = promised
        self.committed = begin.index
        self.tail: list[LogRecord] = []
        self._positions: list[Position] = []
        self._configs: list[Index] = []
        self._base_position = POSITION_MAX
        self._base_index = NO_INDEX
        self.is_unwritten = False
        """The disk has refused something of it: it is to be written down whole before anything is said of it."""
        self.may_lack = False
        """The log had lost its end when it was opened: what was acknowledged may be missing. It is whole again when it
        has all that a leader calls committed, and when it is chosen to lead, by whoever knows what the others have."""

    # -- what it has

    @property
    def last(self) -> Place:
        return Place(self.tail[-1].epoch, self.tail[-1].index) if self.tail else self.begin

    @property
    def log_from(self) -> Position:
        """From where on its log is needed."""
        return min(self._base_position, self._positions[0]) if self._positions else self._base_position

    @property
    def config_indexes(self) -> tuple[Index, ...]:
        """Of the configs that not all replicas are known to have, and of the one that counts now."""
        return (self._base_index, *self._configs)

    def place_at(self, index: Index) -> Place | None:
        """None: no such record is here any more, or yet."""
        if index == self.begin.index:
            return self.begin
        at = index - self.begin.index - 1
        return Place(self.tail[at].epoch, index) if 0 <= at < len(self.tail) else None

    def after(self, index: Index, bytes_max: int) -> list[LogRecord]:
        """The records behind an index, as many as fit; one at least, if there is any."""
        found: list[LogRecord] = []
        for record in self.tail[max(0, index - self.begin.index) :]:
            bytes_max -= len(record.payload)
            if found and bytes_max < 0:
                break
            found.append(record)
        return found

    def files(self) -> frozenset[str]:
        """Those of its config, and of every config that may take the place of it."""
        later = [self.tail[index - self.begin.index - 1] for index in self._configs if index > self.begin.index]
        where = f"a config of tablet {self.tablet}"
        return self.config.files().union(*(decode_config(bytes(each.payload), where).files() for each in later))

    # -- what a leader sends

    def judge(self, epoch: Epoch, prev: Place, records: Sequence[LogRecord]) -> Taking | Stale | Gap:
        """What becomes of records that a leader sends behind a place. They are in order and without a gap."""
        if epoch < self.promised:
            return Stale(self.promised)
        for at, record in enumerate(records):
            if record.index != prev.index + 1 + at or not prev.epoch <= record.epoch <= epoch:
                raise Corruption(
                    f"record {record.index} of tablet {self.tablet} is out of its place", "a copy of a log"
                )
        known = [record for record in records if record.index <= self.begin.index]
        if known:  # files hold them: they are the same
            prev, records = Place(known[-1].epoch, known[-1].index), records[len(known) :]
        if prev.index < self.begin.index:
            return Taking(None, (), prev.index)
        if self.place_at(prev.index) != prev:
            return Gap(self._last_before(prev))
        same = 0
        for record in records:
            if self.place_at(record.index) != (record.epoch, record.index):
                break
            same += 1
        new = records[same:]
        cut = Index(new[0].index - 1) if new and new[0].index <= self.last.index else None
        return Taking(cut, new, Index(prev.index + len(records)))

    def _last_before(self, prev: Place) -> Place:
        """The last record here that a leader may have, which has another one at a place, or none."""
        for record in reversed(self.tail):
            if record.index < prev.index and record.epoch <= prev.epoch:
                return Place(record.epoch, record.index)
        return self.begin

    # -- what was decided, once it is in the log's queue

    def promise(self, epoch: Epoch) -> None:
        self.promised = max(self.promised, epoch)

    def note_kept(self, position: Position) -> None:
        """Everything lies in the log, in one record at or behind a position."""
        self._base_position = position
        self._positions = [position] * len(self.tail)

    def take(self, record: LogRecord, position: Position) -> None:
        """A record that follows the last one; it lies in the log at or behind the position."""
        if record.index != self.last.index + 1:
            raise Corruption(f"tablet {self.tablet}: record {record.index} follows record {self.last.index}", "the log")
        self.tail.append(record)
        self._positions.append(position)
        if record.kind is LogKind.CONFIG:
            self._configs.append(record.index)

    def cut(self, kept: Index) -> list[LogRecord]:
        """Forget what has a greater index. Corruption if all replicas had it."""
        if kept < self.committed:
            raise Corruption(
                f"tablet {self.tablet}: a leader wants records above {kept} to be forgotten, and those up to "
                f"{self.committed} were acknowledged",
                "the log",
            )
        return self._forget(kept)

    def lose(self, kept: Index) -> None:
        """The disk refused what has a greater index. It may have been acknowledged by others: whoever leads sends it
        again."""
        self.committed = Index(max(self.begin.index, min(self.committed, kept)))
        self._forget(Index(max(self.begin.index, kept)))

    def _forget(self, kept: Index) -> list[LogRecord]:
        at = kept - self.begin.index
        gone = self.tail[at:]
        del self.tail[at:], self._positions[at:]
        self._configs = [index for index in self._configs if index <= kept]
        return gone

    def commit(self, index: Index) -> bool:
        """All replicas have the records up to an index, or to the last one here. Whether another config counts now."""
        self.committed = max(self.committed, min(index, self.last.index))
        decided = [each for each in self._configs if each <= self.committed]
        if not decided:
            return False
        self._configs = self._configs[len(decided) :]
        at = decided[-1] - self.begin.index - 1
        self._rebase(self.tail[at])
        return True

    def _rebase(self, record: LogRecord) -> None:
        """A config counts: what its files hold goes. The log is read from where the replica was last written down
        whole, so that place is needed until it is again."""
        self.encoded = bytes(record.payload)
        self.config = decode_config(self.encoded, f"a config of tablet {self.tablet}")
        self._base_index = record.index
        stable = min(self.config.stable, record.index)
        place = self.place_at(stable)
        if place is not None and stable > self.begin.index:
            gone = stable - self.begin.index
            del self.tail[:gone], self._positions[:gone]
            self.begin = place

    # -- as one value

    def kept(self) -> ReplicaKept:
        records = tuple(copy_record(record) for record in self.tail)
        return ReplicaKept(self.promised, self.begin, self.committed, self.encoded, records)

    def begun(self) -> ReplicaKept:
        """As a value that has no records: what is at the beginning of its tail."""
        return ReplicaKept(self.promised, self.begin, self.begin.index, self.encoded, ())


def replica_from(kept: ReplicaKept, table: TableId, tablet: TabletId, position: Position) -> Replica:
    """Corruption if the records are not what was written."""
    replica = Replica(table, tablet, kept.config, Place(*kept.begin), kept.epoch)
    for copy in kept.records:
        replica.take(record_of(copy, table, tablet), position)
    replica.note_kept(position)
    replica.commit(kept.committed)
    return replica
