"""What a master and a server say to each other: plain values, the same in one process and over a network.

The master asks (create, alter, unload, load, delete, split, join); the server reports which tablets it has, in which
state, at which schema. Whatever is asked may be asked again: what is done already is no error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import msgspec

from stelae.model.ids import Row, SchemaVersion, TableId, TabletId, Txn
from stelae.model.ranges import RowRange
from stelae.service.deadlines import Deadline


class NewTablet(msgspec.Struct, frozen=True):
    tablet: TabletId
    table: TableId
    rows: RowRange


class CreateTablets(msgspec.Struct, frozen=True, tag=True):
    """Empty tablets, of the schema the catalog has for their table."""

    tablets: tuple[NewTablet, ...]


class AlterTable(msgspec.Struct, frozen=True, tag=True):
    """Bring every tablet of a table to the newest schema."""

    table: TableId


class UnloadTable(msgspec.Struct, frozen=True, tag=True):
    """Write all to files and serve it no more; the configs stay."""

    table: TableId


class LoadTable(msgspec.Struct, frozen=True, tag=True):
    """Serve what was unloaded."""

    table: TableId


class ProveTable(msgspec.Struct, frozen=True, tag=True):
    """See that every file is there that a table which was unloaded needs."""

    table: TableId


class DeleteTablets(msgspec.Struct, frozen=True, tag=True):
    """With their configs; files go when nobody needs them. `seen`: of replicas that nobody seems to need, what each had
    when that was found (`ReportedReplica.seen`); one that has anything else by now, or is led, stays."""

    tablets: tuple[TabletId, ...]
    seen: tuple[tuple[int, int, int], ...] = ()


class SplitTablet(msgspec.Struct, frozen=True, tag=True):
    tablet: TabletId
    at: Row
    left: TabletId
    right: TabletId


class JoinTablets(msgspec.Struct, frozen=True, tag=True):
    left: TabletId
    right: TabletId
    into: TabletId


class HostTablets(msgspec.Struct, frozen=True, tag=True):
    """Have a replica of each of these empty tablets, of the schema the catalog has for their table."""

    tablets: tuple[NewTablet, ...]


class NewReplica(msgspec.Struct, frozen=True):
    """`config`: what the tablet consists of."""

    tablet: TabletId
    table: TableId
    config: bytes


class HostReplicas(msgspec.Struct, frozen=True, tag=True):
    """Have a replica of each of these tablets, which come out of others."""

    replicas: tuple[NewReplica, ...]


class Lead(msgspec.Struct, frozen=True):
    """`members`: the ids of the tablet's replicas, the leader's own among them; `version`: how often they were changed.
    `above`: what the leader gives out and answers lies above this txn."""

    tablet: TabletId
    table: TableId
    epoch: int
    version: int
    members: tuple[str, ...]
    min_replicas: int
    above: Txn


class LeadTablets(msgspec.Struct, frozen=True, tag=True):
    """Lead tablets that this server has replicas of, as their records say."""

    tablets: tuple[Lead, ...]


class AddReplicas(msgspec.Struct, frozen=True, tag=True):
    """Bring another replica, by its id, of a tablet that is led here, in that epoch, up to date, then count it."""

    tablets: tuple[tuple[TabletId, int, str], ...]


class ResignTablets(msgspec.Struct, frozen=True, tag=True):
    """Lead tablets, by id and epoch, no more: another member is to. Writes under way are waited for, and a tablet where
    they take too long is led on; if `is_forced`, nothing is waited for."""

    tablets: tuple[tuple[TabletId, int], ...]
    is_forced: bool = False


ControlRequest: TypeAlias = (
    CreateTablets
    | AlterTable
    | UnloadTable
    | LoadTable
    | ProveTable
    | DeleteTablets
    | SplitTablet
    | JoinTablets
    | HostTablets
    | HostReplicas
    | LeadTablets
    | AddReplicas
    | ResignTablets
)


SERVING = 5
"""The `life` of a tablet that takes reads and writes."""


class ReportedTablet(msgspec.Struct, frozen=True):
    """`life` is the number of the tablet's state on the server."""

    tablet: TabletId
    table: TableId
    rows: RowRange
    life: int
    schema_version: SchemaVersion


class ReportedReplica(msgspec.Struct, frozen=True):
    """`promised`: the greatest epoch that it has followed. `last`: epoch and index of its last record. `led`: the epoch
    in which this server leads the tablet, 0 if it does not; `is_open`: whether it takes reads and writes. `behind`: of
    the other members how many records each lacks. `committed`: up to which index all members are known to have its
    records. `resigned`: the epoch in which this server led it last and gave that up, 0 if it did not. `may_lack`: the
    log had lost its end when it was opened, so records that were acknowledged may be missing here."""

    tablet: TabletId
    table: TableId
    promised: int
    last: tuple[int, int]
    led: int = 0
    version: int = 0
    is_open: bool = False
    behind: tuple[tuple[str, int], ...] = ()
    committed: int = 0
    resigned: int = 0
    may_lack: bool = False

    @property
    def seen(self) -> tuple[int, int, int]:
        """A value that is another one after each message of a leader: equal means that nothing has come since."""
        return (self.promised, *self.last)


class TabletReport(msgspec.Struct, frozen=True):
    """Of a server's tablets those that the request touched, or all of them (`is_full`). `replicas`: of tablets that
    have several; `replica`: what they are known by, which says in which log they lie. `clock`: the server's, when it
    answered. `made`: what its other members are to host, of tablets with several replicas that come out of others.
    `refused`: which of the tablets it was asked to lead it cannot lead, and why."""

    server: str
    tablets: tuple[ReportedTablet, ...]
    is_full: bool = False
    replicas: tuple[ReportedReplica, ...] = ()
    clock: Txn = Txn(0)
    made: tuple[NewReplica, ...] = ()
    replica: str = ""
    refused: tuple[tuple[TabletId, str], ...] = ()


class ServerLink(Protocol):
    """How a master reaches a server. Raises Unavailable when no answer comes: the request may have been carried out."""

    @property
    def server(self) -> str: ...

    async def ask(self, request: ControlRequest, deadline: Deadline | None = None) -> TabletReport:
        """`deadline`: of whoever the master does it for; a server that is not heard of until then is given up."""
        ...

    async def report(self, table: TableId | None = None, deadline: Deadline | None = None) -> TabletReport:
        """Ask the server for all tablets it has, or a table's, and where each stands."""
        ...


def reported_ids(report: TabletReport) -> frozenset[TabletId]:
    return frozenset(each.tablet for each in report.tablets)


def cut_ranges(cuts: Sequence[Row]) -> list[RowRange]:
    """The ranges between cuts, all rows together."""
    starts: list[bytes] = [b"", *cuts]
    stops: list[bytes | None] = [*cuts, None]
    return [RowRange(start, stop) for start, stop in zip(starts, stops, strict=True)]
