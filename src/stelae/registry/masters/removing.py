"""What an operator asks of a master: to take a node, or one of its shards, out of the cluster for good."""

from __future__ import annotations

from typing import Any

import msgspec

from stelae.service.bodies import Bytes, codec_of
from stelae.service.deadlines import Deadline
from stelae.service.messages import Request
from stelae.service.operations import Asked, Operation
from stelae.service.reports import Progress


class LostTablets(msgspec.Struct, frozen=True):
    """Of a table, by its qualified name: so many of its tablets had their only replica there."""

    table: str
    tablets: int


class RemovedServers(msgspec.Struct, frozen=True):
    """`shards`: those that were taken out. `lost`: whose rows went with them."""

    shards: tuple[str, ...]
    lost: tuple[LostTablets, ...] = ()


class RemoveMessage(Request, frozen=True):
    name: str
    accepts_loss: bool


def _ask_remove(name: str, accepts_loss: bool) -> Asked:
    return RemoveMessage(name, accepts_loss), b""


def _carry_out_remove(master: Any, asked: Any, _: Bytes, until: Deadline | None, __: Progress) -> RemovedServers:
    return master.remove_servers(asked.name, accepts_loss=asked.accepts_loss, deadline=until)


REMOVE = Operation(
    "remove_servers",
    RemoveMessage,
    _ask_remove,
    _carry_out_remove,
    codec_of("what was removed", RemovedServers),
    changes=True,
    is_repeatable=False,
    is_long=True,
)
