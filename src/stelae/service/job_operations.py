"""The part of the table of operations that jobs use: tickets for files, given out and taken back. See `operations`."""

from __future__ import annotations

from collections.abc import Sequence

from stelae.format.fragment.footer import FragmentFile
from stelae.model.ids import TableId, Txn
from stelae.service import bodies
from stelae.service import messages as m
from stelae.service.bodies import codec_of
from stelae.service.operations import FLAG, NOTHING, TXN, Asked, Operation
from stelae.service.tickets import CompactionTicket, HeldTable, LoadedFile, LoadTicket


def _ask_hold(table: TableId, at: Txn | None, ttl_s: float, ticket: str | None = None) -> Asked:
    return m.HoldMessage(table, at, ttl_s, ticket), b""


def _ask_renew(ticket: str, ttl_s: float) -> Asked:
    return m.RenewMessage(ticket, ttl_s), b""


def _ask_ticket(ticket: str) -> Asked:
    return m.TicketMessage(ticket), b""


def _ask_load(table: TableId, job: str, batch: int, ttl_s: float) -> Asked:
    return m.BeginLoadMessage(table, job, batch, ttl_s), b""


def _ask_commit(ticket: str, files: Sequence[LoadedFile], replaces: bool) -> Asked:
    return m.CommitLoadMessage(ticket, replaces), bodies.files_bytes(files)


def _ask_compaction(table: TableId, full: bool, erase_now: bool, ttl_s: float, ticket: str | None = None) -> Asked:
    return m.BeginCompactionMessage(table, full, erase_now, ttl_s, ticket), b""


def _ask_adopt(ticket: str, number: int, file: FragmentFile | None) -> Asked:
    return m.AdoptMessage(ticket, number), bodies.file_bytes(file)


HOLD = Operation(
    "hold",
    m.HoldMessage,
    _ask_hold,
    lambda store, q, _, until, __: store.hold(
        TableId(q.table), None if q.at is None else Txn(q.at), q.ttl_s, q.ticket, deadline=until
    ),
    codec_of("a held table", HeldTable),
    is_long=True,
)
RENEW = Operation(
    "renew",
    m.RenewMessage,
    _ask_renew,
    lambda store, q, _, until, __: store.renew(q.ticket, q.ttl_s, deadline=until),
    NOTHING,
)
RELEASE = Operation(
    "release",
    m.TicketMessage,
    _ask_ticket,
    lambda store, q, _, until, __: store.release(q.ticket, deadline=until),
    NOTHING,
)
BEGIN_LOAD: Operation[[TableId, str, int, float], LoadTicket] = Operation(
    "begin_load",
    m.BeginLoadMessage,
    _ask_load,
    lambda store, q, _, until, __: store.begin_load(TableId(q.table), q.job, q.batch, q.ttl_s, deadline=until),
    codec_of("a load", LoadTicket),
    changes=True,
    is_long=True,
)
COMMIT_LOAD = Operation(
    "commit_load",
    m.CommitLoadMessage,
    _ask_commit,
    lambda store, q, body, until, _: store.commit_load(
        q.ticket, bodies.files_from(body), replaces=q.replaces, deadline=until
    ),
    TXN,
    changes=True,
    is_long=True,
)
BEGIN_COMPACTION = Operation(
    "begin_compaction",
    m.BeginCompactionMessage,
    _ask_compaction,
    lambda store, q, _, until, __: store.begin_compaction(
        TableId(q.table), full=q.full, erase_now=q.erase_now, ttl_s=q.ttl_s, ticket=q.ticket, deadline=until
    ),
    codec_of("a compaction", CompactionTicket),
    changes=True,
    is_long=True,
)
ADOPT = Operation(
    "adopt",
    m.AdoptMessage,
    _ask_adopt,
    lambda store, q, body, until, _: store.adopt(q.ticket, q.number, bodies.file_from(body), deadline=until),
    FLAG,
    changes=True,
    is_repeatable=False,
    is_long=True,
)
