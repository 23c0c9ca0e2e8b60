"""What a store does for jobs that move much data: it hands out files, and takes files in.

The jobs work on the shared store of fragments themselves, in processes of their own, and nothing here depends on which.
Everything that is handed out is a *ticket* with a time to live: whoever has it renews it while the work goes on, and
lets go of it at the end; if nobody does, it expires, and what was kept for it goes.

- A *hold* is a table at a snapshot, as references to files alone. Those files, and the history that the snapshot needs,
  stay until the hold ends, whatever becomes of the table. It outlives the process that serves the store.
- A *load* takes files in that were written for a table, all visible at one txn or not at all, once for each job.
- A *compaction* says which files to merge, and takes the merged ones in their place, where nothing changed meanwhile.
"""

from __future__ import annotations

import msgspec

from stelae.catalog.objects import Table
from stelae.catalog.serial.version1 import CATALOG_SERIALIZERS
from stelae.format.fragment.footer import FragmentFile
from stelae.model.ids import GroupId, Row, TableId, Txn
from stelae.model.schema import TableSchema

STAGING = "staging/"
"""Where files lie that are written before there is a ticket to write them under: a stream's, until its batch is
committed."""

STAGED_MS_MAX = 24 * 3_600 * 1_000
"""Files that lie there for longer are of a batch that never ended, and go."""


def staging_prefix(owner: str, now_ms: int) -> str:
    """How the names of files begin that are staged now."""
    return f"{STAGING}{owner}/{now_ms:012x}-"


def staged_at_ms(name: str) -> int | None:
    """When a file was staged; None if it is none of those."""
    stamp, dash, _ = name.rpartition("/")[2].partition("-")
    try:
        return int(stamp, 16) if name.startswith(STAGING) and dash and len(stamp) == 12 else None
    except ValueError:
        return None


OVERLAYS = "overlays/"
"""Where rows lie that were merged for reads of a held table: they go with the hold."""


def overlay_directory(ticket: str) -> str:
    """Where all overlays of a hold lie."""
    return f"{OVERLAYS}{ticket}"


def overlay_ticket(name: str) -> str | None:
    """The hold that an overlay is for; None if it is none."""
    ticket, slash, _ = name.removeprefix(OVERLAYS).partition("/")
    return ticket if name.startswith(OVERLAYS) and slash else None


class HeldTable(msgspec.Struct, frozen=True):
    """A table at `txn`, in files alone: whoever has this reads it without asking anybody. `root`: the URL under which
    the files lie. `horizon`: the oldest snapshot that these files can answer for. `table` is the table as the catalog
    had it, `configs` are those of its tablets, in the order of their rows, which they cover without a gap; both are
    encoded. `store`: which store it is, by a token that no other has."""

    ticket: str
    txn: Txn
    horizon: Txn
    name: str
    root: str
    table: bytes
    configs: tuple[bytes, ...]
    store: str = ""

    def description(self) -> Table:
        """The table as the catalog had it; its schema is the one of all references."""
        found: Table = CATALOG_SERIALIZERS.decode(self.table)
        return found

    def schema(self) -> TableSchema:
        return self.description().schema


class LoadTicket(msgspec.Struct, frozen=True):
    """Files are to be named `prefix` + some hex digits + ".parquet", and written to the store at the URL `root` for
    `schema` without a txn of their own (`has_txn=False`). `starts`: the first rows of the tablets there are now.
    `committed`: this job has been done already, at that txn; there is nothing to do."""

    ticket: str
    table: TableId
    name: str
    root: str
    prefix: str
    table_bytes: bytes
    starts: tuple[Row, ...]
    committed: Txn | None = None

    def schema(self) -> TableSchema:
        found: Table = CATALOG_SERIALIZERS.decode(self.table_bytes)
        return found.schema


class LoadedFile(msgspec.Struct, frozen=True):
    """A finished file, and the group of the ticket's schema that it is of."""

    group: GroupId
    file: FragmentFile


class CompactionWork(msgspec.Struct, frozen=True):
    """Some files of one group of one tablet, whose config is in `config`, encoded. What may be dropped is judged by
    `horizon`, `floor` and `is_rooted`."""

    number: int
    config: bytes
    group: GroupId
    files: tuple[str, ...]
    horizon: Txn
    floor: Txn
    is_rooted: bool
    records: int
    size_bytes: int
    prefix: str = ""
    """How its result is to be named, if otherwise than the ticket says: parts of a table have their own."""


class CompactionTicket(msgspec.Struct, frozen=True):
    """Results are named as a load's are."""

    ticket: str
    table: TableId
    root: str
    prefix: str
    table_bytes: bytes
    works: tuple[CompactionWork, ...]
    kept_by: tuple[str, ...] = ()
    """Who keeps what is to be erased from going, in words."""

    def schema(self) -> TableSchema:
        found: Table = CATALOG_SERIALIZERS.decode(self.table_bytes)
        return found.schema
