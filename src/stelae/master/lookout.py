"""Looks at a whole cluster: what lies on the metastore, and what each process says of itself when it is asked now."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from stelae.catalog.value import Catalog
from stelae.master.leadership import MasterIdentity
from stelae.model.errors import StelaeError
from stelae.ports.clock import Clock
from stelae.ports.metastore import Metastore
from stelae.registry.incarnations import read_lives
from stelae.registry.masters.draining import read_drained
from stelae.registry.masters.guard import read_guard
from stelae.registry.masters.lease import LEASE_KEY, lease_of
from stelae.registry.masters.lives import MasterLife, read_masters, register_master, remove_master
from stelae.registry.masters.overview import ClusterOverview, Heard, MasterSeen, Numbers, find_late, see_shards
from stelae.registry.peers import Peer
from stelae.registry.tablet_records import read_tablets
from stelae.service.deadlines import Deadline
from stelae.service.operations import METRICS

ANSWER_S = 5.0
"""Who has not answered by then is shown as one that does not."""


Find = Callable[[Deadline | None], Awaitable[str]]
"""Gives the address of who is to be asked."""


class Lookout:
    """Of one master, for the tasks of its event loop; it is itself to be seen by others while it serves. `reach` makes
    a peer that is called so: a new one each time, which is closed again."""

    def __init__(
        self, store: Metastore, clock: Clock, me: MasterIdentity, release: str, reach: Callable[[str, Find], Peer]
    ) -> None:
        self._store = store
        self._clock = clock
        self._me = MasterLife(me.name, me.id, "", release)
        self._reach = reach

    async def appear(self, address: str) -> None:
        """Say in the metastore that this master serves there."""
        self._me = msgspec.structs.replace(self._me, address=address)
        await register_master(self._store, self._me)

    async def vanish(self) -> None:
        """It serves no more. If that cannot be said, it is seen as one that does not answer."""
        with suppress(StelaeError):
            await remove_master(self._store, self._me)

    async def look(self, own: Numbers, catalog: Catalog, heard: Mapping[str, Heard]) -> ClusterOverview:
        """`own`: the numbers of this master: it need not ask itself. `heard`: what it has heard of shards."""
        me = self._me.name
        masters, lives = await read_masters(self._store), await read_lives(self._store)
        guard, lease = await read_guard(self._store), await self._store.get(LEASE_KEY)
        records = await read_tablets(self._store)
        asked = [(each.name, each.address) for each in masters if each.name != me]
        asked += [(each.name, each.address) for each in lives]
        answers = await asyncio.gather(*(self._ask(name, address) for name, address in asked))
        told = dict(zip((name for name, _ in asked), answers, strict=True)) | {me: (own, "")}
        seen = see_shards(lives, records, told, heard, await read_drained(self._store))
        leaders = _see_masters(masters, told)
        return ClusterOverview(
            me,
            "" if guard is None else guard.master,
            0 if guard is None else guard.number,
            0 if lease is None else lease_of(lease).duration_ms,
            catalog.version,
            len(catalog.tables),
            leaders,
            seen,
            find_late(leaders, seen, records, catalog.version, self._clock.wall_ms()),
        )

    async def _ask(self, name: str, address: str) -> tuple[Numbers, str]:
        async def find(_: Deadline | None) -> str:
            return address

        peer = self._reach(name, find)
        try:
            told = await peer.ask(METRICS, Deadline(self._clock, ANSWER_S))
        except StelaeError as error:
            return {}, str(error)
        finally:
            await peer.close()
        return {key: value for key, value in told.items() if isinstance(value, int | float)}, ""


def _see_masters(lives: Sequence[MasterLife], told: dict[str, tuple[Numbers, str]]) -> tuple[MasterSeen, ...]:
    found = []
    for life in lives:
        numbers, trouble = told[life.name]
        found.append(MasterSeen(life.name, life.address, life.release, bool(numbers.get("leading")), trouble))
    return tuple(found)
