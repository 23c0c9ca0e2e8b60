"""How a process follows the catalog, and how long a cluster lets its history become."""

from __future__ import annotations

import msgspec

VERSIONS_MAX = 1_000
"""So many versions of the catalog are read again at every opening, before they are put together."""


class CatalogSettings(msgspec.Struct, frozen=True):
    """Embedded, `delay_ms` and `skew_ms` are 0: one clock, one machine."""

    author: str = ""
    delay_ms: int = 0
    skew_ms: int = 0
    attempts_max: int = 30
    backoff_s: float = 0.005
    backoff_max_s: float = 0.5
    lease_s: float = 30.0
    snapshot_every: int = 1_000


class HistoryKept(msgspec.Struct, frozen=True):
    """For the processes of a cluster. `versions_max`: so many versions make the history long; then shards write to
    files what they have of older schemas, and the leading master puts versions together. `look_s`: how often each of
    them looks whether there is something to do. `settle_s`: so long have all shards to follow a version, before one of
    them says that it needs no older ones."""

    versions_max: int = VERSIONS_MAX
    look_s: float = 60.0
    settle_s: float = 60.0
