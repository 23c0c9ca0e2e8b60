"""A watch in etcd: one stream, made again from the first revision not yet delivered whenever it breaks.

etcd starts a watch at its compaction revision without a word though deletions of just that revision are gone (fixed in
3.5.19). So before a stream's first batch is believed, the revision before its start is read: if it can be, nothing from
the start on was gone when etcd collected that batch. Compaction only goes forward, so looking afterwards is enough.

Progress notices move the place to resume from, so that an idle watch does not fall behind compaction.
"""

from __future__ import annotations

import asyncio
from itertools import groupby
from typing import Any, NoReturn

from stelae.adapters.etcd import messages as api
from stelae.adapters.etcd.cluster import CallFailed, EtcdCluster
from stelae.adapters.etcd.errors import Failure, Fate, failure_of
from stelae.adapters.etcd.keys import EtcdKeys
from stelae.adapters.watches import BatchWatch
from stelae.model.errors import PermissionDenied, StelaeError, Unavailable
from stelae.ports.metastore import Compacted, KeyDeleted, KeyPut, Revision, WatchBatch

_PAUSE_S_MIN = 0.02
_PAUSE_S_MAX = 1.0
_TRIES_MAX = 10


class EtcdWatch(BatchWatch):
    """Made by `EtcdMetastore.watch`."""

    def __init__(self, cluster: EtcdCluster, keys: EtcdKeys, prefix: str, from_revision: Revision) -> None:
        super().__init__(prefix, from_revision)
        self._cluster = cluster
        self._keys = keys
        self._stream: _Stream | None = None
        self._pause_s = _PAUSE_S_MIN

    def _check_open(self) -> None:
        self._cluster.check_open()

    async def _read_on(self) -> None:
        try:
            await self._receive()
            self._pause_s = _PAUSE_S_MIN
        except CallFailed as failed:
            await self._recover(failed.failure)
        except (Compacted, PermissionDenied) as error:
            self._failed = error

    async def _receive(self) -> None:
        """One answer of the stream. Whatever goes wrong in between, cancellation too, the stream is made again."""
        stream, self._stream = self._stream, None
        if stream is None:
            stream = await _Stream.open(self._cluster, *self._keys.bounds(self._prefix, None), self._next)
            await self._check_kept()
        answer = await stream.read()
        if answer.compact_revision:
            raise Compacted(self._next, Revision(answer.compact_revision + 1))
        if answer.events and not stream.believed:
            await self._check_kept()
            stream.believed = True
        self._take(answer)
        self._stream = stream

    def _take(self, answer: Any) -> None:
        if not answer.events:
            self._next = max(self._next, Revision(answer.header.revision + 1))
            return
        batches = []
        for revision, group in groupby(answer.events, key=lambda event: event.kv.mod_revision):
            if revision >= self._next:
                events = [self._event(event) for event in sorted(group, key=lambda event: event.kv.key)]
                batches.append(WatchBatch(Revision(revision), tuple(events)))
        if batches:
            self._next = Revision(batches[-1].revision + 1)
        self._batches = batches[::-1]

    def _event(self, event: Any) -> KeyPut | KeyDeleted:
        if event.type == api.EVENT_DELETE:
            return KeyDeleted(self._keys.text(event.kv.key))
        return KeyPut(self._keys.entry(event.kv))

    async def _check_kept(self) -> None:
        begin, end = self._keys.bounds(self._prefix, None)
        before = max(self._next - 1, 1)
        request = api.message("RangeRequest")(key=begin, range_end=end, limit=1, keys_only=True, revision=before)
        try:
            await self._cluster.call(api.RANGE, request, changes=False, repeatable=True)
        except Unavailable as error:
            raise CallFailed(Failure(Fate.NOT_DONE, error)) from error
        except CallFailed as failed:
            if failed.failure.fate is Fate.COMPACTED:
                oldest = Revision(await compacted_revision(self._cluster, self._keys) + 1)
                raise Compacted(self._next, oldest) from failed
            if failed.failure.fate is not Fate.AHEAD:
                raise

    async def _recover(self, failure: Failure) -> None:
        if failure.fate is Fate.STALE_TOKEN and self._cluster.has_user:
            self._cluster.forget_token()
        elif isinstance(failure.error, PermissionDenied):
            self._failed = failure.error
            return
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _PAUSE_S_MAX)


class _Stream:
    """One stream that etcd has confirmed. Dropped, it is cancelled by gRPC."""

    def __init__(self, cluster: EtcdCluster, endpoint: str, call: Any) -> None:
        self._cluster = cluster
        self._endpoint = endpoint
        self._call = call
        self.believed = False

    @classmethod
    async def open(cls, cluster: EtcdCluster, begin: bytes, end: bytes, start: Revision) -> _Stream:
        create = api.message("WatchCreateRequest")(
            key=begin, range_end=end, start_revision=start, progress_notify=True, fragment=True
        )
        endpoint, call = await cluster.stream(api.WATCH)
        stream = cls(cluster, endpoint, call)
        await stream._carry_out(call.write(api.message("WatchRequest")(create_request=create)))
        await stream._answer()
        return stream

    async def read(self) -> Any:
        """The next answer, its fragments put together."""
        answer = whole = await self._answer()
        while answer.fragment:
            answer = await self._answer()
            whole.events.extend(answer.events)
        return whole

    async def _answer(self) -> Any:
        answer = await self._carry_out(self._call.read())
        if answer is api.grpc_module().aio.EOF:
            self._end_with("CANCELLED", "the stream ended")
        if answer.canceled and not answer.compact_revision:
            denied = "permission denied" in answer.cancel_reason
            self._end_with("PERMISSION_DENIED" if denied else "UNAVAILABLE", answer.cancel_reason)
        return answer

    async def _carry_out(self, step: Any) -> Any:
        """A step of the call, or CallFailed if the stream is lost or closed: gRPC itself may never end a step of a
        call that was cancelled while it began, and cancels the reader of one that broke."""
        aio = api.grpc_module().aio
        task = asyncio.ensure_future(step)
        task.add_done_callback(_ignore_error)
        try:
            await asyncio.wait([task, self._cluster.closing()], return_when=asyncio.FIRST_COMPLETED)
            if not task.done() or task.cancelled():
                self._end_with("CANCELLED", "the stream was cancelled")
            return task.result()
        except aio.AioRpcError as error:
            self._end_with(error.code().name, error.details() or "")
        except (aio.UsageError, asyncio.InvalidStateError) as error:
            self._end_with("UNAVAILABLE", str(error))
        finally:
            task.cancel()

    def _end_with(self, code: str, details: str) -> NoReturn:
        self._call.cancel()
        failure = failure_of(code, details, self._endpoint)
        if failure.fate is not Fate.STALE_TOKEN:
            self._cluster.leave(self._endpoint)
        raise CallFailed(failure)


def _ignore_error(task: asyncio.Future[Any]) -> None:
    """Whoever waited has taken it; if no one did, no one wants it."""
    if not task.cancelled():
        task.exception()


async def compacted_revision(cluster: EtcdCluster, keys: EtcdKeys) -> Revision:
    """Up to where etcd has compacted. It tells that only to a watch which asks for more."""
    error: StelaeError = Unavailable("etcd does not tell what it has compacted")
    for _ in range(_TRIES_MAX):
        try:
            stream = await _Stream.open(cluster, *keys.bounds("", None), Revision(1))
            answer = await stream.read()
        except CallFailed as failed:
            error = failed.failure.error
            await asyncio.sleep(_PAUSE_S_MIN)
            continue
        stream._call.cancel()
        if answer.compact_revision:
            return Revision(answer.compact_revision)
    raise error
