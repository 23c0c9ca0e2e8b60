"""Leases: keys of the metastore that their holders renew by compare-and-set, several times in each duration.

Nobody's wall clock counts, and no timer of the metastore's: the holder's own clock says how long it may rely on a
renewal, from before it was asked for; the others' own clocks say how long they have seen none, from after they saw the
last. If clocks run at rates that differ by less than a tenth, the second is over after the first.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from stelae.ports.clock import Clock
from stelae.ports.metastore import Compare, Entry, IsAbsent, Metastore, ModRevisionIs, PutKey, Revision

LEASE_S = 9.0
"""How long leases last, unless something else is said: longer than a busy process pauses."""
RENEWALS = 4
LOOKS = 8
"""How often in a duration the holder renews, and the others look."""

_HOLDER_SHARE = 0.9
_OTHERS_SHARE = 1.1
_BLIND_SHARE = 0.5
"""Of the duration: whoever could not look for so long begins to wait anew. Its holder could not renew it either, if
the metastore was away."""


def relied_on_until_s(asked_s: float, duration_s: float) -> float:
    """Until when, by its own clock, the holder may rely on a renewal that it asked for at that time."""
    return asked_s + _HOLDER_SHARE * duration_s


class Standstill(msgspec.Struct):
    """Since when a lease has not been renewed, as somebody sees it who does not hold it."""

    revision: Revision | None = None
    _since_s: float = 0.0
    _looked_s: float = 0.0

    def note(self, revision: Revision | None, now_s: float, duration_s: float) -> None:
        """What was just read: the revision of the lease's key, and how long it says that it lasts."""
        looked_s, self._looked_s = self._looked_s, now_s
        if revision is None or revision != self.revision:
            self.revision, self._since_s = revision, now_s
        elif now_s - looked_s > _BLIND_SHARE * duration_s:
            self._since_s = now_s

    def is_over(self, now_s: float, duration_s: float) -> bool:
        """Whether the holder relies on it no more, whatever its clock says."""
        return now_s - self._since_s >= _OTHERS_SHARE * duration_s


class LeaseValue(Protocol):
    """What lies on the metastore. `holder`: who wrote it; nobody else ever writes an equal one."""

    @property
    def value(self) -> bytes: ...

    @property
    def holder(self) -> Hashable: ...


L = TypeVar("L", bound=LeaseValue)


class HeldLease(Generic[L]):
    """A lease as its holder has it, or is about to."""

    def __init__(self, key: str, decode: Callable[[Entry], L], lease: L, revision: Revision | None) -> None:
        """What was found or written there; without a revision nothing was, and the lease is what is begun from."""
        self._key = key
        self._decode = decode
        self.lease = lease
        self.revision = revision
        self.until_s = float("-inf")
        """So long, by its own clock, may the holder rely on it."""
        self._newest = lease
        """What was written last; if the answer was lost, it or one before it may be there, or come yet."""

    @property
    def unchanged(self) -> Compare:
        return IsAbsent(self._key) if self.revision is None else ModRevisionIs(self._key, self.revision)

    async def renew(
        self,
        store: Metastore,
        clock: Clock,
        duration_s: float,
        following: Callable[[L], L],
        compares: Sequence[Compare] = (),
    ) -> bool:
        """Write what follows the last; `compares` must hold, too. False if they do not, or if somebody else has written
        it. Raises if that is not known: then it is relied on for as long as before, and the next renewal finds out
        whether this one has happened."""
        while True:
            asked_s = clock.monotonic_s()
            self._newest = lease = following(self._newest)
            outcome = await store.txn([self.unchanged, *compares], [PutKey(self._key, lease.value)])
            if outcome.succeeded:
                self.lease, self.revision = lease, outcome.revision
                self.until_s = relied_on_until_s(asked_s, duration_s)
                return True
            if not await self._find_own(store):
                return False

    async def _find_own(self, store: Metastore) -> bool:
        """Whether a renewal that was in doubt has happened."""
        entry = await store.get(self._key)
        if entry is None or entry.mod_revision == self.revision:
            return False
        found = self._decode(entry)
        if found.holder != self._newest.holder:
            return False
        self.lease, self.revision = found, entry.mod_revision
        return True
