"""The values behind the golden files. `python -m tests.golden.samples` writes files that are missing, and no others:
bytes of a released version are never written again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import msgspec
import pyarrow as pa

from stelae.format import layout
from stelae.format.block import SmallBlock, encode_block
from stelae.format.columnar import ColumnarBlock, ColumnarOp
from stelae.format.log import LogKind, LogRecord, SegmentEnd, SegmentWriter
from stelae.model.ids import ClientId, ColumnId, Epoch, Micros, Row, SchemaVersion, Sequence, TableId, TabletId, Txn
from stelae.model.mutation import Cell, Columns, Erase, EraseVersion, Put, PutCell, WholeFamily, WholeRow
from tests.format.fragments import batch_of, column, spec, write

HERE = Path(__file__).parent

SMALL = SmallBlock(
    SchemaVersion(3),
    (
        Put(
            Row(b"ann"),
            (
                (ColumnId(1), None),
                (ColumnId(2), True),
                (ColumnId(3), -(2**63)),
                (ColumnId(4), 1.5),
                (ColumnId(5), "é\x00"),
                (ColumnId(6), b"\x00\xff"),
                (ColumnId(7), Decimal("-12.50")),
                (ColumnId(8), date(1969, 12, 31)),
                (ColumnId(9), datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)),
                (ColumnId(10), datetime(2024, 5, 6, 7, 8, 9)),  # noqa: DTZ001
                (ColumnId(11), [1, None, 3]),
                (ColumnId(12), {"a": 1, "b": None}),
                (ColumnId(13), {1: "x", 2: None}),
                (ColumnId(14), [0.5] * 8),
            ),
            Micros(1_700_000_000_000_000),
        ),
        PutCell(Row(b"ann"), "click", "home", b"1", None),
        Erase(Row(b"bob"), WholeRow(), None),
        Erase(Row(b"bob"), WholeFamily("view"), Micros(5)),
        Erase(Row(b"bob"), Columns((ColumnId(4),)), Micros(6)),
        Erase(Row(b"bob"), Cell("click", ""), Micros(7)),
        EraseVersion(Row(b"cat"), Columns((ColumnId(4), ColumnId(5))), Micros(8)),
        EraseVersion(Row(b"cat"), Cell("click", "x"), Micros(-9)),
    ),
)

COLUMNAR = ColumnarBlock(
    SchemaVersion(3),
    ColumnarOp.PUT,
    nulls_written=True,
    batch=pa.record_batch(
        [pa.array(["ann", "bob"]), pa.array([31, None], pa.int32())],
        schema=pa.schema(
            [layout.user_field("id", pa.string(), 1, False), layout.user_field("age", pa.int32(), 3, True)]
        ),
    ),
)

RECORDS = (
    LogRecord(LogKind.BLOCK, TableId(1), TabletId(2), Epoch(3), Txn(5_000), ClientId(2**64 - 1), Sequence(1), b"one"),
    LogRecord(LogKind.EPOCH, TableId(1), TabletId(2), Epoch(4), Txn(5_001), ClientId(0), Sequence(0), b""),
    LogRecord(LogKind.BLOCK, TableId(1), TabletId(9), Epoch(1), Txn(5_002), ClientId(7), Sequence(2), bytes(300)),
)
PREVIOUS = SegmentEnd(Txn(77), 1_234)
SEGMENT_TXN = Txn(5_000)

PROFILE = spec(
    [column(1, "id", "string"), column(2, "day", "date")],
    [
        column(3, "name", "string"),
        column(4, "score", "decimal(9, 2)"),
        column(5, "tags", "array<string>"),
        column(6, "seen", "timestamp"),
        column(7, "place", "struct<lat: float64, lon: float64>"),
        column(8, "counts", "map<string, int64>"),
        column(9, "embedding", "vector(float32, 2)"),
    ],
    hashed=True,
)
PROFILE_ROWS: dict[str, list[object]] = {
    "id": ["ann", "ann", "bob"],
    "day": [date(2024, 1, 2), date(2024, 1, 2), date(2024, 1, 1)],
    "name": [None, "Ann", "Bob"],
    "score": [None, Decimal("-2.25"), Decimal("1.50")],
    "tags": [None, [], ["a", None]],
    "seen": [None, None, datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)],
    "place": [None, None, {"lat": 1.5, "lon": None}],
    "counts": [None, [], [("x", 1)]],
    "embedding": [None, [2.0, 3.0], [0.5, 1.5]],
    "_ts": [datetime(2024, 5, 7, tzinfo=UTC), datetime(2024, 5, 6, tzinfo=UTC), datetime(2024, 5, 6, tzinfo=UTC)],
    "_txn": [13, 12, 11],
    "_kind": [4, 0, 0],
    "_mask": [b"\x00", b"\x7d", b"\x7f"],
}
EVENTS = spec([column(1, "id", "int64")], families=(("click", ColumnId(5)),), has_txn=False)
EVENTS_ROWS: dict[str, list[object]] = {
    "id": [-1, 7],
    "_family": ["click", "click"],
    "_qualifier": ["home", ""],
    "_value": [b"1", None],
    "_ts": [datetime(2024, 5, 6, tzinfo=UTC)] * 2,
    "_kind": [0, 2],
}


def segment() -> bytes:
    writer = SegmentWriter(SEGMENT_TXN, PREVIOUS)
    data = writer.start()
    writer.mark_synced()
    data += writer.group(RECORDS[:2])
    writer.mark_synced()
    return data + writer.group(RECORDS[2:])


def _fragment(name: str) -> dict[str, bytes]:
    spec_, rows = {"profile": (PROFILE, PROFILE_ROWS), "events": (EVENTS, EVENTS_ROWS)}[name]
    blob, _, seal = write(spec_, [batch_of(spec_, rows)])
    return {f"{name}.parquet": blob.data, f"{name}.seal.json": msgspec.json.encode(seal)}


FILES: dict[str, Callable[[], dict[str, bytes]]] = {
    "small.block": lambda: {"small.block": bytes(encode_block(SMALL))},
    "columnar.block": lambda: {"columnar.block": bytes(encode_block(COLUMNAR))},
    "segment.log": lambda: {"segment.log": segment()},
    "profile.parquet": lambda: _fragment("profile"),
    "events.parquet": lambda: _fragment("events"),
}


def main() -> None:
    directory = HERE / "v1"
    directory.mkdir(exist_ok=True)
    for name, make in FILES.items():
        if not (directory / name).exists():
            for part, data in make().items():
                (directory / part).write_bytes(data)


if __name__ == "__main__":
    main()
