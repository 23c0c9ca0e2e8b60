"""What a leader asks of the shards that have other replicas of its tablets, to compare them with its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

import msgspec

from stelae.model.ids import TabletId
from stelae.service.bodies import Bytes, codec_of
from stelae.service.deadlines import Deadline
from stelae.service.messages import Request
from stelae.service.operations import Asked, Operation
from stelae.service.reports import Progress
from stelae.storage.replicas.comparing import ReplicaImage

_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
TABLETS_MAX = 256

Images: TypeAlias = tuple[ReplicaImage | None, ...]
"""In the order in which tablets were named; None: nothing is there of the tablet."""


class ImagesMessage(Request, frozen=True):
    """`log`: which log it is about."""

    log: str
    tablets: Annotated[tuple[_Number, ...], msgspec.Meta(max_length=TABLETS_MAX)]


def _ask(log: str, tablets: Sequence[TabletId]) -> Asked:
    return ImagesMessage(log, tuple(tablets)), b""


def _carry_out(
    shard: Any, asked: Any, _: Bytes, until: Deadline | None, __: Progress
) -> tuple[ReplicaImage | None, ...]:
    return shard.replica_images(asked.log, asked.tablets, deadline=until)


REPLICA_IMAGES = Operation(
    "replica_images",
    ImagesMessage,
    _ask,
    _carry_out,
    codec_of("images of replicas", Images),
    is_long=True,
)
