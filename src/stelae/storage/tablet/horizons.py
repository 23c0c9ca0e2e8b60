"""Which snapshots can still be read: a horizon for each table, and the pins that hold it back.

Compactions drop only what no snapshot at or above the horizon can see. It is moved on by whoever knows the table's
retention, and never past a snapshot that somebody has pinned. Horizons are of this shard; what was dropped of a tablet
before it came here, its state says (`TabletState.purged_below`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from stelae.model.errors import SnapshotTooOld
from stelae.model.hybrid import TXN_MIN, show_txn
from stelae.model.ids import TableId, Txn


class SnapshotPin:
    """A snapshot that is held. Closing twice is no error."""

    __slots__ = ("_horizons", "txn")

    def __init__(self, horizons: Horizons, txn: Txn) -> None:
        self._horizons = horizons
        self.txn = txn

    def close(self) -> None:
        self._horizons.unpin(self)


class Horizons:
    """Guarded by the shard's lock, which every change takes."""

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        self._lock = lock
        self._horizons: dict[TableId, Txn] = {}
        self._pins: dict[SnapshotPin, Txn] = {}

    def horizon(self, table: TableId) -> Txn:
        return self._horizons.get(table, TXN_MIN)

    def held_back(self, to: Txn) -> Txn:
        """How far towards it the horizon may go now."""
        with self._lock:
            return min((to, *self._pins.values()))

    def pins_below(self, to: Txn) -> list[Txn]:
        """The snapshots that hold the horizon back, oldest first."""
        with self._lock:
            return sorted(txn for txn in self._pins.values() if txn < to)

    def advance_horizon(self, table: TableId, to: Txn) -> Txn:
        """History below may be dropped from here on, but for what pinned readers need."""
        with self._lock:
            allowed = min((to, *self._pins.values()))
            self._horizons[table] = max(self.horizon(table), allowed)
            return self._horizons[table]

    def pin(self, at: Txn) -> SnapshotPin:
        """What is visible at the txn, and still readable now, stays so until the pin is closed."""
        pin = SnapshotPin(self, at)
        with self._lock:
            self._pins[pin] = at
        return pin

    def unpin(self, pin: SnapshotPin) -> None:
        with self._lock:
            self._pins.pop(pin, None)

    @contextmanager
    def pinned(self, at: Txn, table: TableId | None = None) -> Iterator[Txn]:
        """What is visible at the txn stays readable until this ends. SnapshotTooOld if it is so old already that
        history it needs may be gone."""
        with self._lock:
            if table is not None:
                self.check_snapshot(table, at)
            pin = self.pin(at)
        try:
            yield at
        finally:
            pin.close()

    def check_snapshot(self, table: TableId, at: Txn, purged_below: Txn = TXN_MIN) -> None:
        """SnapshotTooOld if history that the snapshot needs may be gone. `purged_below`: of the tablet that is read,
        whose history others may have dropped."""
        horizon = max(self.horizon(table), purged_below)
        if at < horizon:
            raise SnapshotTooOld(
                f"the snapshot of {show_txn(at)} is older than the history that is kept, which begins at "
                f"{show_txn(horizon)}: read at a newer time; hold a snapshot while you need it (db.snapshot()), or let "
                "the table keep more: db.alter_table(..., retention='7d')"
            )
