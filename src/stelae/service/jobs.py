"""What a store does for jobs, as an interface; what it hands out is in `bulk`, apart from this: a program that does no
such thing need not import what reads files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from stelae.model.errors import InvalidArgument
from stelae.model.ids import TableId, Txn
from stelae.service.deadlines import Deadline

if TYPE_CHECKING:
    from stelae.format.fragment.footer import FragmentFile
    from stelae.service.tickets import CompactionTicket, HeldTable, LoadedFile, LoadTicket

TTL_S_DEFAULT = 3_600.0
TTL_S_MAX = 30 * 24 * 3_600.0
JOB_LENGTH_MAX = 1_024


def check_ttl(ttl_s: float) -> float:
    """InvalidArgument unless a ticket may live for so long."""
    if not 0 < ttl_s <= TTL_S_MAX:
        raise InvalidArgument(f"a ticket lives for more than 0 and at most {TTL_S_MAX:.0f} seconds, not {ttl_s}")
    return ttl_s


def check_job(job: str, batch: int) -> None:
    """InvalidArgument unless a load may be called so."""
    if not job or len(job) > JOB_LENGTH_MAX:
        raise InvalidArgument(f"a job is named by 1 to {JOB_LENGTH_MAX} characters, not {len(job)}")
    if type(batch) is not int or batch < 0:
        raise InvalidArgument(f"batches are numbered from 0, not {batch!r}")


HOLD_TICKET, LOAD_TICKET, COMPACTION_TICKET = "hold-", "load-", "compaction-"
"""How the names of tickets begin, by what they are for."""


class BulkBackend(Protocol):
    """Safe for threads, and blocking, as all of `Backend`."""

    def hold(
        self,
        table: TableId,
        at: Txn | None = None,
        ttl_s: float = TTL_S_DEFAULT,
        ticket: str | None = None,
        *,
        deadline: Deadline | None = None,
    ) -> HeldTable:
        """The table at a snapshot (None: now). What is in memory is written to files first. SnapshotTooOld if history
        it needs may be gone. `ticket`: how it is to be called, where several shards hold parts of one table under one
        name; a hold of the same name that is there already is let go."""
        ...

    def renew(self, ticket: str, ttl_s: float = TTL_S_DEFAULT, *, deadline: Deadline | None = None) -> None:
        """From now on so long. NotFound if it is not there any more: it expired, or was let go."""
        ...

    def release(self, ticket: str, *, deadline: Deadline | None = None) -> None:
        """Let go. A load that is not committed is given up, and never will be. Doing it twice is no error."""
        ...

    def begin_load(
        self,
        table: TableId,
        job: str,
        batch: int = 0,
        ttl_s: float = TTL_S_DEFAULT,
        *,
        deadline: Deadline | None = None,
    ) -> LoadTicket:
        """`job` names what is loaded, for ever; of several batches of one job, those up to the last one committed are
        done. An attempt that is under way for the same job is given up: its commit will fail."""
        ...

    def commit_load(
        self, ticket: str, files: Sequence[LoadedFile], *, replaces: bool = False, deadline: Deadline | None = None
    ) -> Txn:
        """All of it, visible and durable, at one txn. `replaces`: what was in the table before is hidden from then on.
        Again for a ticket that is committed: its txn. Conflict if the ticket was given up or taken over; then nothing
        was loaded, and nothing will be. InvalidArgument if a file is not what it says it is."""
        ...

    def begin_compaction(
        self,
        table: TableId,
        *,
        full: bool = True,
        erase_now: bool = False,
        ttl_s: float = TTL_S_DEFAULT,
        ticket: str | None = None,
        deadline: Deadline | None = None,
    ) -> CompactionTicket:
        """`full`: everything into one file per tablet and group; otherwise what is worth it now. The files are left
        alone by others until the ticket ends. `ticket`: as for `hold`."""
        ...

    def adopt(self, ticket: str, number: int, file: FragmentFile | None, *, deadline: Deadline | None = None) -> bool:
        """The result of one work (None: nothing was left) takes the place of what it was made of. False if the tablet
        changed so much meanwhile that it is of no use; then nothing has happened."""
        ...
