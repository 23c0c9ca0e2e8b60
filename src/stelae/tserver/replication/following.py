"""A shard's replicas of tablets that are led elsewhere: they take what their leaders send, and keep it as bytes.

What is answered is on this disk. Many requests wait for one sync.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import chain

from stelae.format.log.copies import RecordCopy, ReplicaKept, record_of
from stelae.format.log.records import LogKind, LogRecord
from stelae.model.errors import Corruption, Unavailable, UnsupportedFormat
from stelae.model.ids import Epoch, Index, TableId, TabletId, Txn
from stelae.registry.replication.appending import AppendAnswer, AppendPart
from stelae.service.deadlines import Deadline, left_of
from stelae.storage.log.futures import wait_for
from stelae.storage.replicas.naming import NamedSchema, schemas_kept, schemas_named
from stelae.storage.replicas.replica import Gap, Place, Replica, Stale, Taking, replica_from
from stelae.storage.shard import Shard
from stelae.tserver.needs import SchemaNeeds

_LOWERED_MAX = 5
_OF_ONE = (Corruption, UnsupportedFormat)
"""What is wrong with one tablet, and says nothing about the others of the same request."""


class Following:
    """Carries out what leaders elsewhere ask, on any thread."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self.needs: SchemaNeeds | None = None
        """What this shard has said about the schemas that it needs; None: nothing."""

    def append(
        self, parts: Sequence[AppendPart], copies: Sequence[Sequence[RecordCopy]], deadline: Deadline | None = None
    ) -> tuple[AppendAnswer, ...]:
        """What a leader sends. Durable when it returns; Unavailable if that takes longer than the deadline allows. What
        cannot be taken of one tablet is refused in its answer: the others do not wait for it."""
        refused: dict[int, AppendAnswer] = {}
        records: list[Sequence[LogRecord]] = []
        for at, (part, some) in enumerate(zip(parts, copies, strict=True)):
            try:
                records.append(self._read(part, some))
            except _OF_ONE as error:
                records.append(())
                refused[at] = AppendAnswer(refused=str(error))
        pending: list[Future[Txn]] = []
        with self._needed(lambda: chain.from_iterable(map(self._named, records))):
            replicas = [self._shard.replicas.get(TabletId(part.tablet)) for part in parts]
            answers = [
                refused[at] if at in refused else self._answer(replica, part, some, pending)
                for at, (replica, part, some) in enumerate(zip(replicas, parts, records, strict=True))
            ]
        self._wait(pending, deadline)
        # Of a replica that is being brought up to date the others may have committed what its disk refuses: nothing of
        # it counts as committed here before it is durable here.
        cleared: list[Replica] = []
        with self._shard.lock:
            found = zip(replicas, parts, answers, strict=True)
            answers = [self._commit(replica, part, answer, cleared) for replica, part, answer in found]
        if cleared:
            self._shard.drain(deadline)  # on an idle shard nothing else would have that written
        return tuple(answers)

    def _read(self, part: AppendPart, copies: Sequence[RecordCopy]) -> Sequence[LogRecord]:
        """The records of one tablet, if they can be read."""
        records = [record_of(copy, TableId(part.table), TabletId(part.tablet)) for copy in copies]
        for _ in self._named(records):
            pass
        return records

    def _answer(
        self, replica: Replica | None, part: AppendPart, records: Sequence[LogRecord], pending: list[Future[Txn]]
    ) -> AppendAnswer:
        if replica is None:
            return AppendAnswer()
        try:
            return self._take(replica, part, records, pending)
        except _OF_ONE as error:  # before anything was changed
            return AppendAnswer(refused=str(error))

    def _commit(
        self, replica: Replica | None, part: AppendPart, answer: AppendAnswer, cleared: list[Replica]
    ) -> AppendAnswer:
        """What was taken is durable. Under the lock. What was taken by a replica that was dropped meanwhile, or that
        another took the place of, is here no more. `cleared`: gets those that are in doubt no more."""
        if replica is None or answer.matched is None:
            return answer
        if self._shard.replicas.get(replica.tablet) is not replica:
            return AppendAnswer()
        if replica.is_unwritten:
            return answer
        try:
            replica.commit(Index(min(part.committed, answer.matched)))
        except _OF_ONE as error:
            return AppendAnswer(refused=str(error))
        if self._clear_doubt(replica, part, answer.matched):
            cleared.append(replica)
        return answer

    def _named(self, records: Sequence[LogRecord]) -> Iterable[NamedSchema]:
        """The schemas that records of one tablet name, if any of them may be older than was promised."""
        is_checked = self.needs is not None and records and self.needs.may_be_older(records[0].table)
        return schemas_named(records) if is_checked else ()

    @contextmanager
    def _needed(self, named: Callable[[], Iterable[NamedSchema]]) -> Iterator[None]:
        """The shard's lock, when it is written down that the schemas are needed that are about to be taken in."""
        for _ in range(_LOWERED_MAX):
            with self._shard.lock:
                older = None if self.needs is None else self.needs.find_older(named())
                if older is None:
                    yield
                    return
            if self.needs is not None:
                self.needs.lower(older)
        raise Unavailable("which schemas this shard needs is being written down; try again")

    def _take(
        self, replica: Replica, part: AppendPart, records: Sequence[LogRecord], pending: list[Future[Txn]]
    ) -> AppendAnswer:
        epoch = Epoch(part.epoch)
        if replica.is_unwritten:
            pending.append(self._shard.keep_replica(replica))
        match replica.judge(epoch, Place(Epoch(part.prev[0]), Index(part.prev[1])), records):
            case Stale(promised):
                return AppendAnswer(promised=promised)
            case Gap(last):
                self._promise(replica, epoch, replica.last.index, pending)
                return AppendAnswer(last=last)
            case Taking(cut, new, matched):
                self._promise(replica, epoch, replica.last.index if cut is None else cut, pending)
                for record in new:
                    pending.append(self._shard.wal.enqueue(record))
                    replica.take(record, self._shard.wal.end)
                if not new and replica.tail:
                    pending.append(self._shard.wal.sync())  # what was taken before may not be on the disk yet
                return AppendAnswer(matched=matched)

    def _clear_doubt(self, replica: Replica, part: AppendPart, matched: int) -> bool:
        """What was acknowledged so far is committed by its leader, once that has committed a record of its own epoch:
        whoever has as much lacks nothing. What an older leader says counts for nothing. Under the lock; whether there
        is no doubt any more, and was before."""
        if not replica.may_lack or part.committed > matched or part.epoch != replica.promised:
            return False
        committed = replica.place_at(Index(part.committed))
        if committed is None or committed.epoch != part.epoch:
            return False
        replica.may_lack = False
        self._shard.follow(replica, replica.promised, replica.last.index)
        return True

    def _promise(self, replica: Replica, epoch: Epoch, kept: Index, pending: list[Future[Txn]]) -> None:
        """Follow a leader of an epoch, and forget what lies above an index: written down before anything follows it."""
        if epoch == replica.promised and kept >= replica.last.index:
            return
        if kept < replica.last.index:
            replica.cut(kept)
        replica.promise(epoch)
        pending.append(self._shard.follow(replica, epoch, kept))

    def host(
        self, table: TableId, tablet: TabletId, epoch: int, kept: ReplicaKept, deadline: Deadline | None = None
    ) -> AppendAnswer:
        """A whole replica in the place of what is here of the tablet, if anything."""
        shard = self._shard
        pending: list[Future[Txn]] = []
        with self._needed(lambda: schemas_kept(kept, table, tablet)):
            known = shard.replicas.get(tablet)
            if known is not None and known.promised > epoch:
                return AppendAnswer(promised=known.promised)
            begin = Place(*kept.begin)
            if known is not None and (known.begin.index >= begin.index or known.place_at(begin.index) == begin):
                # It is here already: what differs behind that is found by what is sent next. A greater place says
                # nothing: what lies there may never have counted, and hide that what counts is missing.
                answer = AppendAnswer(last=known.last)
                pending.append(shard.keep_replica(known) if known.is_unwritten else shard.wal.sync())
            else:
                replica = replica_from(kept, table, tablet, shard.wal.end)
                replica.promise(Epoch(epoch))
                replica.may_lack = known is not None and known.may_lack  # until it has what follows, too
                shard.replicas[tablet] = replica
                pending.append(shard.keep_replica(replica))
                answer = AppendAnswer(matched=replica.last.index)
        self._wait(pending, deadline)
        return answer

    def drop(self, tablets: Sequence[TabletId], is_meant: Callable[[Replica], bool] | None = None) -> None:
        """Have nothing of these tablets any more. `is_meant`: only of replicas that this is true of."""
        with self._shard.lock:
            found = [self._shard.replicas[tablet] for tablet in tablets if tablet in self._shard.replicas]
            pending = []
            for replica in found if is_meant is None else filter(is_meant, found):
                del self._shard.replicas[replica.tablet]
                pending.append(self._shard.log_mark(replica, LogKind.DROPPED, b"\x90"))
        self._wait(pending, None)

    def _wait(self, pending: Sequence[Future[Txn]], deadline: Deadline | None) -> None:
        if not pending:
            return
        self._shard.drain(deadline)
        if not wait_for(pending, left_of(deadline)):
            raise Unavailable("what was sent is not on this disk yet")
        for future in pending:
            future.result()
