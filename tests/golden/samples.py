"""The values behind the golden files. `python -m tests.golden.samples` writes files that are missing, and no others:
bytes of a released version are never written again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from stelae.format import layout
from stelae.format.block import SmallBlock, encode_block
from stelae.format.columnar import ColumnarBlock, ColumnarOp
from stelae.format.log.copies import ReplicaKept, copy_record, encode_kept
from stelae.format.log.marks import Dropped, EpochBegun, Hosted, JoinedOfTwo, SplitInTwo, encode_mark
from stelae.format.log.positions import SegmentId
from stelae.format.log.records import LogKind, SegmentEnd
from stelae.format.log.writer import SegmentWriter
from stelae.model.ids import ColumnId, Epoch, Index, Micros, Row, SchemaVersion, TabletId
from stelae.model.mutation import Cell, Columns, Erase, EraseVersion, Put, PutCell, WholeFamily, WholeRow
from tests.format.fragments import batch_of, column, spec, write
from tests.format.logs import SegmentWriter1, log_record

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

RECORDS_1 = (
    log_record(5_000, b"one", client=2**64 - 1, sequence=1),
    log_record(5_001, b"", kind=LogKind.EPOCH, epoch=4, client=0),
    log_record(5_002, bytes(300), tablet=9, epoch=1, client=7, sequence=2),
)
EPOCH = EpochBegun(((Epoch(3), Index(1)), (Epoch(4), Index(17))), Index(20))
HOSTED = Hosted(Index(2**64 - 1), Epoch(4))
SPLIT = SplitInTwo(Row(b"m\x00"), TabletId(3), TabletId(4))
RECORDS = (
    log_record(5_000, b"one", client=2**64 - 1, sequence=1, index=1),
    log_record(4_000, b"earlier", index=2),
    log_record(0, encode_mark(EPOCH), kind=LogKind.EPOCH, epoch=4),
    log_record(5_001, b"a change", kind=LogKind.CHANGE, index=3),
    log_record(5_002, b"a change of all", kind=LogKind.CHANGE, tablet=0, client=0),
    log_record(0, encode_mark(HOSTED), kind=LogKind.HOSTED, tablet=9),
    log_record(0, encode_mark(Dropped()), kind=LogKind.DROPPED, tablet=9),
    log_record(0, encode_mark(SPLIT), kind=LogKind.SPLIT, index=4),
    log_record(0, encode_mark(JoinedOfTwo(TabletId(3), TabletId(4))), kind=LogKind.JOINED, tablet=5),
    log_record(6_000, bytes(300), tablet=5, epoch=5, client=7, sequence=2, index=2**64 - 1),
)
KEPT = ReplicaKept(
    Epoch(4), (Epoch(2), Index(8)), Index(9), b"a config", (copy_record(log_record(5_000, b"one", epoch=3, index=9)),)
)
"""Marks of replicas: as they were before a mark said itself that the log had lost its end, and as they are."""
OF_REPLICAS = (
    log_record(0, encode_kept(KEPT), kind=LogKind.REPLICA, tablet=9, epoch=4, client=0),
    log_record(0, encode_mark(EpochBegun((), Index(9))), kind=LogKind.EPOCH, tablet=9, epoch=4, client=0),
    log_record(0, encode_kept(replace(KEPT, may_lack=True)), kind=LogKind.REPLICA, tablet=9, epoch=4, client=0),
    log_record(0, encode_mark(replace(EPOCH, may_lack=True)), kind=LogKind.EPOCH, tablet=9, epoch=4, client=0),
)
PREVIOUS = SegmentEnd(SegmentId(77), 1_234)
SEGMENT = SegmentId(5_000)

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


def segment_1() -> bytes:
    writer = SegmentWriter1(SEGMENT, PREVIOUS)
    data = writer.start()
    writer.mark_synced()
    data += writer.group(RECORDS_1[:2])
    writer.mark_synced()
    return data + writer.group(RECORDS_1[2:])


def segment() -> bytes:
    writer = SegmentWriter(SEGMENT, PREVIOUS)
    data = writer.start()
    writer.mark_synced()
    data += writer.group(RECORDS[:4])
    writer.mark_synced()
    return data + writer.group(RECORDS[4:])


def replicas() -> bytes:
    writer = SegmentWriter(SEGMENT, PREVIOUS)
    data = writer.start()
    writer.mark_synced()
    return data + writer.group(OF_REPLICAS)


def _fragment(name: str) -> dict[str, bytes]:
    spec_, rows = {"profile": (PROFILE, PROFILE_ROWS), "events": (EVENTS, EVENTS_ROWS)}[name]
    blob, _, seal = write(spec_, [batch_of(spec_, rows)])
    return {f"{name}.parquet": blob.data, f"{name}.seal.json": msgspec.json.encode(seal)}


FILES: dict[str, dict[str, Callable[[], dict[str, bytes]]]] = {
    "v1": {
        "small.block": lambda: {"small.block": bytes(encode_block(SMALL))},
        "columnar.block": lambda: {"columnar.block": bytes(encode_block(COLUMNAR))},
        "segment.log": lambda: {"segment.log": segment_1()},
        "profile.parquet": lambda: _fragment("profile"),
        "events.parquet": lambda: _fragment("events"),
    },
    "v2": {
        "segment.log": lambda: {"segment.log": segment()},
        "replicas.log": lambda: {"replicas.log": replicas()},
    },
}


def main() -> None:
    for version, files in FILES.items():
        directory = HERE / version
        directory.mkdir(exist_ok=True)
        for name, make in files.items():
            if not (directory / name).exists():
                for part, data in make().items():
                    (directory / part).write_bytes(data)


if __name__ == "__main__":
    main()
