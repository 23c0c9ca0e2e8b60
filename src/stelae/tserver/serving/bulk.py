"""What a store answers to jobs in other processes. See `messages_bulk`."""

from __future__ import annotations

from collections.abc import Iterator

from stelae.model.ids import TableId, Txn
from stelae.service import messages as m
from stelae.service import ticket_messages as bulk
from stelae.service.backend import Backend
from stelae.tserver.serving.replies import DONE, Call, Reply, Stream, in_pieces


def _hold(backend: Backend, asked: bulk.HoldMessage, _: bytes | memoryview) -> Iterator[Reply]:
    at = None if asked.at is None else Txn(asked.at)
    return in_pieces([bulk.handed_out(backend.hold(TableId(asked.table), at, asked.ttl_s))])


def _renew(backend: Backend, asked: bulk.RenewMessage, _: bytes | memoryview) -> Reply:
    backend.renew(asked.ticket, asked.ttl_s)
    return DONE


def _release(backend: Backend, asked: bulk.ReleaseMessage, _: bytes | memoryview) -> Reply:
    backend.release(asked.ticket)
    return DONE


def _begin_load(backend: Backend, asked: bulk.BeginLoadMessage, _: bytes | memoryview) -> Iterator[Reply]:
    ticket = backend.begin_load(TableId(asked.table), asked.job, asked.batch, asked.ttl_s)
    return in_pieces([bulk.handed_out(ticket)])


def _commit_load(backend: Backend, asked: bulk.CommitLoadMessage, body: bytes | memoryview) -> Reply:
    return Reply(m.TxnMessage(backend.commit_load(asked.ticket, bulk.files_from(body), replaces=asked.replaces)))


def _begin_compaction(backend: Backend, asked: bulk.BeginCompactionMessage, _: bytes | memoryview) -> Iterator[Reply]:
    table = TableId(asked.table)
    ticket = backend.begin_compaction(table, full=asked.full, erase_now=asked.erase_now, ttl_s=asked.ttl_s)
    return in_pieces([bulk.handed_out(ticket)])


def _adopt(backend: Backend, asked: bulk.AdoptMessage, body: bytes | memoryview) -> Reply:
    return Reply(bulk.AdoptedMessage(backend.adopt(asked.ticket, asked.number, bulk.file_from(body))))


BULK_CALLS: dict[str, Call] = {
    m.RENEW.name: _renew,
    m.RELEASE.name: _release,
    m.COMMIT_LOAD.name: _commit_load,
    m.ADOPT.name: _adopt,
}

BULK_STREAMS: dict[str, Stream] = {
    m.HOLD.name: _hold,
    m.BEGIN_LOAD.name: _begin_load,
    m.BEGIN_COMPACTION.name: _begin_compaction,
}
