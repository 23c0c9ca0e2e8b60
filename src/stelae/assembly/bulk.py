"""Jobs that move much data: their tickets are given out, renewed, let go, and expire. See `client.bulk`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stelae.assembly.bulk_compactions import Compactions
from stelae.assembly.bulk_files import drop_staged
from stelae.assembly.bulk_holds import Holds
from stelae.assembly.bulk_loads import Loads
from stelae.assembly.opening import Running
from stelae.format.fragment.footer import FragmentFile
from stelae.model.errors import InvalidArgument, NotFound
from stelae.model.ids import TableId, Txn
from stelae.service.jobs import TTL_S_MAX
from stelae.service.tables import TableInfo
from stelae.service.tickets import CompactionTicket, HeldTable, LoadedFile, LoadTicket
from stelae.storage.files.writing import file_name_prefix

_SWEEP_EVERY_MS = 3_600 * 1_000
_HOLD, _LOAD, _COMPACTION = "hold-", "load-", "compaction-"


class BulkJobs:
    """Safe for threads. `move_horizon`: up to where the table's history may be dropped."""

    def __init__(self, running: Running, root: str, move_horizon: Callable[[TableInfo, bool], None]) -> None:
        self._running = running
        self._rng = running.world.rng
        self._move_horizon = move_horizon
        self._now_ms = now_ms = running.world.clock.wall_ms
        self._sweep_ms = 0
        self._holds = Holds(running, root, now_ms)
        self._loads = Loads(running, root, now_ms)
        self._compactions = Compactions(running, root, now_ms)
        self._kinds: dict[str, Holds | Loads | Compactions] = {
            _HOLD: self._holds,
            _LOAD: self._loads,
            _COMPACTION: self._compactions,
        }
        running.server.upkeep.keeps = self.keeps
        running.keeper.gives_way = self._loads.is_under_way
        self._holds.recover()
        self._loads.recover()

    def keeps(self, name: str) -> bool:
        return self._holds.keeps(name) or self._loads.keeps(name) or self._compactions.keeps(name)

    def hold(self, info: TableInfo, at: Txn, ttl_s: float) -> HeldTable:
        return self._holds.hold(info, at, self._ticket(_HOLD), _checked(ttl_s))

    def begin_load(self, info: TableInfo, job: str, batch: int, ttl_s: float) -> LoadTicket:
        if type(batch) is not int or batch < 0:
            raise InvalidArgument(f"batches are numbered from 0, not {batch!r}")
        return self._loads.begin(info, job, batch, self._ticket(_LOAD), self._prefix(info.id), _checked(ttl_s))

    def commit_load(self, ticket: str, files: Sequence[LoadedFile], *, replaces: bool) -> Txn:
        return self._loads.commit(ticket, files, replaces=replaces)

    def begin_compaction(self, info: TableInfo, *, full: bool, erase_now: bool, ttl_s: float) -> CompactionTicket:
        self._running.server.flush(info.id)
        self._move_horizon(info, erase_now)
        ticket, prefix = self._ticket(_COMPACTION), self._prefix(info.id)
        return self._compactions.begin(info, ticket, prefix, _checked(ttl_s), full=full)

    def adopt(self, ticket: str, number: int, file: FragmentFile | None) -> bool:
        return self._compactions.adopt(ticket, number, file)

    def renew(self, ticket: str, ttl_s: float) -> None:
        self._kind(ticket).renew(ticket, _checked(ttl_s))

    def release(self, ticket: str) -> None:
        self._kind(ticket).release(ticket)

    def expire(self) -> None:
        """What nobody has renewed in time is let go."""
        for kind in self._kinds.values():
            if kind.expire():
                self._running.keeper.garbage_left()
        now_ms = self._now_ms()
        if now_ms >= self._sweep_ms:
            self._sweep_ms = now_ms + _SWEEP_EVERY_MS
            drop_staged(self._running.server.shard.blobs, now_ms)

    def _kind(self, ticket: str) -> Holds | Loads | Compactions:
        for prefix, kind in self._kinds.items():
            if ticket.startswith(prefix):
                return kind
        raise NotFound(f"no ticket is called {ticket!r}")

    def _ticket(self, kind: str) -> str:
        return kind + self._rng.token(12).hex()

    def _prefix(self, table: TableId) -> str:
        return file_name_prefix(table, self._running.server.shard.clock.tick(), self._rng.token(8).hex())


def _checked(ttl_s: float) -> float:
    if not 0 < ttl_s <= TTL_S_MAX:
        raise InvalidArgument(f"a ticket lives for more than 0 and at most {TTL_S_MAX:.0f} seconds, not {ttl_s}")
    return ttl_s
