"""Tables at snapshots, held for others: their files stay, and the history that the snapshots need.

A hold is taken in this order: the snapshot is pinned, what is in memory below it is written to files, the tablets'
references are taken and their files kept, both under the shard's lock, and the record is written to the metastore. So
there is no moment at which a file of it could go, and after a crash the record has it kept again before anything is
collected.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from threading import Lock

import msgspec
from msgspec.structs import replace

from stelae.catalog.serial.version1 import CATALOG_SERIALIZERS
from stelae.model.errors import NotFound, PermissionDenied, StelaeError, TabletAway
from stelae.model.ids import Txn
from stelae.ports.loop import Loop
from stelae.registry.bulk_sessions import HoldRecord, read_holds, remove_hold, renew_hold, write_hold
from stelae.registry.leftovers import drop_overlays
from stelae.registry.views.own import OwnStore
from stelae.service.tables import TableInfo
from stelae.service.tickets import HeldTable, overlay_directory
from stelae.storage.shard import Shard
from stelae.storage.tablet.config import encode_config
from stelae.storage.tablet.state import TabletState
from stelae.tserver.flushing import Flushing


class _Hold(msgspec.Struct, frozen=True):
    record: HoldRecord
    files: frozenset[str]
    pin: ExitStack


class Holds:
    """Safe for threads. `root`: where others find the files; `token`: of which store they are."""

    def __init__(
        self,
        shard: Shard,
        flushing: Flushing,
        store: OwnStore,
        loop: Loop,
        now_ms: Callable[[], int],
        root: str,
        token: str,
    ) -> None:
        self._shard = shard
        self._flushing = flushing
        self._store = store
        self._run = loop.run
        self._now_ms = now_ms
        self._root = root
        self._token = token
        self._lock = Lock()
        self._holds: dict[str, _Hold] = {}
        self._kept: dict[str, frozenset[str]] = {}
        """By ticket, also of holds that are being taken."""

    def recover(self) -> None:
        """Those that are in the metastore, before anything is collected."""
        for record, files in self._run(read_holds(self._store)):
            pin = ExitStack()
            try:
                pin.enter_context(self._shard.pinned(record.txn))
            except StelaeError:
                pin.close()
                continue
            self._kept[record.ticket] = files
            self._holds[record.ticket] = _Hold(record, files, pin)
        self.expire()

    def records(self) -> list[HoldRecord]:
        """The records of all holds that have not expired or been let go."""
        with self._lock:
            return [hold.record for hold in self._holds.values()]

    def kept(self) -> dict[str, frozenset[str]]:
        """The files of each ticket, also of those that are being taken."""
        return dict(self._kept)

    def keeps(self, name: str) -> bool:
        return any(name in files for files in list(self._kept.values()))

    def hold(self, info: TableInfo, at: Txn, ticket: str, ttl_s: float) -> HeldTable:
        """Hold a table at a snapshot. The caller has seen to it that no change below it is undecided."""
        with ExitStack() as undo:
            pin = undo.enter_context(ExitStack())
            pin.enter_context(self._shard.pinned(at, info.id))
            undo.callback(self._kept.pop, ticket, None)
            states = self._in_files(info, at, ticket)
            for state in states:
                self._shard.check_readable(state, at)
            table = replace(info.table, schema=states[0].schema)
            files = self._kept[ticket]
            expires_ms = self._now_ms() + int(ttl_s * 1_000)
            record = self._run(write_hold(self._store, ticket, info.id, at, expires_ms, sorted(files)))
            with self._lock:
                self._holds[ticket] = _Hold(record, files, pin)
            undo.pop_all()
        return HeldTable(
            ticket=ticket,
            txn=at,
            horizon=max(self._shard.horizon(info.id), *(state.purged_below for state in states)),
            name=info.name,
            root=self._root,
            table=CATALOG_SERIALIZERS.encode(table),
            configs=tuple(encode_config(self._shard.config(state)) for state in states),
            store=self._token,
        )

    def _in_files(self, info: TableInfo, at: Txn, ticket: str) -> list[TabletState]:
        while True:
            with self._shard.lock:
                states = self._shard.of_table(info.id)
                if not states:
                    raise TabletAway(f"no tablet of table {info.name!r} is here")
                if all(memory.txn_min > at for state in states for memory in state.memories):
                    self._kept[ticket] = frozenset(name for state in states for name in state.files())
                    return states
            self._flushing.flush(info.id)

    def renew(self, ticket: str, ttl_s: float) -> None:
        with self._lock:
            hold = self._holds.get(ticket)
        if hold is None:
            raise NotFound(f"snapshot {ticket!r} is not held any more: it expired, or was let go")
        record = HoldRecord(
            ticket, hold.record.table, hold.record.txn, self._now_ms() + int(ttl_s * 1_000), hold.record.files
        )
        self._run(renew_hold(self._store, record))
        with self._lock:
            if ticket in self._holds:
                self._holds[ticket] = replace(hold, record=record)
                return
        self._run(remove_hold(self._store, ticket))
        raise NotFound(f"snapshot {ticket!r} was let go meanwhile")

    def release(self, ticket: str) -> bool:
        """Whether something was let go."""
        with self._lock:
            hold = self._holds.pop(ticket, None)
        if hold is None:
            return False
        self._kept.pop(ticket, None)
        hold.pin.close()
        self._run(remove_hold(self._store, ticket))
        # What cannot be deleted now is swept later, or by whoever may write: no store stays closed for it.
        with suppress(StelaeError):
            self._shard.blobs.delete_below(overlay_directory(ticket))
        return True

    def drop_overlays(self) -> None:
        """Delete the overlays of holds that ended while nobody served the store, or that were made too late. A store
        opened read-only leaves them."""
        with suppress(PermissionDenied):
            drop_overlays(self._shard.blobs, self._holds.__contains__)

    def expire(self) -> list[str]:
        """Let go of what nobody has renewed in time; the tickets that ended."""
        now_ms = self._now_ms()
        with self._lock:
            over = [ticket for ticket, hold in self._holds.items() if hold.record.expires_ms <= now_ms]
        return [ticket for ticket in over if self.release(ticket)]
