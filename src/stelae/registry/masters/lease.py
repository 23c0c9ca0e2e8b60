"""How long a master leads, one metastore key (see `registry.leases.held`):

master/lease
"""

from __future__ import annotations

import msgspec

from stelae.ports.metastore import Entry
from stelae.registry.decoding import json_of
from stelae.registry.leases.held import Standstill

LEASE_KEY = "master/lease"


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

    @property
    def holder(self) -> str:
        return self.life


def lease_of(entry: Entry) -> MasterLease:
    return json_of(entry, MasterLease, "the master's lease")


class SeenLease(msgspec.Struct):
    """The lease as a master sees it that does not hold it."""

    lease: MasterLease | None = None
    _standstill: Standstill = msgspec.field(default_factory=Standstill)

    def note(self, entry: Entry | None, now_s: float) -> None:
        """Take in the lease as it was just read from the metastore; None: there is none."""
        self.lease = None if entry is None else lease_of(entry)
        revision = None if entry is None else entry.mod_revision
        self._standstill.note(revision, now_s, self._duration_s)

    def is_free(self, id_: str, now_s: float) -> bool:
        """Whether the master with that id may take it. What the same master held before, another process of it held,
        which has ended: only one at a time has the directory of a master."""
        lease = self.lease
        if lease is None or lease.is_over or lease.id == id_:
            return True
        return self._standstill.is_over(now_s, self._duration_s)

    @property
    def _duration_s(self) -> float:
        return 0.0 if self.lease is None else self.lease.duration_ms / 1_000
