"""What a master that leads is known by, one metastore key:

    master/guard

It is written anew by every master that begins to lead, with a number that grows. Whatever a leading master changes on
the metastore compares it, and whatever it asks of servers carries the number: so a master that another one has followed
changes nothing any more, however long it slept, and however late what it sent arrives. The address is where the others
find it.
"""

from __future__ import annotations

import msgspec

from stelae.model.errors import Deposed
from stelae.ports.metastore import Compare, Entry, IsAbsent, Metastore, ModRevisionIs, Revision
from stelae.registry.decoding import json_of
from stelae.registry.views.compared import ComparedStore

GUARD_KEY = "master/guard"


class MasterGuard(msgspec.Struct, frozen=True):
    master: str
    number: int
    address: str

    @property
    def value(self) -> bytes:
        return msgspec.json.encode(self)


class HeldGuard(msgspec.Struct, frozen=True):
    """A guard as the master has it that wrote it."""

    guard: MasterGuard
    revision: Revision

    @property
    def unchanged(self) -> Compare:
        return ModRevisionIs(GUARD_KEY, self.revision)


def guard_of(entry: Entry) -> MasterGuard:
    return json_of(entry, MasterGuard, "the master's guard")


async def read_guard(store: Metastore) -> MasterGuard | None:
    """None: no master has led yet."""
    entry = await store.get(GUARD_KEY)
    return None if entry is None else guard_of(entry)


def next_guard(entry: Entry | None, master: str, address: str) -> tuple[MasterGuard, Compare]:
    """Of the master that follows whoever wrote the entry; and what must hold when it is written."""
    if entry is None:
        return MasterGuard(master, 1, address), IsAbsent(GUARD_KEY)
    return MasterGuard(master, guard_of(entry).number + 1, address), ModRevisionIs(GUARD_KEY, entry.mod_revision)


class GuardedStore(ComparedStore):
    """A `Metastore` for whatever a master changes while it leads."""

    def __init__(self, store: Metastore, held: HeldGuard) -> None:
        super().__init__(store, held.unchanged)
        self._held = held

    def refusal(self, entry: Entry | None) -> Deposed:
        follower = "nobody" if entry is None else guard_of(entry).master
        return Deposed(f"master {self._held.guard.master} leads no more: {follower} does")
