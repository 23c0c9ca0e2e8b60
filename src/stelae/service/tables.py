"""Tables and tablets as values: what is asked for when one is made or altered, and what is known of them."""

from __future__ import annotations

import msgspec

from stelae.catalog.objects import Table, TableProperties
from stelae.model.ids import Row, TableId
from stelae.model.public import public
from stelae.model.schema import TableSchema


class GroupAsk(msgspec.Struct, frozen=True):
    """A new group: of `columns`, name to text, or of cells in `families`; "*" alone is the wildcard."""

    name: str
    columns: dict[str, str] | None = None
    families: tuple[str, ...] | None = None
    purge: str | None = None
    compression: str = "zstd"
    block_bytes: int | None = None
    in_memory: bool = False
    bloom: bool = True


class OptionsAsk(msgspec.Struct, frozen=True):
    """Options of a group that are to change; None: as it is. Files that are there keep how they were written."""

    compression: str | None = None
    block_bytes: int | None = None
    in_memory: bool | None = None
    bloom: bool | None = None


class AlterAsk(msgspec.Struct, frozen=True):
    """All changes of one call: they happen together, in the order that `registry.alterations` has, or not at all.
    Column texts are as in `model.declare`: "int32 not null default 0"."""

    drop: tuple[str, ...] = ()
    drop_families: tuple[str, ...] = ()
    rename_columns: dict[str, str] = {}
    rename_families: dict[str, str] = {}
    widen: dict[str, str] = {}
    drop_not_null: tuple[str, ...] = ()
    add: dict[str, dict[str, str]] = {}
    """Group to column to text."""
    add_families: dict[str, tuple[str, ...]] = {}
    purge: dict[str, str] = {}
    """Group to policy; "none" takes it away."""
    properties: dict[str, str] = {}
    """`retention`, `comment`."""
    zone: str | None = None
    rename: str | None = None
    add_groups: tuple[GroupAsk, ...] = ()
    move: dict[str, tuple[str, ...]] = {}
    """Group to the columns or families that go there."""
    drop_groups: tuple[str, ...] = ()
    options: dict[str, OptionsAsk] = {}
    """Group to what is set of it."""


class TableInfo(msgspec.Struct, frozen=True):
    """A table as the catalog has it now. `name` is qualified; `zone` is the zone's name."""

    table: Table
    name: str
    zone: str

    @property
    def id(self) -> TableId:
        return self.table.id

    @property
    def schema(self) -> TableSchema:
        return self.table.schema


class CreateAsk(msgspec.Struct, frozen=True):
    """`cuts`: where the tablets after the first begin, ascending. `zone` None: the default zone."""

    name: str
    schema: TableSchema
    cuts: tuple[Row, ...] = ()
    zone: str | None = None
    properties: TableProperties | None = None
    if_not_exists: bool = False


@public("TabletInfo")
class TabletInfo(msgspec.Struct, frozen=True):
    """One tablet: the rows from `start` on and before `stop`, or all that follow if that is None. `phase` is the
    master's word for it (running, creating, ...), `life` the server's (ACTIVE, ...). Of a tablet with several replicas
    `server` has the one that leads, in its `epoch`; `replicas` are the servers of the others, each with how many
    records it lacks now."""

    tablet: int
    table: int
    start: bytes
    stop: bytes | None
    phase: str
    life: str
    server: str
    size_bytes: int
    memory_bytes: int
    files: int
    schema_version: int
    epoch: int
    resize: int
    replicas: tuple[tuple[str, int], ...] = ()


@public("TableStats")
class TableStats(msgspec.Struct, frozen=True):
    """Of what lies in files and memory now. `records` counts versions and erasures, so it may be above the rows."""

    tablets: int
    files: int
    records: int
    erasures: int
    file_bytes: int
    memory_bytes: int
    horizon: int
