"""One strongly consistent, revisioned key-value store that all processes of a store or cluster share.

Every change gets the next *revision*: one number for the whole store, growing by one per committed transaction that
changes anything. An empty store is at revision 1; asking for one below it is InvalidArgument. All reads are
linearizable: they see every transaction acknowledged before they were called.

What survives: an acknowledged transaction, whatever crashes. A transaction whose answer is lost raises UnknownOutcome:
it may or may not have happened, now or a little later; whoever cares reads again before acting. Any other Unavailable
means that it has not happened and never will. So for the other calls that change something, which may all be repeated.

Keys are text, not empty, ordered by their UTF-8 bytes; values are bytes. A transaction has at most `OPS_MAX` operations
(compares plus changes of the larger branch) and `TXN_BYTES_MAX` of keys and values: more is InvalidArgument before
anything is sent. What is larger is written in chunks and revealed by one key.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NewType, Protocol, TypeAlias

import msgspec

from stelae.model.errors import StelaeError

OPS_MAX = 128
TXN_BYTES_MAX = 1024 * 1024
TTL_S_MAX = 365 * 24 * 3600

Revision = NewType("Revision", int)
LeaseId = NewType("LeaseId", int)


class Compacted(StelaeError):
    """The revision asked for is older than what is kept. `oldest` is the first that the same call can still ask for:
    after `compact(r)`, reads at r and watches from r + 1."""

    def __init__(self, asked: Revision, oldest: Revision) -> None:
        super().__init__(f"revision {asked} was compacted away; the oldest kept is {oldest}")
        self.asked = asked
        self.oldest = oldest


class LeaseExpired(StelaeError):
    """The lease is not there (any more): it ran out, was revoked, or never was. Keys bound to it are gone."""


class Entry(msgspec.Struct, frozen=True):
    """A key as it stands at some revision. `version` counts its changes since it was created (1 then)."""

    key: str
    value: bytes
    create_revision: Revision
    mod_revision: Revision
    version: int
    lease: LeaseId | None = None


class RangeRead(msgspec.Struct, frozen=True):
    """Entries by key, as of one revision; `more` if the limit cut them off."""

    entries: tuple[Entry, ...]
    revision: Revision
    more: bool = False


class IsAbsent(msgspec.Struct, frozen=True):
    key: str


class ValueIs(msgspec.Struct, frozen=True):
    """The key is there and has exactly this value."""

    key: str
    value: bytes


class ModRevisionIs(msgspec.Struct, frozen=True):
    """The key was last changed at exactly this revision."""

    key: str
    revision: Revision


Compare: TypeAlias = IsAbsent | ValueIs | ModRevisionIs


class PutKey(msgspec.Struct, frozen=True):
    """Bound to a lease, the key goes when the lease does. Putting again without one unbinds it."""

    key: str
    value: bytes
    lease: LeaseId | None = None


class DeleteKey(msgspec.Struct, frozen=True):
    """Deleting what is not there changes nothing."""

    key: str


class DeletePrefix(msgspec.Struct, frozen=True):
    prefix: str


Change: TypeAlias = PutKey | DeleteKey | DeletePrefix


class TxnOutcome(msgspec.Struct, frozen=True):
    """`revision` is the transaction's own if it changed anything, else the one it was judged at."""

    succeeded: bool
    revision: Revision


class KeyPut(msgspec.Struct, frozen=True):
    entry: Entry


class KeyDeleted(msgspec.Struct, frozen=True):
    key: str


class WatchBatch(msgspec.Struct, frozen=True):
    """All that one transaction changed under the prefix, in key order."""

    revision: Revision
    events: tuple[KeyPut | KeyDeleted, ...]


class Metastore(Protocol):
    """Safe to use from many tasks of one event loop. After `close`, everything raises Closed."""

    async def get(self, key: str, revision: Revision | None = None) -> Entry | None:
        """The key now, or as it was at an older revision (Compacted if that is gone; InvalidArgument if it is yet to
        come)."""
        ...

    async def range(
        self, prefix: str, *, start: str | None = None, limit: int | None = None, revision: Revision | None = None
    ) -> RangeRead:
        """Entries whose key starts with the prefix, from `start` (inclusive) on, at most `limit` of them. Larger
        results are read in pages at one revision: pass the first page's revision to the next."""
        ...

    async def txn(self, compares: Sequence[Compare], changes: Sequence[Change]) -> TxnOutcome:
        """If every compare holds, make every change, all or nothing; else change nothing. No key may be changed twice
        in one transaction, nor under a prefix that it deletes (InvalidArgument). A put bound to a lease that is gone
        raises LeaseExpired, if the compares hold."""
        ...

    def watch(self, prefix: str, from_revision: Revision) -> AsyncIterator[WatchBatch]:
        """Every change under the prefix at or after the revision: each once, in order, none left out, without end. A
        lost connection is made again. Raises Compacted, and ends, if changes it has not delivered may be gone. Errors
        come from the iterator; giving up waiting for a batch (a cancelled `anext`) loses none."""
        ...

    async def grant(self, ttl_s: float) -> LeaseId:
        """A lease that runs out unless kept alive within the ttl (at most TTL_S_MAX; a store that counts whole seconds
        rounds it up). A crash of the metastore may lengthen it, never shorten it."""
        ...

    async def keep_alive(self, lease: LeaseId) -> float:
        """Start the lease's ttl again; the ttl granted. LeaseExpired if it is gone."""
        ...

    async def revoke(self, lease: LeaseId) -> None:
        """End a lease and delete its keys in one revision. One that is gone is no error."""
        ...

    async def compact(self, revision: Revision) -> None:
        """Forget what only revisions below this one can see. The newest state of every key stays. Compacting what is
        compacted is no error; a revision in the future is InvalidArgument."""
        ...

    async def close(self) -> None:
        """Ends watches with Closed. Leases live on until they run out."""
        ...
