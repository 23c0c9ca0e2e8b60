"""Which master leads: one metastore key, written by a master when it begins to lead.

    master/guard

Its number grows with every master that begins. The address is where the others find it.
"""

from __future__ import annotations

import msgspec

from stelae.model.errors import AlreadyExists
from stelae.ports.metastore import IsAbsent, Metastore, ModRevisionIs, PutKey
from stelae.registry.decoding import json_of

GUARD_KEY = "master/guard"
_ATTEMPTS_MAX = 5


class MasterGuard(msgspec.Struct, frozen=True):
    master: str
    number: int
    address: str


async def read_guard(store: Metastore) -> MasterGuard | None:
    """None: no master has led yet."""
    entry = await store.get(GUARD_KEY)
    return None if entry is None else json_of(entry, MasterGuard, "the master's guard")


async def take_guard(store: Metastore, master: str, address: str) -> MasterGuard:
    """Begin to lead. AlreadyExists if another master is beginning, too."""
    for _ in range(_ATTEMPTS_MAX):
        entry = await store.get(GUARD_KEY)
        number = 1 if entry is None else json_of(entry, MasterGuard, "the master's guard").number + 1
        compare = IsAbsent(GUARD_KEY) if entry is None else ModRevisionIs(GUARD_KEY, entry.mod_revision)
        guard = MasterGuard(master, number, address)
        if (await store.txn([compare], [PutKey(GUARD_KEY, msgspec.json.encode(guard))])).succeeded:
            return guard
    raise AlreadyExists(f"master {master}: another master is beginning to lead")
