"""What becomes of the writes of a shard: durable, failed, or done already when they come a second time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import Future

from stelae.format.log.positions import Position
from stelae.format.log.records import NO_TABLET, LogKind
from stelae.model.errors import StelaeError
from stelae.model.hybrid import millis_of
from stelae.model.ids import TabletId, Txn
from stelae.model.once import Once
from stelae.storage.log.commits import LogEntry
from stelae.storage.log.futures import all_done
from stelae.storage.memory.memory import Memory
from stelae.storage.replicas.log import ReplicaLog
from stelae.storage.tablet.changes import decode_change, taken_back
from stelae.storage.tablet.config import TabletConfig, config_of
from stelae.storage.tablet.maps import TabletMap
from stelae.storage.tablet.state import TabletState


class Outcomes(ReplicaLog):
    """A part of `storage.shard.Shard`, whose lock, log and tablets these are."""

    name: str
    map: TabletMap
    refused: list[StelaeError]
    _room: list[Future[None]]
    _in_memory_bytes: int

    def install(self, states: Sequence[TabletState], removed: Sequence[TabletId] = ()) -> None:
        """Put states in the place of what they follow. The caller holds the lock."""
        self.map.install(states, removed)

    def memories(self) -> list[Memory]:
        """All that is not in files yet, each once."""
        with self.lock:
            return list({id(m): m for state in self.map.states.values() for m in state.memories}.values())

    def _wake(self) -> None:
        """Tell every writer that waits for room to try again. There may be none yet: then it waits once more."""
        with self.lock:
            waiting, self._room = self._room, []
        for future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_result(None)

    def take_durable(
        self, group: Sequence[LogEntry], upto: Position, undecided: Collection[LogEntry]
    ) -> Sequence[LogEntry]:
        """The log calls it when records are durable, under the shard's lock."""
        if self._room:
            self._wake()
        decided = self.commits.take_durable(group, upto, undecided)
        if self.commits.has_quorums:
            self._note_alone(decided)
        if self.commits.orphans:
            self._fail_orphans()
        return decided

    def take_failed(self, entries: Sequence[LogEntry], error: StelaeError) -> None:
        """The log calls it when records could not be written, under the shard's lock."""
        self.refused.append(error)
        self.commits.take_failed(entries)
        records = [entry.record for entry in entries]
        for record in records:
            if record.kind is LogKind.CHANGE:
                change = decode_change(record.payload, record.txn)
                found = self.map.of_table(record.table)
                states = [state for state in found if record.tablet in (NO_TABLET, state.tablet)]
                self.install([taken_back(state, change, record.txn) for state in states])
            self._note_refused(record)
        txns = {record.txn for record in records}
        for record in (record for record in records if record.client):
            for each in self.map.of_table(record.table):
                each.commits.done.take_back(record.client, record.sequence, record.txn)
        for memory in self.memories():
            memory.remove(txns)
            state = self.map.states.get(memory.tablet)
            if state is not None:
                memory.last_index = min(memory.last_index, state.commits.index)
        self._in_memory_bytes = sum(memory.size_bytes for memory in self.memories())
        self._wake()

    def _find_done(self, tablet: TabletId, once: Once, places: int) -> tuple[Txn, Future[Txn]] | None:
        """What became of a numbered write that was let in before; None: it was not. UnknownOutcome if that is not known
        any more; DoneInPart if only a part of it was."""
        with self.lock:
            done = self.map.state(tablet).commits.done
            txns = done.find(once, places, millis_of(self.clock.last))
            if not txns:
                return None
            undecided = [*self.wal.undecided(), *self.commits.waiting()]
            pending = [entry.future for entry in undecided if entry.record.txn in txns and entry.tablets]
        if pending:
            return max(txns), all_done(pending, max(txns))
        decided: Future[Txn] = Future()
        decided.set_result(max(txns))
        return max(txns), decided

    def config(self, state: TabletState) -> TabletConfig:
        """What of it is to be saved: of the writes that it knows as done, those that are decided."""
        done = state.commits.done
        if not done:
            return config_of(state, self.name)
        with self.lock:
            undecided = [*self.wal.undecided(), *self.commits.waiting()]
            return config_of(state, self.name, {entry.record.txn for entry in undecided})
