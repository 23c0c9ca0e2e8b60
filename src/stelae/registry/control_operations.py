"""What a master and its shards ask each other over a network: the values of `control` as operations.

All may be asked again: what is done already is no error. A request names the version of the catalog that its sender
knows: who is asked has read that version before it does anything, so that a tablet is never made of an older schema
than its master means.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec

from stelae.catalog.value import CatalogVersion
from stelae.model.ids import Row, TableId, TabletId
from stelae.registry.changes.asking import CHANGE
from stelae.registry.control import ControlRequest, TabletReport
from stelae.registry.masters.draining import DRAIN
from stelae.registry.masters.heartbeats import HEARTBEAT
from stelae.registry.masters.overview import OVERVIEW
from stelae.registry.masters.removing import REMOVE
from stelae.registry.masters.unneeded import UNNEEDED
from stelae.registry.tablet_records import TabletPhase, TabletRecord
from stelae.service.bodies import Bytes, Codec, codec_of
from stelae.service.deadlines import Deadline
from stelae.service.messages import NothingMessage, Request, RowBytes
from stelae.service.operations import NOTHING, Asked, Operation
from stelae.service.reports import Progress

ANSWER_S = 60.0
"""How long nothing may be heard of what one process of a cluster has asked another."""

_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class ControlMessage(Request, frozen=True):
    request: ControlRequest
    catalog: _Number


class ChooseSplitMessage(Request, frozen=True):
    table: _Number
    at: RowBytes | None
    tablet: _Number | None
    catalog: _Number


class ReportMessage(Request, frozen=True):
    table: _Number | None = None


class SplitTabletMessage(Request, frozen=True):
    tablet: _Number
    at: RowBytes


class JoinTabletsMessage(Request, frozen=True):
    left: _Number
    right: _Number


class LocateMessage(Request, frozen=True):
    table: _Number


class ChosenSplit(msgspec.Struct, frozen=True):
    """`size_bytes`: of the tablet now."""

    tablet: TabletId
    at: Row
    size_bytes: int = 0


class FilesNeeded(msgspec.Struct, frozen=True):
    """What a shard needs of the store that all share: `names` by its tablets and their configs, by what it is writing
    and by what is held; what begins with `prefixes` by jobs that are writing. `holds`: the tickets of what is held.
    `since`: its clock before it looked; of files with a later name nothing is said."""

    since: int
    names: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    holds: tuple[str, ...] = ()


class CollectMessage(Request, frozen=True):
    for_good: bool = False


class TabletsAtRest(msgspec.Struct, frozen=True):
    """What a master has recorded while it changes nothing, and the version of the catalog at that time."""

    catalog: int
    tablets: tuple[TabletRecord, ...]

    def of_table(self, table: TableId) -> list[TabletRecord]:
        """In the order of their rows, without those whose place others took."""
        found = (each for each in self.tablets if each.table == table and each.phase is not TabletPhase.REPLACED)
        return sorted(found, key=lambda each: each.rows.start)


class ShardPlace(msgspec.Struct, frozen=True):
    """Where a shard serves now. `incarnation`: how often it was started."""

    name: str
    address: str
    incarnation: int


class ClusterPlaces(msgspec.Struct, frozen=True):
    """Which store a cluster is, and who serves it. `master`: the address of the one that leads, or led last; empty if
    none has. `wall_ms`: what time it is for whoever answers."""

    store: str
    shards: tuple[ShardPlace, ...]
    master: str = ""
    wall_ms: int = 0


class TableLocation(msgspec.Struct, frozen=True):
    """Where the rows of a table are: of each tablet, in the order of rows and without a gap, its first row and the name
    of the shard that has it; and where these shards serve now."""

    table: TableId
    tablets: tuple[tuple[Row, str], ...]
    shards: tuple[ShardPlace, ...]


REPORT_CODEC: Codec[TabletReport] = codec_of("a report on tablets", TabletReport)

# -- of a shard


def _ask_control(request: ControlRequest, catalog: CatalogVersion) -> Asked:
    return ControlMessage(request, catalog), b""


def _carry_out_control(shard: Any, asked: Any, _: Bytes, until: Deadline | None, __: Progress) -> TabletReport:
    return shard.control(asked.request, CatalogVersion(asked.catalog), asked.guard, deadline=until)


def _ask_choose(table: TableId, at: Row | None, tablet: int | None, catalog: CatalogVersion) -> Asked:
    return ChooseSplitMessage(table, at, tablet, catalog), b""


def _carry_out_choose(shard: Any, asked: Any, _: Bytes, until: Deadline | None, __: Progress) -> ChosenSplit:
    at = None if asked.at is None else Row(asked.at)
    return shard.choose_split(TableId(asked.table), at, asked.tablet, CatalogVersion(asked.catalog), deadline=until)


def _ask_nothing() -> Asked:
    return NothingMessage(), b""


def _ask_report(table: TableId | None = None) -> Asked:
    return ReportMessage(table), b""


def _carry_out_report(shard: Any, asked: Any, _: Bytes, until: Deadline | None, __: Progress) -> TabletReport:
    return shard.report(None if asked.table is None else TableId(asked.table), deadline=until)


def _carry_out_look(shard: Any, _: Any, __: Bytes, until: Deadline | None, ___: Progress) -> None:
    shard.look_at_sizes(deadline=until)


CONTROL = Operation(
    "control", ControlMessage, _ask_control, _carry_out_control, REPORT_CODEC, changes=True, is_long=True
)
RESIZE = Operation(
    "resize",
    ControlMessage,
    _ask_control,
    _carry_out_control,
    REPORT_CODEC,
    changes=True,
    is_repeatable=False,
    is_long=True,
)
"""A split or a join. The same request, with the ids that were drawn for it, may be asked again; but whoever wanted it
would draw others, and is not to be told that nothing happened."""
REPORT = Operation("report", ReportMessage, _ask_report, _carry_out_report, REPORT_CODEC, is_long=True)
CHOOSE_SPLIT = Operation(
    "choose_split",
    ChooseSplitMessage,
    _ask_choose,
    _carry_out_choose,
    codec_of("where to split", ChosenSplit),
    is_long=True,
)
LOOK_AT_SIZES: Operation[[], None] = Operation("look_at_sizes", NothingMessage, _ask_nothing, _carry_out_look, NOTHING)


def _carry_out_files(shard: Any, _: Any, __: Bytes, until: Deadline | None, ___: Progress) -> FilesNeeded:
    return shard.files_needed(deadline=until)


FILES_NEEDED: Operation[[], FilesNeeded] = Operation(
    "files_needed",
    NothingMessage,
    _ask_nothing,
    _carry_out_files,
    codec_of("which files are needed", FilesNeeded),
    is_long=True,
)

# -- of a master


def _ask_collect(for_good: bool = False) -> Asked:
    return CollectMessage(for_good), b""


def _carry_out_collect(master: Any, asked: Any, _: Bytes, until: Deadline | None, __: Progress) -> tuple[int, int]:
    return master.collect(for_good=asked.for_good, deadline=until)


def _ask_split(tablet: TabletId, at: Row) -> Asked:
    return SplitTabletMessage(tablet, at), b""


def _carry_out_split(master: Any, asked: Any, _: Bytes, until: Deadline | None, __: Progress) -> None:
    master.split_tablet(TabletId(asked.tablet), Row(asked.at), deadline=until)


def _ask_join(left: TabletId, right: TabletId) -> Asked:
    return JoinTabletsMessage(left, right), b""


def _carry_out_join(master: Any, asked: Any, _: Bytes, until: Deadline | None, __: Progress) -> None:
    master.join_tablets(TabletId(asked.left), TabletId(asked.right), deadline=until)


def _carry_out_at_rest(master: Any, _: Any, __: Bytes, until: Deadline | None, ___: Progress) -> TabletsAtRest:
    return master.tablets_at_rest(deadline=until)


def _carry_out_places(master: Any, _: Any, __: Bytes, until: Deadline | None, ___: Progress) -> ClusterPlaces:
    return master.places(deadline=until)


def _ask_locate(table: TableId) -> Asked:
    return LocateMessage(table), b""


def _carry_out_locate(master: Any, asked: Any, _: Bytes, until: Deadline | None, __: Progress) -> TableLocation:
    return master.locate(TableId(asked.table), deadline=until)


SPLIT_TABLET = Operation(
    "split_tablet", SplitTabletMessage, _ask_split, _carry_out_split, NOTHING, changes=True, is_long=True
)
JOIN_TABLETS = Operation(
    "join_tablets", JoinTabletsMessage, _ask_join, _carry_out_join, NOTHING, changes=True, is_long=True
)
TABLETS_AT_REST: Operation[[], TabletsAtRest] = Operation(
    "tablets_at_rest",
    NothingMessage,
    _ask_nothing,
    _carry_out_at_rest,
    codec_of("tablets' records", TabletsAtRest),
    is_long=True,
)
PLACES: Operation[[], ClusterPlaces] = Operation(
    "places", NothingMessage, _ask_nothing, _carry_out_places, codec_of("who serves", ClusterPlaces)
)
LOCATE: Operation[[TableId], TableLocation] = Operation(
    "locate", LocateMessage, _ask_locate, _carry_out_locate, codec_of("where a table is", TableLocation)
)

COLLECT = Operation(
    "collect",
    CollectMessage,
    _ask_collect,
    _carry_out_collect,
    codec_of("what was collected", tuple[int, int]),
    changes=True,
    is_long=True,
)

SHARD_CONTROL = {
    each.name: each for each in (CONTROL, RESIZE, CHANGE, REPORT, CHOOSE_SPLIT, LOOK_AT_SIZES, FILES_NEEDED)
}
MASTER_CONTROL = {
    each.name: each
    for each in (
        SPLIT_TABLET,
        JOIN_TABLETS,
        TABLETS_AT_REST,
        PLACES,
        LOCATE,
        COLLECT,
        UNNEEDED,
        HEARTBEAT,
        OVERVIEW,
        REMOVE,
        DRAIN,
    )
}
