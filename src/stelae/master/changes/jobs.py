"""What is recorded of a job whose loads are changes: which of its batches are done, and which change is under way.

Each function says what a transaction has to compare and to write besides the record of the change itself, so that both
are true or neither: a batch of a job happens at one txn, or never.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from stelae.ports.metastore import Change, Compare, DeleteKey, Metastore
from stelae.registry.bulk_sessions import LoadRecord, given_up, load_key, put_job, read_job
from stelae.registry.changes.sessions import ChangeSession, aborted, put_session, read_session

Besides: TypeAlias = tuple[list[Compare], list[Change]]
"""What a transaction compares and writes besides."""


async def begin_job(store: Metastore, session: ChangeSession, now_ms: int) -> tuple[LoadRecord, Besides]:
    """The job as it was, and what makes a change the one that is under way for it; another one gives way."""
    found, unchanged = await read_job(store, session.table, session.job)
    record = LoadRecord(session.table, session.job, now_ms) if found is None else found
    begun = msgspec.structs.replace(record, session=session.id, touched_ms=now_ms)
    compares, changes = [unchanged], [put_job(begun)]
    if record.session:
        held = await read_session(store, record.table, record.session)
        if held is not None and held.session.is_open:
            compares.append(held.unchanged)
            changes.append(put_session(aborted(held.session)))
    return record, (compares, changes)


async def finish_job(store: Metastore, session: ChangeSession, now_ms: int) -> Besides:
    """What makes the batch of a change done, at its txn. Conflict if another change is under way for the job."""
    if not session.job:
        return [], []
    record, unchanged = await read_job(store, session.table, session.job)
    if record is None or record.session != session.id or record.done_batch >= session.batch:
        raise given_up(session.id)
    done = LoadRecord(session.table, session.job, now_ms, session.batch, session.id, session.txn)
    return [unchanged], [put_job(done)]


async def leave_job(store: Metastore, session: ChangeSession) -> Besides:
    """What makes a change no more the one that is under way for its job."""
    if not session.job:
        return [], []
    record, unchanged = await read_job(store, session.table, session.job)
    if record is None or record.session != session.id:
        return [], []
    if record.done_batch < 0:
        return [unchanged], [DeleteKey(load_key(record.table, record.job))]
    return [unchanged], [put_job(msgspec.structs.replace(record, session=""))]
