"""What a shard tells the master that leads, every second: that it lives, and what has changed about its tablets.

Each heartbeat has a number that grows within an incarnation of the shard. A master takes those of one shard in the
order of (incarnation, number) and drops what comes late. It asks for a registration, and for a report on all tablets,
when it does not know the shard, or has missed something: so nobody has to remember what another master was told.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stelae.model.ids import TabletId
from stelae.registry.control import ReportedTablet
from stelae.service.bodies import Bytes, codec_of
from stelae.service.deadlines import Deadline
from stelae.service.messages import Request
from stelae.service.operations import Asked, Operation
from stelae.service.reports import Progress

HEARTBEAT_S = 1.0
SILENT_S = 4.0
"""A shard of which nothing was heard for so long gets no new tablets."""

CLOCK_OFF_MS_MAX = 10_000
"""Nor does one whose wall clock is off by more than so much from its master's: its txns would lie too far ahead of, or
behind, all others."""


class Registration(msgspec.Struct, frozen=True):
    """What does not change while a shard's process lives."""

    node: str
    address: str
    release: str = ""


class Heartbeat(msgspec.Struct, frozen=True):
    """`since`: the number of the heartbeat that `changed` and `gone` follow; None: `changed` are all tablets it has.
    `catalog`: the version that it has read. `log_bytes`, `unflushed_bytes`: what it has not in files yet."""

    server: str
    incarnation: int
    number: int
    wall_ms: int
    catalog: int
    since: int | None = None
    changed: tuple[ReportedTablet, ...] = ()
    gone: tuple[TabletId, ...] = ()
    registration: Registration | None = None
    log_bytes: int = 0
    unflushed_bytes: int = 0


class HeartbeatAnswer(msgspec.Struct, frozen=True):
    """`register`: say what does not change. `report_all`: the next heartbeat has all tablets. `is_late`: this one came
    after a later one, and was dropped. `clock_off_ms`: how far the shard's clock is ahead of the master's, if that is
    too much."""

    register: bool = False
    report_all: bool = False
    is_late: bool = False
    clock_off_ms: int = 0


class HeartbeatMessage(Request, frozen=True):
    beat: Heartbeat


def _ask_heartbeat(beat: Heartbeat) -> Asked:
    return HeartbeatMessage(beat), b""


def _carry_out_heartbeat(master: Any, asked: Any, _: Bytes, until: Deadline | None, __: Progress) -> HeartbeatAnswer:
    return master.heartbeat(asked.beat, deadline=until)


HEARTBEAT = Operation(
    "heartbeat",
    HeartbeatMessage,
    _ask_heartbeat,
    _carry_out_heartbeat,
    codec_of("the answer to a heartbeat", HeartbeatAnswer),
)
