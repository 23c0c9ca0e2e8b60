"""Version 2, of the types that version 1 cannot hold all of any more.

`GroupOptions`: with the past purge policies of the group, each as its text and its last txn. Groups that never changed
their policy are still written in version 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stelae.catalog.serial.registry import ObjectType, Serializer
from stelae.model.hybrid import check_txn
from stelae.model.purge import PastPolicy, PurgePolicy, parse_purge
from stelae.model.schema import GroupOptions

_SINCE = "0.1.0"


def _text(policy: PurgePolicy | None) -> str | None:
    return None if policy is None else str(policy)


def _policy(text: Any) -> PurgePolicy | None:
    return None if text is None else parse_purge(text)


def _write(options: GroupOptions) -> list[Any]:
    return [
        options.compression,
        options.block_bytes,
        options.in_memory,
        options.bloom,
        _text(options.purge),
        [[_text(each.policy), each.until] for each in options.past],
    ]


def _read(stored: list[Any]) -> GroupOptions:
    compression, block_bytes, in_memory, bloom, purge, past = stored
    kinds = [type(each) for each in (compression, block_bytes, in_memory, bloom, past)]
    if kinds != [str, int, bool, bool, list]:
        raise TypeError(f"the fields are {[kind.__name__ for kind in kinds]}")
    policies = tuple(PastPolicy(_policy(text), check_txn(until)) for text, until in past)
    return GroupOptions(compression, block_bytes, in_memory, bloom, _policy(purge), policies)


SINCE_VERSION_1: Sequence[Serializer] = (
    Serializer(
        ObjectType.GROUP_OPTIONS, 2, _SINCE, GroupOptions, _write, _read, is_needed=lambda options: bool(options.past)
    ),
)
