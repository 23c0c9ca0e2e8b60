"""How long a master leads, one metastore key:

    master/lease

Its holder renews it several times in each duration, by compare-and-set. Nobody's wall clock counts, and no timer of the
metastore's: the holder's own clock says how long it may rely on a renewal, from before it was asked for; the others'
own clocks say how long they have seen none, from after they saw the last. If clocks run at rates that differ by less
than a tenth, the second is over after the first.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from stelae.ports.metastore import Compare, Entry, IsAbsent, ModRevisionIs, Revision
from stelae.registry.decoding import json_of

LEASE_KEY = "master/lease"
_HOLDER_SHARE = 0.9
_OTHERS_SHARE = 1.1
_BLIND_SHARE = 0.5
"""Of the duration: whoever could not look for so long begins to wait anew. Its holder could not renew it either, if
the metastore was away."""


class MasterLease(msgspec.Struct, frozen=True):
    """`id`: of the master, as it lies in its directory. `life`: of the process. `is_over`: given back."""

    master: str
    id: str
    life: str
    renewals: int
    duration_ms: int
    is_over: bool = False

    def following(self, *, is_over: bool = False) -> MasterLease:
        return msgspec.structs.replace(self, renewals=self.renewals + 1, is_over=is_over)

    @property
    def value(self) -> bytes:
        return msgspec.json.encode(self)


def lease_of(entry: Entry) -> MasterLease:
    return json_of(entry, MasterLease, "the master's lease")


def lease_unchanged(entry: Entry | None) -> Compare:
    return IsAbsent(LEASE_KEY) if entry is None else ModRevisionIs(LEASE_KEY, entry.mod_revision)


def relied_on_until_s(asked_s: float, duration_s: float) -> float:
    """Until when, by its own clock, the holder may rely on a renewal that it asked for at that time."""
    return asked_s + _HOLDER_SHARE * duration_s


@dataclass(slots=True)
class SeenLease:
    """The lease as a master sees it that does not hold it."""

    lease: MasterLease | None = None
    _revision: Revision | None = None
    _since_s: float = 0.0
    _looked_s: float = 0.0

    def note(self, entry: Entry | None, now_s: float) -> None:
        """What was just read."""
        lease, looked_s, self._looked_s = self.lease, self._looked_s, now_s
        if entry is None or lease is None or entry.mod_revision != self._revision:
            self.lease = None if entry is None else lease_of(entry)
            self._revision, self._since_s = None if entry is None else entry.mod_revision, now_s
        elif now_s - looked_s > _BLIND_SHARE * lease.duration_ms / 1_000:
            self._since_s = now_s

    def is_free(self, id_: str, now_s: float) -> bool:
        """Whether the master with that id may take it. What the same master held before, another process of it held,
        which has ended: only one at a time has the directory of a master."""
        lease = self.lease
        if lease is None or lease.is_over or lease.id == id_:
            return True
        return now_s - self._since_s >= _OTHERS_SHARE * lease.duration_ms / 1_000
