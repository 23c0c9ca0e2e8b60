"""Writes of rows that several shards have: each shard is sent its part, all at once, and each part in its order.

Of a part that was refused nothing happened. If others are durable by then, the call goes on with what is left
(`calls.remainders`), which is cut anew when it is sent again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from stelae.client.calls.remainders import PartsLeft, may_repeat
from stelae.client.remote.cluster.seen import SeenTime
from stelae.model.errors import PartialWrite, StaleSchema, StelaeError, UnknownOutcome
from stelae.model.ids import Txn
from stelae.service.blocks import OrderedBlock, blocks_behind

Parts: TypeAlias = Mapping[str, Sequence[OrderedBlock]]
"""Blocks, by the shard that has their rows."""

Outcomes: TypeAlias = Mapping[str, Txn | StelaeError]
"""What became of each shard's part."""


def newest_written(parts: Parts, outcomes: Outcomes, seen: SeenTime) -> Txn:
    """The largest txn, if all parts are durable. Else raises the worst of what the shards said. It is PartsLeft if some
    are durable and of the others nothing happened. Otherwise all of it is sent again, and shards know by the numbers of
    what they are sent which part they have done."""
    newest = Txn(0)
    left: list[OrderedBlock] = []
    errors: list[StelaeError] = []
    for shard, outcome in outcomes.items():
        if not isinstance(outcome, StelaeError):
            newest = max(newest, seen.note(outcome))
            continue
        errors.append(outcome)
        left += blocks_behind(parts[shard], outcome.durable if isinstance(outcome, PartialWrite) else 0)
    if not errors:
        return newest
    error = min(errors, key=_rank)
    count, count_left = (_count(blocks) for blocks in ([b for part in parts.values() for b in part], left))
    if count_left == count or isinstance(error, UnknownOutcome):
        raise error
    raise PartsLeft(left, newest, error)


def _count(blocks: Sequence[OrderedBlock]) -> int:
    return sum(block.count for block in blocks)


def _rank(error: StelaeError) -> int:
    """Of errors of several parts the one that counts has the lowest: what leaves the most open comes first."""
    if isinstance(error, UnknownOutcome):
        return 0
    if isinstance(error, StaleSchema):
        return 2
    return 3 if may_repeat(error) else 1
