"""The time that a program has seen: the greatest txn that any shard of a cluster has told it.

Every request carries it, and whoever hears a request gives out no smaller txn afterwards (`registry.senders`). So what
a program does after something that it knows of has a later txn, wherever each was done; and what it was told is the
newest snapshot stays as it is on every shard that it has spoken to since.
"""

from __future__ import annotations

from threading import Lock

import msgspec

from stelae.model.ids import Txn
from stelae.service.messages import Request


class SeenTime:
    """`last`: the greatest txn that was noted; 0: none. Safe for threads."""

    def __init__(self) -> None:
        self.last = Txn(0)
        self._lock = Lock()

    def note(self, txn: Txn) -> Txn:
        """Return the same txn, for whoever passes it on."""
        if txn > self.last:
            with self._lock:
                self.last = max(self.last, txn)
        return txn

    def sign(self, request: Request) -> Request:
        """The same request, with the time that was seen."""
        return msgspec.structs.replace(request, clock=self.last) if self.last else request
