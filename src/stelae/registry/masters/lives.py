"""Which masters serve, one metastore key each, by their names:

    masters/{name}

A master writes it when it begins to serve, and removes it when it is closed in order. It decides nothing: who leads is
said by the guard. It is for those who look at the cluster, and want to know whom to ask.
"""

from __future__ import annotations

import msgspec

from stelae.model.errors import AlreadyExists
from stelae.ports.metastore import DeleteKey, IsAbsent, Metastore, ModRevisionIs, PutKey, ValueIs
from stelae.registry.decoding import json_of

MASTERS_PREFIX = "masters/"
_ATTEMPTS_MAX = 5


class MasterLife(msgspec.Struct, frozen=True):
    """`id`: lies in the master's directory. `address`: where it serves. `release`: of the product."""

    name: str
    id: str
    address: str
    release: str = ""

    @property
    def key(self) -> str:
        return MASTERS_PREFIX + self.name

    @property
    def value(self) -> bytes:
        return msgspec.json.encode(self)


async def read_masters(store: Metastore) -> tuple[MasterLife, ...]:
    """By name: those that serve, or were ended by something else than an order to stop."""
    read = await store.range(MASTERS_PREFIX)
    return tuple(json_of(entry, MasterLife, "the life of a master") for entry in read.entries)


async def register_master(store: Metastore, life: MasterLife) -> None:
    """In the place of whoever had the name before: that one may lie on another disk, and come no more."""
    for _ in range(_ATTEMPTS_MAX):
        entry = await store.get(life.key)
        unchanged = IsAbsent(life.key) if entry is None else ModRevisionIs(life.key, entry.mod_revision)
        if (await store.txn([unchanged], [PutKey(life.key, life.value)])).succeeded:
            return
    raise AlreadyExists(f"master {life.name} is being started by another process")


async def remove_master(store: Metastore, life: MasterLife) -> None:
    """Remove the record of a master that has ended, unless another process has its name by now."""
    await store.txn([ValueIs(life.key, life.value)], [DeleteKey(life.key)])
