"""Serializer versions 3.

`GroupOptions`: with the past purge policies of keys that were put alone, from the time when another group kept them.
Groups without are still written in version 2 or 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from stelae.catalog.serial.registry import ObjectType, Serializer
from stelae.catalog.serial.version2 import check_kinds, read_options, read_past, write_options, write_past
from stelae.model.schema import GroupOptions

_SINCE = "0.1.0"


def _write_options(options: GroupOptions) -> list[Any]:
    return [*write_options(options), write_past(options.keys_past)]


def _read_options(stored: list[Any]) -> GroupOptions:
    *before, keys_past = stored
    check_kinds((keys_past,), (list,))
    return replace(read_options(before), keys_past=read_past(keys_past))


SINCE_VERSION_2: Sequence[Serializer] = (
    Serializer(
        ObjectType.GROUP_OPTIONS,
        3,
        _SINCE,
        GroupOptions,
        _write_options,
        _read_options,
        is_needed=lambda options: bool(options.keys_past),
    ),
)
