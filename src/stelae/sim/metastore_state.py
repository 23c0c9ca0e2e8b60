"""What a metastore holds, in memory: every revision since the last compaction, and the leases. No time, no faults."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from stelae.ports.metastore import (
    Change,
    Compacted,
    Compare,
    DeleteKey,
    DeletePrefix,
    Entry,
    IsAbsent,
    KeyDeleted,
    KeyPut,
    LeaseExpired,
    LeaseId,
    ModRevisionIs,
    PutKey,
    RangeRead,
    Revision,
    TxnOutcome,
    ValueIs,
    WatchBatch,
)
from stelae.ports.metastore_rules import check_not_ahead

_FIRST = Revision(1)


@dataclass(frozen=True, slots=True)
class _Version:
    revision: Revision
    entry: Entry | None


class MetastoreState:
    """Each method is one step: it happens whole, or raises and changes nothing. Requests were checked before."""

    def __init__(self) -> None:
        self._revision = _FIRST
        self._compacted = Revision(0)
        self._names: list[str] = []
        self._versions: dict[str, list[_Version]] = {}
        self._batches: list[WatchBatch] = []
        self._leases: dict[LeaseId, dict[str, None]] = {}
        self._leases_made = 0

    @property
    def revision(self) -> Revision:
        return self._revision

    def get(self, key: str, revision: Revision | None) -> Entry | None:
        return self._at(key, self._readable(revision))

    def range(self, prefix: str, start: str | None, limit: int | None, revision: Revision | None) -> RangeRead:
        at = self._readable(revision)
        found: list[Entry] = []
        for name in self._under(prefix, max(prefix, start or "")):
            entry = self._at(name, at)
            if entry is not None:
                if len(found) == limit:
                    return RangeRead(tuple(found), at, more=True)
                found.append(entry)
        return RangeRead(tuple(found), at)

    def txn(self, compares: Sequence[Compare], changes: Sequence[Change]) -> TxnOutcome:
        if not all(self._holds(compare) for compare in compares):
            return TxnOutcome(False, self._revision)
        for change in changes:
            if isinstance(change, PutKey) and change.lease is not None:
                self._lease_keys(change.lease)
        puts = [change for change in changes if isinstance(change, PutKey)]
        gone = [key for change in changes for key in self._deleted_by(change)]
        return TxnOutcome(True, self._commit(puts, gone))

    def batches(self, prefix: str, from_revision: Revision) -> Iterator[WatchBatch]:
        """What changed under the prefix at or after the revision, one batch for each revision that changed any."""
        if from_revision <= self._compacted:
            raise Compacted(from_revision, Revision(self._compacted + 1))
        for batch in self._batches[bisect_left(self._batches, from_revision, key=lambda batch: batch.revision) :]:
            events = tuple(event for event in batch.events if _key(event).startswith(prefix))
            if events:
                yield WatchBatch(batch.revision, events)

    def compact(self, revision: Revision) -> None:
        check_not_ahead(revision, self._revision)
        if revision <= self._compacted:
            return
        self._compacted = revision
        self._batches = [batch for batch in self._batches if batch.revision > revision]
        for name in list(self._names):
            versions = self._versions[name]
            newest = bisect_right(versions, revision, key=lambda version: version.revision) - 1
            kept = versions[max(newest, 0) :]
            if kept[0].revision <= revision and kept[0].entry is None:
                del kept[0]
            self._versions[name] = kept
            if not kept:
                del self._versions[name]
                del self._names[bisect_left(self._names, name)]

    def grant(self) -> LeaseId:
        self._leases_made += 1
        lease = LeaseId(self._leases_made)
        self._leases[lease] = {}
        return lease

    def check_lease(self, lease: LeaseId) -> None:
        self._lease_keys(lease)

    def leases(self) -> list[LeaseId]:
        return list(self._leases)

    def end_lease(self, lease: LeaseId) -> None:
        """Delete the lease and its keys, in one revision. One that is gone is no error."""
        keys = self._leases.get(lease)
        if keys is not None:
            self._commit([], list(keys))
            del self._leases[lease]

    def _readable(self, revision: Revision | None) -> Revision:
        if revision is None:
            return self._revision
        check_not_ahead(revision, self._revision)
        if revision < self._compacted:
            raise Compacted(revision, self._compacted)
        return revision

    def _at(self, key: str, revision: Revision) -> Entry | None:
        versions = self._versions.get(key, [])
        place = bisect_right(versions, revision, key=lambda version: version.revision)
        return versions[place - 1].entry if place else None

    def _under(self, prefix: str, start: str) -> Iterator[str]:
        for place in range(bisect_left(self._names, start), len(self._names)):
            if not self._names[place].startswith(prefix):
                return
            yield self._names[place]

    def _holds(self, compare: Compare) -> bool:
        entry = self._at(compare.key, self._revision)
        match compare:
            case IsAbsent():
                return entry is None
            case ValueIs(_, value):
                return entry is not None and entry.value == value
            case ModRevisionIs(_, revision):
                return entry is not None and entry.mod_revision == revision

    def _deleted_by(self, change: Change) -> list[str]:
        match change:
            case PutKey():
                return []
            case DeleteKey(key):
                return [key] if self._at(key, self._revision) else []
            case DeletePrefix(prefix):
                return [name for name in self._under(prefix, prefix) if self._at(name, self._revision)]

    def _commit(self, puts: list[PutKey], gone: list[str]) -> Revision:
        if not puts and not gone:
            return self._revision
        revision = Revision(self._revision + 1)
        events: list[KeyPut | KeyDeleted] = []
        for put in puts:
            entry = self._next_entry(put, revision)
            self._bind(put.key, put.lease)
            self._append(put.key, _Version(revision, entry))
            events.append(KeyPut(entry))
        for key in gone:
            self._bind(key, None)
            self._append(key, _Version(revision, None))
            events.append(KeyDeleted(key))
        self._revision = revision
        self._batches.append(WatchBatch(revision, tuple(sorted(events, key=_key))))
        return revision

    def _next_entry(self, put: PutKey, revision: Revision) -> Entry:
        before = self._at(put.key, self._revision)
        if before is None:
            return Entry(put.key, put.value, revision, revision, 1, put.lease)
        return replace(before, value=put.value, mod_revision=revision, version=before.version + 1, lease=put.lease)

    def _bind(self, key: str, lease: LeaseId | None) -> None:
        before = self._at(key, self._revision)
        if before is not None and before.lease is not None:
            del self._leases[before.lease][key]
        if lease is not None:
            self._leases[lease][key] = None

    def _append(self, key: str, version: _Version) -> None:
        if key not in self._versions:
            self._versions[key] = []
            insort(self._names, key)
        self._versions[key].append(version)

    def _lease_keys(self, lease: LeaseId) -> dict[str, None]:
        keys = self._leases.get(lease)
        if keys is None:
            raise LeaseExpired(f"lease {lease} is not there: it ran out, was revoked, or never was")
        return keys


def _key(event: KeyPut | KeyDeleted) -> str:
    return event.entry.key if isinstance(event, KeyPut) else event.key
