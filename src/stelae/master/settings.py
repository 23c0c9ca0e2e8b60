"""How a master works."""

from __future__ import annotations

import msgspec

from stelae.registry.catalog.settings import HistoryKept


class MasterSettings(msgspec.Struct, frozen=True):
    """`grace_s`: how long a dropped table can be recalled. `history`: how long that of a cluster's catalog becomes."""

    assignment_timeout_s: float = 30.0
    attempts_max: int = 3
    grace_s: float = 24 * 3600.0
    tablets_per_table_max: int = 10_000
    history: HistoryKept = msgspec.field(default_factory=HistoryKept)
