"""How a master works."""

from __future__ import annotations

import msgspec


class MasterSettings(msgspec.Struct, frozen=True):
    """`grace_s`: how long a dropped table can be recalled."""

    assignment_timeout_s: float = 30.0
    attempts_max: int = 3
    grace_s: float = 24 * 3600.0
    tablets_per_table_max: int = 10_000
