"""Events as numbers: how often each kind of thing happened since the store was opened, how much, and for how long;
and what becomes of listeners that fail."""

from __future__ import annotations

import logging
from threading import Lock

from stelae.model.events import (
    Collected,
    Compacted,
    DiskRefused,
    Event,
    Flushed,
    LoadCommitted,
    LogCollected,
    Recovered,
    StoreFilled,
    TableCreated,
    TableDropped,
    TabletsJoined,
    TabletSplit,
    TicketExpired,
)

_log = logging.getLogger("stelae")

_NAMES: dict[type[Event], tuple[str, dict[str, str]]] = {
    Recovered: ("", {"seconds": "recovery_seconds"}),
    Flushed: ("flushes", {"records": "flushed_records", "size_bytes": "flushed_bytes", "seconds": "flush_seconds"}),
    Compacted: (
        "compactions",
        {
            "read_bytes": "compaction_read_bytes",
            "records": "compacted_records",
            "size_bytes": "compacted_bytes",
            "seconds": "compaction_seconds",
        },
    ),
    TabletSplit: ("splits", {}),
    TabletsJoined: ("joins", {}),
    Collected: ("", {"files": "collected_files", "size_bytes": "collected_bytes"}),
    LogCollected: ("", {"segments": "collected_segments", "size_bytes": "collected_log_bytes"}),
    LoadCommitted: ("loads", {"records": "loaded_records", "size_bytes": "loaded_bytes"}),
    TicketExpired: ("expired_tickets", {}),
    StoreFilled: ("overloads", {}),
    DiskRefused: ("disk_errors", {}),
    TableCreated: ("tables_created", {}),
    TableDropped: ("tables_dropped", {}),
}
"""By kind: what its events are counted as, if they are, and what the sum of each of its fields is called."""


class EventCounts:
    """A `Listener`. Safe for threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._numbers: dict[str, int | float] = {}
        for counted, fields in _NAMES.values():
            self._numbers |= {counted: 0} if counted else {}
            self._numbers |= {name: 0.0 if field == "seconds" else 0 for field, name in fields.items()}

    def __call__(self, event: Event) -> None:
        counted, fields = _NAMES.get(type(event), ("", {}))
        with self._lock:
            if counted:
                self._numbers[counted] += 1
            for field, name in fields.items():
                self._numbers[name] += getattr(event, field)

    def numbers(self) -> dict[str, int | float]:
        with self._lock:
            return dict(self._numbers)


def note_failure(event: Event, error: Exception) -> None:
    """The store goes on, and the process's log says that a listener does not."""
    _log.error("a listener failed to hear of %s", type(event).__name__, exc_info=error)
