"""What happens in a store, told to whoever listens: the process's log, metrics, tests and the console hear the same.

An event is a plain value: ids as numbers, sizes in bytes, times in seconds. It is told after the thing has happened, by
the thread that did it, which holds no lock then. Listeners are quick, and must not call the store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from stelae.model.ids import GroupId, TableId, TabletId, Txn


class Recovered(msgspec.Struct, frozen=True, tag=True):
    """A server has opened its shard. `memory_bytes`: what was replayed from the log. `was_closed`: whoever had it last
    closed it in order."""

    server: str
    tablets: int
    segments: int
    log_bytes: int
    memory_bytes: int
    was_closed: bool
    seconds: float


class Flushed(msgspec.Struct, frozen=True, tag=True):
    """What was in memory is in files now."""

    table: TableId
    tablets: tuple[TabletId, ...]
    files: int
    records: int
    size_bytes: int
    seconds: float


class Compacted(msgspec.Struct, frozen=True, tag=True):
    """Files of a tablet were merged into one, or into none if nothing was left of them. `read_records` and `read_bytes`
    are of the files that went in. `seconds` is 0 if a job did the work elsewhere."""

    table: TableId
    tablet: TabletId
    group: GroupId
    files: int
    read_records: int
    read_bytes: int
    records: int
    size_bytes: int
    seconds: float


class TabletSplit(msgspec.Struct, frozen=True, tag=True):
    table: TableId
    tablet: TabletId
    left: TabletId
    right: TabletId


class TabletsJoined(msgspec.Struct, frozen=True, tag=True):
    table: TableId
    left: TabletId
    right: TabletId
    tablet: TabletId


class Collected(msgspec.Struct, frozen=True, tag=True):
    """Files that nobody needs any more were taken away: put aside for a while, or deleted."""

    files: int
    size_bytes: int


class CollectionPutOff(msgspec.Struct, frozen=True, tag=True):
    """Files that nobody needs could not be looked for, because not everybody answered who may need some: they stay, and
    it is tried again. `seconds`: for how long it has been so."""

    words: str
    seconds: float


class CatalogShortened(msgspec.Struct, frozen=True, tag=True):
    """So many versions of the catalog were put together, which no shard, process or load needs any more. `oldest`: the
    first that can be had."""

    versions: int
    oldest: int


class ClockIsOff(msgspec.Struct, frozen=True, tag=True):
    """A server's clock is so far ahead of its master's, or behind it (below 0), that it gets no new tablets: set it."""

    server: str
    off_ms: int


class UnknownFilesFound(msgspec.Struct, frozen=True, tag=True):
    """There are files of tables that the catalog has never made: it has lost something, and no file is taken away.
    `name`: one of them."""

    files: int
    name: str


class ShardRemoved(msgspec.Struct, frozen=True, tag=True):
    """A shard was taken out of the cluster for good. `tablets`: how many it had, whose rows are lost."""

    server: str
    tablets: int


class LogCollected(msgspec.Struct, frozen=True, tag=True):
    """Segments of the log that no tablet needs any more were deleted."""

    segments: int
    size_bytes: int


class StoreFilled(msgspec.Struct, frozen=True, tag=True):
    """Writers are turned away because memory is full. Told once, until a write goes through again."""

    unflushed_bytes: int


class DiskRefused(msgspec.Struct, frozen=True, tag=True):
    """The disk is full, or failed. `during`: what was being done; `words`: what the disk said."""

    during: str
    words: str


class LoadCommitted(msgspec.Struct, frozen=True, tag=True):
    """What a job has written is part of a table."""

    table: TableId
    job: str
    batch: int
    txn: Txn
    files: int
    records: int
    size_bytes: int


class TicketExpired(msgspec.Struct, frozen=True, tag=True):
    """A job did not renew its ticket in time: what it held is let go. `kind`: hold, load or compaction."""

    kind: str
    ticket: str


class TableCreated(msgspec.Struct, frozen=True, tag=True):
    table: TableId
    name: str
    tablets: int
    seconds: float


class TableAltered(msgspec.Struct, frozen=True, tag=True):
    """A table was altered. `schema_version` grows only if its columns changed."""

    table: TableId
    name: str
    schema_version: int
    seconds: float


class TableDropped(msgspec.Struct, frozen=True, tag=True):
    """A table was dropped. It can be recalled until its grace period ends."""

    table: TableId
    name: str
    seconds: float


class TableRecalled(msgspec.Struct, frozen=True, tag=True):
    """A table that was dropped was recalled."""

    table: TableId
    name: str
    seconds: float


class TableForgotten(msgspec.Struct, frozen=True, tag=True):
    """The grace period of a dropped table is over: its tablets are deleted, and its files follow."""

    table: TableId
    tablets: int


class LeadRefused(msgspec.Struct, frozen=True, tag=True):
    """A server cannot lead a tablet that it was asked to lead, so nobody does: see why."""

    server: str
    tablet: TabletId
    why: str


class ReplicaNotMade(msgspec.Struct, frozen=True, tag=True):
    """A server was to get a replica of a tablet that has too few, and did not come so far. It is tried again, there or
    elsewhere; told once by the tablet's leader until it goes well."""

    server: str
    table: TableId
    tablet: TabletId
    why: str


