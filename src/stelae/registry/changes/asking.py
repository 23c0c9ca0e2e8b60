"""What the master that coordinates a change asks of servers, as values and as an operation. See README.md.

Whatever is asked may be asked again, or come late: what is done already is no error, and what is over is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from stelae.catalog.value import CatalogVersion
from stelae.model.hybrid import TXN_MIN
from stelae.model.ids import TableId, Txn
from stelae.model.ranges import RowRange
from stelae.registry.tablet_records import TabletRecord
from stelae.service.bodies import Bytes, Codec, codec_of, files_bytes, files_from
from stelae.service.deadlines import Deadline
from stelae.service.messages import Request
from stelae.service.operations import Asked, Operation
from stelae.service.reports import Progress
from stelae.service.tickets import LoadedFile


class PrepareChange(msgspec.Struct, frozen=True, tag=True):
    """Name the files that come with it in the configs of the table's tablets, unseen by readers."""

    table: TableId
    id: str
    attempt: int


class AdoptChange(msgspec.Struct, frozen=True, tag=True):
    """It has happened at `txn`: show it. `replaces`: what was in the table before is hidden by it."""

    table: TableId
    id: str
    txn: Txn
    replaces: bool


class DropChange(msgspec.Struct, frozen=True, tag=True):
    """It never happens: let go of what was prepared for it."""

    table: TableId
    id: str


ChangeRequest: TypeAlias = PrepareChange | AdoptChange | DropChange


class ChangeReport(msgspec.Struct, frozen=True):
    """`rows`: in which the change is prepared on the server; `at`: when that was done. `is_held`: whether any config of
    the server names the change as prepared, also those of tablets that are unloaded."""

    server: str
    is_held: bool
    rows: tuple[RowRange, ...] = ()
    at: Txn = TXN_MIN


class ChangeServers(Protocol):
    """The servers of a cluster, as whoever coordinates changes reaches them."""

    def records(self, table: TableId) -> Sequence[TabletRecord]:
        """The table's tablets in the order of their rows, without those whose place others took."""
        ...

    async def ask_change(
        self,
        server: str,
        request: ChangeRequest,
        files: Sequence[LoadedFile] = (),
        deadline: Deadline | None = None,
    ) -> ChangeReport:
        """`deadline`: a server that is not heard of until then is given up. Raises Unavailable or UnknownOutcome when
        no answer comes: the request may have been carried out."""
        ...


class ChangeMessage(Request, frozen=True):
    request: ChangeRequest
    catalog: int


REPORT_OF_CHANGE: Codec[ChangeReport] = codec_of("a report on a change", ChangeReport)


def _ask(request: ChangeRequest, files: Sequence[LoadedFile], catalog: CatalogVersion) -> Asked:
    return ChangeMessage(request, catalog), files_bytes(files)


def _carry_out(shard: Any, asked: Any, body: Bytes, until: Deadline | None, _: Progress) -> ChangeReport:
    files, version = files_from(body), CatalogVersion(asked.catalog)
    return shard.change(asked.request, files, version, asked.guard, deadline=until)


CHANGE = Operation("change", ChangeMessage, _ask, _carry_out, REPORT_OF_CHANGE, changes=True, is_long=True)
