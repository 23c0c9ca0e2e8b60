"""What a fragment says about itself, in its Parquet footer, and what others keep about it.

The footer's key `stelae` holds this description as JSON. It lists the checksums of the file's data, page by page, and
where each block (row group) starts, so that any block can be found and verified alone. The *seal* is kept by whoever
refers to the fragment: it covers the footer and the filters, which cannot hold a checksum of themselves, and the whole.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import pyarrow as pa

from stelae.format import layout
from stelae.model.arrow import to_arrow
from stelae.model.errors import Corruption, InvalidArgument, UnsupportedFormat
from stelae.model.hybrid import TXN_MAX
from stelae.model.ids import TS_MAX, TS_MIN, ColumnId, GroupId, Micros, SchemaVersion, TableId, Txn
from stelae.model.keys.scalar import KeyCodec
from stelae.model.schema import CellsGroup, ColumnsGroup, TableSchema
from stelae.model.types import KeyType, parse_type

FRAGMENT_VERSION = 1
FOOTER_KEY = b"stelae"
PAGE_BYTES = 64 * 1024

Nulls = Literal["written", "unwritten", "masked"]
"""What a null in a value column means: the value NULL (the fragment is *complete*: every record writes every column),
a column the record did not write, or what `_mask` says."""


class FragmentColumn(msgspec.Struct, frozen=True):
    id: ColumnId
    name: str
    type: str


class FragmentSpec(msgspec.Struct, frozen=True):
    """What records a fragment holds, and how: everything known before the first of them."""

    table: TableId
    group: GroupId
    schema_version: SchemaVersion
    kind: Literal["columns", "cells"]
    key: tuple[FragmentColumn, ...]
    columns: tuple[FragmentColumn, ...] = ()
    families: tuple[tuple[str, ColumnId], ...] = ()
    hashed: bool = False
    nulls: Nulls = "masked"
    has_ts: bool = True
    has_txn: bool = True
    has_kind: bool = True

    @property
    def complete(self) -> bool:
        return self.nulls == "written" and not self.has_kind

    def codec(self) -> KeyCodec:
        return KeyCodec({column.name: _key_type(column) for column in self.key}, self.hashed)

    def arrow_schema(self) -> pa.Schema:
        """Exactly the columns of the file, in order."""
        fields = [layout.user_field(c.name, to_arrow(_key_type(c)), c.id, nullable=False) for c in self.key]
        fields += [layout.user_field(c.name, to_arrow(parse_type(c.type)), c.id, nullable=True) for c in self.columns]
        stored = row_columns(self.codec())
        cells = (layout.FAMILY, layout.QUALIFIER, layout.VALUE) if self.kind == "cells" else ()
        optional = (
            (layout.TS, self.has_ts),
            (layout.TXN, self.has_txn),
            (layout.KIND, self.has_kind),
            (layout.MASK, self.kind == "columns" and self.nulls == "masked"),
        )
        names = (*stored, *cells, *(name for name, there in optional if there))
        return pa.schema([*fields, *(layout.system_field(name) for name in names)])


def row_columns(codec: KeyCodec) -> tuple[str, ...]:
    return (layout.ROW,) if layout.row_is_stored(codec) else ()


def _key_type(column: FragmentColumn) -> KeyType:
    type_ = parse_type(column.type)
    if not isinstance(type_, KeyType):
        raise InvalidArgument(f"key column {column.name!r}: {type_} cannot be a key")
    return type_


def spec_of(
    table: TableId,
    schema: TableSchema,
    group: ColumnsGroup | CellsGroup,
    *,
    nulls: Nulls = "masked",
    has_ts: bool = True,
    has_txn: bool = True,
    has_kind: bool = True,
) -> FragmentSpec:
    """The spec of a fragment that holds all of a group under a schema."""
    columns = group.columns if isinstance(group, ColumnsGroup) else ()
    families = group.families if isinstance(group, CellsGroup) else ()
    return FragmentSpec(
        table=table,
        group=group.id,
        schema_version=schema.version,
        kind="columns" if isinstance(group, ColumnsGroup) else "cells",
        key=tuple(FragmentColumn(c.id, c.name, str(c.type)) for c in schema.key),
        columns=tuple(FragmentColumn(c.id, c.name, str(c.type)) for c in columns),
        families=tuple((family.name, family.id) for family in families),
        hashed=schema.hashed,
        nulls=nulls,
        has_ts=has_ts,
        has_txn=has_txn,
        has_kind=has_kind,
    )


class FragmentStats(msgspec.Struct, frozen=True):
    """What the records amount to. A txn or time range is empty (min above max) if the records have none of their own.
    `markers` counts the puts of a key alone."""

    records: int = 0
    rows: int = 0
    erasures: int = 0
    markers: int = 0
    first_row: bytes = b""
    last_row: bytes = b""
    txn_min: Txn = TXN_MAX
    txn_max: Txn = Txn(0)
    ts_min: Micros = TS_MAX
    ts_max: Micros = TS_MIN


class FragmentFooter(msgspec.Struct, frozen=True):
    """`starts[i]`: the first row of block i. `continued[i]`: its first row is also the last of the block before.
    `page_crcs`: CRC32C of each page of `page_bytes` of the file's data, 4 bytes each, little-endian; the last page
    ends at `data_end`."""

    version: int
    spec: FragmentSpec
    stats: FragmentStats
    starts: tuple[bytes, ...]
    continued: tuple[bool, ...]
    data_end: int
    page_bytes: int
    page_crcs: bytes
    bloom: bool


class FragmentSeal(msgspec.Struct, frozen=True):
    """Kept by whoever refers to the file. [data_end, footer_start): filters and page index; from there on: the footer,
    which lists the checksums of the data. So the seal covers every byte."""

    size_bytes: int
    data_end: int
    index_crc: int
    footer_start: int
    footer_crc: int


class FragmentFile(msgspec.Struct, frozen=True):
    """A reference to a fragment: what tablets, tickets and backups keep of it. `txn` and `ts` are those of all records
    that bring none of their own."""

    name: str
    seal: FragmentSeal
    stats: FragmentStats
    txn: Txn | None = None
    ts: Micros | None = None

    @property
    def txn_min(self) -> Txn:
        return self.stats.txn_min if self.txn is None else self.txn

    @property
    def txn_max(self) -> Txn:
        return self.stats.txn_max if self.txn is None else self.txn


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(FragmentFooter)
_VERSION_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])


def encode_footer(footer: FragmentFooter) -> bytes:
    return _ENCODER.encode(footer)


def decode_footer(data: bytes, file: str) -> FragmentFooter:
    try:
        version = msgspec.json.decode(_VERSION_DECODER.decode(data)["version"], type=int)
        if version != FRAGMENT_VERSION:
            raise UnsupportedFormat(
                f"{file}: fragment format version {version}; this release reads version {FRAGMENT_VERSION}"
            )
        footer = _DECODER.decode(data)
    except (msgspec.MsgspecError, KeyError, ValueError) as error:
        raise Corruption(f"the description in the footer cannot be read: {error}", file) from None
    pages = -(-footer.data_end // footer.page_bytes) if footer.page_bytes > 0 else -1
    if len(footer.page_crcs) != 4 * pages or len(footer.starts) != len(footer.continued):
        raise Corruption("the description in the footer contradicts itself", file)
    return footer
