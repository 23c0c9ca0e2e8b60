"""Who the replicas of a tablet are, as its record says and its leader is told; and how a leader has that changed.

Only the leading master writes records, and within an epoch only at the wish of the tablet's leader: so a leader knows
who the members are, but for one change that is under way. It asks for one at a time, and for the same again until it
is answered: a request that arrives late finds its version gone, and changes nothing.

- A member that is dropped counts for nothing from then on. There are never fewer than `min_replicas`.
- Whoever is to be added is waited for by the leader with every write *before* it is asked for: at no time may somebody
  be elected that the leader did not wait for.
- A leader that reaches too few members for long wishes to lead no more (`resigns`): another may reach them.
"""

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

_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
CHANGES_MAX = 4_096


def replica_id(server: str, log: str) -> str:
    """A replica is known by its server and by the log that it lies in: a server with a new disk is another replica."""
    return f"{server}@{log}"


def server_of(replica: str) -> str:
    return replica.rpartition("@")[0]


def log_of(replica: str) -> str:
    return replica.rpartition("@")[2]


class MembersWanted(msgspec.Struct, frozen=True):
    """`leader`, `epoch`: the replica that wishes it. `version`: of the members that the leader knows. `resigns`: it
    does not reach enough of them, and wishes that another of them leads."""

    tablet: TabletId
    leader: str
    epoch: _Number
    version: _Number
    members: tuple[str, ...]
    resigns: bool = False


class MembersNow(msgspec.Struct, frozen=True):
    """`refusal`: why what was wished for did not happen, and never will as it was asked; empty if it did."""

    tablet: TabletId
    version: _Number = 0
    members: tuple[str, ...] = ()
    refusal: str = ""


class ChangeMembersMessage(Request, frozen=True):
    wanted: Annotated[tuple[MembersWanted, ...], msgspec.Meta(max_length=CHANGES_MAX)]


def _ask(wanted: Sequence[MembersWanted]) -> Asked:
    return ChangeMembersMessage(tuple(wanted)), b""


def _carry_out(master: Any, asked: Any, _: Bytes, until: Deadline | None, __: Progress) -> tuple[MembersNow, ...]:
    return master.change_members(asked.wanted, deadline=until)


CHANGE_MEMBERS = Operation(
    "change_members",
    ChangeMembersMessage,
    _ask,
    _carry_out,
    codec_of("who the members are", tuple[MembersNow, ...]),
    changes=True,
)
