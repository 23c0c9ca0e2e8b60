"""Events as numbers: how often each kind of thing happened since the store was opened, how much, and for how long;
and what becomes of listeners that fail."""

from __future__ import annotations

import logging
from collections.abc import Collection
from threading import Lock
from typing import TypeAlias

from stelae.model.events import (
    ClockIsOff,
    Collected,
    CollectionPutOff,
    Compacted,
    DiskRefused,
    Event,
    Flushed,
    LeaderElected,
    LeadRefused,
    LeaseLost,
    LoadCommitted,
    LogCollected,
    OwnerLost,
    Recovered,
    ShardRemoved,
    StoreFilled,
    TableCreated,
    TableDropped,
    TabletsJoined,
    TabletSplit,
    TicketExpired,
    TookOver,
    UnknownFilesFound,
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
    UnknownFilesFound: ("unknown_file_alarms", {}),
    OwnerLost: ("owners_lost", {}),
    TookOver: ("takeovers", {"seconds": "takeover_seconds"}),
    LeaseLost: ("leases_lost", {}),
    ClockIsOff: ("clock_alarms", {}),
    LeaderElected: ("elections", {}),
    LeadRefused: ("leads_refused", {}),
    CollectionPutOff: ("collections_put_off", {}),
    ShardRemoved: ("shards_removed", {}),
}
"""By kind: what its events are counted as, if they are, and what the sum of each of its fields is called."""

_Kinds: TypeAlias = frozenset[type[Event]]
_OF_TAKEOVERS: _Kinds = frozenset({OwnerLost, TookOver})
_OF_CLUSTERS: _Kinds = frozenset({LeaseLost, ClockIsOff, LeaderElected, LeadRefused, CollectionPutOff, ShardRemoved})
IN_STORES: _Kinds = frozenset(_NAMES) - _OF_CLUSTERS
"""What can happen in a store that one process has."""
IN_SHARDS: _Kinds = (frozenset(_NAMES) - _OF_CLUSTERS - _OF_TAKEOVERS) | {LeaseLost, ClockIsOff}
IN_MASTERS: _Kinds = frozenset(
    {
        TicketExpired,
        LoadCommitted,
        TableCreated,
        TableDropped,
        UnknownFilesFound,
        LeaderElected,
        LeadRefused,
        CollectionPutOff,
        ShardRemoved,
    }
)


class EventCounts:
    """A `Listener`. Safe for threads. `kinds`: what can happen where it listens; nothing else has a number there."""

    def __init__(self, kinds: Collection[type[Event]]) -> None:
        self._lock = Lock()
        self._names = {kind: names for kind, names in _NAMES.items() if kind in kinds}
        self._numbers: dict[str, int | float] = {}
        for counted, fields in self._names.values():
            self._numbers |= {counted: 0} if counted else {}
            self._numbers |= {name: 0.0 if field == "seconds" else 0 for field, name in fields.items()}

    def __call__(self, event: Event) -> None:
        counted, fields = self._names.get(type(event), ("", {}))
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
