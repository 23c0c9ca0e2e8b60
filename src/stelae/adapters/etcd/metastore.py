"""The metastore of a cluster: etcd (3.5.3 or later for production), through its gRPC interface.

All keys lie under a namespace, so that several stores share one etcd; the revision is then etcd's, and others move it
too. Reads are linearizable. What was perhaps done raises UnknownOutcome (see `etcd_cluster`). Leases are granted under
an id drawn here, so that granting can be repeated; etcd counts whole seconds, so a ttl is rounded up, and etcd may
lengthen a short one to outlast an election.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from math import ceil
from typing import Any, NoReturn

from stelae.adapters.etcd import messages as api
from stelae.adapters.etcd.cluster import CallFailed, EtcdCluster, EtcdTls, EtcdUser
from stelae.adapters.etcd.errors import Fate
from stelae.adapters.etcd.keys import EtcdKeys
from stelae.adapters.etcd.watch import EtcdWatch, compacted_revision
from stelae.model.errors import AlreadyExists, InvalidArgument, Unavailable
from stelae.ports.metastore import (
    Change,
    Compacted,
    Compare,
    DeleteKey,
    DeletePrefix,
    Entry,
    IsAbsent,
    LeaseExpired,
    LeaseId,
    ModRevisionIs,
    PutKey,
    RangeRead,
    Revision,
    TxnOutcome,
    ValueIs,
)
from stelae.ports.metastore_rules import (
    check_read_request,
    check_revision,
    check_ttl,
    check_txn_request,
    prefix_bytes,
)

PAGE_ENTRIES = 1024

_LEASE_BITS = 62
_RANGE_TRIES_MAX = 5


class EtcdMetastore:
    """Belongs to the event loop of its first call. `timeout_s` bounds every call but a watch; make it longer than an
    election takes. A user's token is fetched when needed, and again when it has grown old."""

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        namespace: str = "",
        tls: EtcdTls | None = None,
        user: EtcdUser | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        api.grpc_module()
        self._keys = EtcdKeys(prefix_bytes(namespace))
        self._cluster = EtcdCluster(endpoints, tls, user, timeout_s)

    async def get(self, key: str, revision: Revision | None = None) -> Entry | None:
        self._cluster.check_open()
        check_read_request(None, revision)
        request = api.message("RangeRequest")(key=self._keys.key(key), revision=revision or 0)
        answer = await self._read(request, revision)
        return self._keys.entry(answer.kvs[0]) if answer.kvs else None

    async def range(
        self, prefix: str, *, start: str | None = None, limit: int | None = None, revision: Revision | None = None
    ) -> RangeRead:
        """In pages at one revision. Where none was asked for, and it is compacted away between two, begins anew."""
        self._cluster.check_open()
        check_read_request(limit, revision)
        begin, end = self._keys.bounds(prefix, start)
        for _ in range(_RANGE_TRIES_MAX):
            try:
                return await self._pages(begin, end, limit, revision)
            except Compacted:
                if revision is not None:
                    raise
        raise Unavailable(f"prefix {prefix!r} was not read before its revision was compacted away: read it in pages")

    async def txn(self, compares: Sequence[Compare], changes: Sequence[Change]) -> TxnOutcome:
        self._cluster.check_open()
        check_txn_request(compares, changes)
        request = api.message("TxnRequest")(
            compare=[self._compare(compare) for compare in compares],
            success=[self._change(change) for change in changes],
        )
        try:
            answer = await self._cluster.call(api.TXN, request, changes=bool(changes), repeatable=not changes)
        except CallFailed as failed:
            raise failed.failure.error from failed
        return TxnOutcome(answer.succeeded, Revision(answer.header.revision))

    def watch(self, prefix: str, from_revision: Revision) -> EtcdWatch:
        return EtcdWatch(self._cluster, self._keys, prefix, from_revision)

    async def grant(self, ttl_s: float) -> LeaseId:
        self._cluster.check_open()
        check_ttl(ttl_s)
        lease = LeaseId(secrets.randbits(_LEASE_BITS) + 1)
        request = api.message("LeaseGrantRequest")(ID=lease, TTL=ceil(ttl_s))
        try:
            await self._cluster.call(api.LEASE_GRANT, request, changes=True, repeatable=True)
        except CallFailed as failed:
            if not isinstance(failed.failure.error, AlreadyExists):
                raise failed.failure.error from failed
            await self.keep_alive(lease)  # an earlier try of this very grant was done
        return lease

    async def keep_alive(self, lease: LeaseId) -> float:
        self._cluster.check_open()
        request = api.message("LeaseKeepAliveRequest")(ID=lease)
        try:
            answer = await self._cluster.call(api.LEASE_KEEP_ALIVE, request, changes=True, repeatable=True)
        except CallFailed as failed:
            raise failed.failure.error from failed
        if answer.TTL <= 0:
            raise LeaseExpired(f"lease {lease} is not there: it ran out, was revoked, or never was")
        return float(answer.TTL)

    async def revoke(self, lease: LeaseId) -> None:
        self._cluster.check_open()
        request = api.message("LeaseRevokeRequest")(ID=lease)
        try:
            await self._cluster.call(api.LEASE_REVOKE, request, changes=True, repeatable=True)
        except CallFailed as failed:
            if not isinstance(failed.failure.error, LeaseExpired):
                raise failed.failure.error from failed

    async def compact(self, revision: Revision) -> None:
        self._cluster.check_open()
        check_revision(revision)
        request = api.message("CompactionRequest")(revision=revision)
        try:
            await self._cluster.call(api.COMPACT, request, changes=True, repeatable=True)
        except CallFailed as failed:
            if failed.failure.fate is not Fate.COMPACTED:
                self._raise(failed, revision)

    async def close(self) -> None:
        await self._cluster.close()

    async def _pages(self, begin: bytes, end: bytes, limit: int | None, revision: Revision | None) -> RangeRead:
        """Pages get smaller until they fit into an answer."""
        entries: list[Entry] = []
        at, page_entries = revision or Revision(0), PAGE_ENTRIES
        while True:
            wanted = page_entries if limit is None else min(page_entries, limit - len(entries))
            request = api.message("RangeRequest")(key=begin, range_end=end, limit=wanted, revision=at)
            try:
                answer = await self._read(request, at or None)
            except CallFailed as failed:
                if page_entries == 1:
                    raise failed.failure.error from failed
                page_entries //= 2
                continue
            at = at or Revision(answer.header.revision)
            entries += [self._keys.entry(each) for each in answer.kvs]
            if not answer.more or len(entries) == limit:
                return RangeRead(tuple(entries), at, answer.more)
            begin = answer.kvs[-1].key + b"\0"

    async def _read(self, request: Any, asked: Revision | None) -> Any:
        """CallFailed if the answer was too large."""
        try:
            return await self._cluster.call(api.RANGE, request, changes=False, repeatable=True)
        except CallFailed as failed:
            if failed.failure.fate is Fate.COMPACTED and asked is not None:
                raise Compacted(asked, await compacted_revision(self._cluster, self._keys)) from failed
            if failed.failure.fate is Fate.TOO_LARGE:
                raise
            self._raise(failed, asked)

    def _raise(self, failed: CallFailed, asked: Revision | None) -> NoReturn:
        if failed.failure.fate is Fate.AHEAD:
            raise InvalidArgument(f"revision {asked} is in the future") from failed
        raise failed.failure.error from failed

    def _compare(self, compare: Compare) -> Any:
        made = api.message("Compare")(result=api.EQUAL, key=self._keys.key(compare.key))
        match compare:
            case IsAbsent():
                made.target, made.create_revision = api.TARGET_CREATE, 0
            case ValueIs(_, value):
                made.target, made.value = api.TARGET_VALUE, value
            case ModRevisionIs(_, revision):
                made.target, made.mod_revision = api.TARGET_MOD, revision
        return made

    def _change(self, change: Change) -> Any:
        operation, delete = api.message("RequestOp"), api.message("DeleteRangeRequest")
        match change:
            case PutKey(key, value, lease):
                put = api.message("PutRequest")(key=self._keys.key(key), value=value, lease=lease or 0)
                return operation(request_put=put)
            case DeleteKey(key):
                return operation(request_delete_range=delete(key=self._keys.key(key)))
            case DeletePrefix(prefix):
                begin, end = self._keys.bounds(prefix, None)
                return operation(request_delete_range=delete(key=begin, range_end=end))