class MasterLeads(msgspec.Struct, frozen=True, tag=True):
    """A master begins to lead: nobody else has this guard, nor changes anything from now on."""

    master: str
    guard: int


class MasterFollowed(msgspec.Struct, frozen=True, tag=True):
    """A master has learned that it leads no more: it closes, or another has taken its place meanwhile."""

    master: str


class LeadingFailed(msgspec.Struct, frozen=True, tag=True):
    """A part of what the leading master does all the time meets what waiting does not mend: a shard with another token,
    say, or damage. It is tried again; told once until it goes well."""

    part: str
    words: str


class LeaderElected(msgspec.Struct, frozen=True, tag=True):
    """Another server leads a tablet that has several replicas, or the same in another life."""

    table: TableId
    tablet: TabletId
    server: str
    epoch: int
    replicas: tuple[str, ...]


class Attached(msgspec.Struct, frozen=True, tag=True):
    """This process uses a store that another one has open."""

    seconds: float


class OwnerLost(msgspec.Struct, frozen=True, tag=True):
    """The process that had the store hung up, or nobody answers there. Told once for each time it was connected
    to, and not if the store was found again before anybody noticed."""


class TookOver(msgspec.Struct, frozen=True, tag=True):
    """This process has opened the store that another one had, and serves it."""

    seconds: float


class HandshakeRefused(msgspec.Struct, frozen=True, tag=True):
    """Somebody connected and was not let in. `kind`: no_token, wrong_token, other_store, tls, protocol (it does not
    speak Stelae's, or no version of it that is known here), full, slow, crowded (others came while it said nothing).
    `times`: how many of the kind there were since the last one that was told; the address and the words are of the
    latest."""

    peer: str
    kind: str
    words: str
    times: int


class LeaseLost(msgspec.Struct, frozen=True, tag=True):
    """A shard could not renew its lease in time, and answers nothing about rows until it can. `is_final`: another
    process has begun to be the shard, and this one ends."""

    server: str
    why: str
    is_final: bool


class LeaseRegained(msgspec.Struct, frozen=True, tag=True):
    """A shard that had lost its lease has it again, and answers about rows."""

    server: str


class ServedInsecurely(msgspec.Struct, frozen=True, tag=True):
    """A process serves others than its own machine, and was told to do so without all that keeps strangers out.
    `missing`: what that is."""

    address: str
    missing: str


Event: TypeAlias = (
    Recovered
    | Flushed
    | Compacted
    | TabletSplit
    | TabletsJoined
    | Collected
    | CatalogShortened
    | CollectionPutOff
    | UnknownFilesFound
    | ClockIsOff
    | ShardRemoved
    | LogCollected
    | StoreFilled
    | DiskRefused
    | LoadCommitted
    | TicketExpired
    | TableCreated
    | TableAltered
    | TableDropped
    | TableRecalled
    | TableForgotten
    | LeaderElected
    | LeadingFailed
    | MasterFollowed
    | MasterLeads
    | LeadRefused
    | ReplicaNotMade
    | Attached
    | OwnerLost
    | TookOver
    | HandshakeRefused
    | LeaseLost
    | LeaseRegained
    | ServedInsecurely
)

Listener: TypeAlias = Callable[[Event], None]


def tell_nobody(_: Event) -> None:
    """A `Listener` that does not listen."""


class Listeners:
    """A `Listener` that tells others, in the order given. One that raises keeps nobody from hearing, and never disturbs
    whoever tells: `on_failure` is given the error instead."""

    def __init__(self, *listeners: Listener, on_failure: Callable[[Event, Exception], None] | None = None) -> None:
        self._listeners = listeners
        self._on_failure = on_failure

    def __call__(self, event: Event) -> None:
        for listener in self._listeners:
            try:
                listener(event)
            except Exception as error:  # noqa: BLE001 - whoever listens may be anybody's code
                if self._on_failure is not None:
                    self._on_failure(event, error)
