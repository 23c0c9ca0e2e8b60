"""Sizes that are checked at the door, before anything is written."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True):
    row_bytes_max: int = 4 * 1024
    value_bytes_max: int = 16 * 1024 * 1024
    block_bytes_max: int = 64 * 1024 * 1024
    columns_max: int = 1_000
    key_columns_max: int = 32
    groups_max: int = 100
    families_max: int = 1_000
    name_bytes_max: int = 255
    tablets_max: int = 10_000


DEFAULT_LIMITS = Limits()
