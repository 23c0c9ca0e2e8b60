"""Keys and fragments against the plain tools underneath them, on the same data in one run.

    python bench/bench_format.py [--records 5000000] [--rounds 5]

Prints a table of ratios (higher is better, 1.0 is the peer) and writes the same to bench/results/format.json.
Rounds alternate between us and the peer; the best of each counts, since noise only ever adds.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from harness import Row, best, report

from stelae.adapters.blobs.local import LocalBlobStore
from stelae.format.fragment.footer import FragmentColumn, FragmentFooter, FragmentSeal, FragmentSpec
from stelae.format.fragment.reader import FragmentReader
from stelae.format.fragment.writer import FragmentWriter
from stelae.format.log.positions import SegmentId, segment_name
from stelae.format.log.reader import read_segment
from stelae.format.log.records import LogKind, LogRecord, checksum_of
from stelae.format.log.writer import SegmentWriter
from stelae.model import types as t
from stelae.model.ids import ClientId, ColumnId, Epoch, GroupId, Index, SchemaVersion, Sequence, TableId, TabletId, Txn
from stelae.model.keys.scalar import KeyCodec
from stelae.model.keys.vector import encode_arrays
from stelae.model.schema import GroupOptions

KEYS = 1_000_000
SPEC = FragmentSpec(
    table=TableId(1),
    group=GroupId(2),
    schema_version=SchemaVersion(1),
    kind="columns",
    key=(FragmentColumn(ColumnId(1), "key", "binary"),),
    columns=(FragmentColumn(ColumnId(2), "value", "binary"),),
    nulls="written",
    has_kind=False,
)


def keys(rounds: int) -> list[Row]:
    codec = KeyCodec({"a": t.Int(64), "b": t.String()})
    chance = np.random.default_rng(1)
    numbers = chance.integers(-(2**62), 2**62, KEYS)
    rows = []
    for shape, texts in (
        ("strings of mixed length", [f"user-{n * 7919 % KEYS}" for n in range(KEYS)]),
        ("strings of one length", [f"user-{n * 7919 % KEYS:012d}" for n in range(KEYS)]),
    ):
        ours, peer = _encode(codec, numbers, texts, rounds)
        rows.append(Row(f"encode 1M keys (int64, string), {shape}", ours, peer, "scalar loop", 20.0))
    return rows


def _encode(codec: KeyCodec, numbers: np.ndarray[Any, Any], texts: list[str], rounds: int) -> tuple[float, float]:
    columns = [pa.array(numbers), pa.array(texts)]
    pairs = list(zip(numbers.tolist(), texts, strict=True))
    return best(rounds, lambda: encode_arrays(codec, columns), lambda: [codec.encode(pair) for pair in pairs])


def fixed_width(data: np.ndarray[Any, Any], width: int) -> pa.Array:
    count = data.size // width
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def table_of(records: int) -> pa.Table:
    """24-byte keys, 100-byte values that compress by about a third, as text does."""
    chance = np.random.default_rng(2)
    parts = []
    for start in range(0, records, 1_000_000):
        count = min(1_000_000, records - start)
        key = np.char.zfill(np.arange(start, start + count).astype("S24"), 24)
        value = chance.integers(97, 123, count * 100, dtype=np.uint8)
        columns = [
            fixed_width(np.frombuffer(key.tobytes(), np.uint8), 24),
            fixed_width(value, 100),
            pa.array(np.full(count, 1_700_000_000_000_000)).cast(pa.timestamp("us", "UTC")),
            pa.array(np.full(count, 1 << 40)),
        ]
        parts.append(pa.record_batch(columns, schema=SPEC.arrow_schema()))
    return pa.Table.from_batches(parts)


def fragments(records: int, rounds: int, directory: Path) -> list[Row]:
    table = table_of(records)
    batches = table.to_batches(max_chunksize=65_536)
    store = LocalBlobStore(directory)
    options = GroupOptions()
    written: list[tuple[FragmentFooter, FragmentSeal]] = []

    def write() -> None:
        store.delete("ours.parquet")
        sink = store.create("ours.parquet")
        writer = FragmentWriter(sink, SPEC, options)
        for batch in batches:
            writer.write(batch)
        written.append(writer.close())
        sink.commit()

    write()
    per_group = -(-records // len(written[-1][0].starts))
    peer_file = directory / "peer.parquet"

    def write_peer() -> None:
        pq.write_table(
            table,
            peer_file,
            compression="zstd",
            use_dictionary=["_ts", "_txn"],
            write_page_index=True,
            write_page_checksum=True,
            row_group_size=per_group,
            bloom_filter_options={"key": {"ndv": per_group, "fpp": 0.01}},
        )
        descriptor = os.open(peer_file, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    writing = best(rounds, write, write_peer)
    reader = FragmentReader(store.open("ours.parquet"), written[-1][1])
    with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        reading = best(
            rounds,
            lambda: pa.concat_tables(reader.scan(run=pool.map)).num_rows,
            lambda: pq.read_table(peer_file).num_rows,
        )
    return [
        Row(f"write a fragment of {records:,} records", *writing, "pyarrow write_table", 0.8),
        Row(f"read all of it ({reader.block_count} blocks)", *reading, "pyarrow read_table", 0.9),
        *points(reader, records, rounds),
    ]


def points(reader: FragmentReader, records: int, rounds: int) -> list[Row]:
    """A cold point read decodes one block; the peer reads the whole row group the same way, given its number."""
    wanted = [b"%024d" % (n * 7_919 % records) for n in range(50)]
    found = [reader.blocks_of_row(row) for row in wanted]

    def look() -> int:
        return sum(reader.lookup(row).num_rows for row in wanted)

    def decode() -> int:
        return sum(reader.read_block(blocks[0]).num_rows for blocks in found)

    if look() != len(wanted):
        raise SystemExit("a row was not found")
    return [Row("50 point reads, nothing cached", *best(rounds, look, decode), "decoding one block each", None)]


def _record(n: int, payload: bytes) -> LogRecord:
    ids = (TableId(1), TabletId(2), Epoch(1), Index(n + 1), Txn(n), ClientId(3), Sequence(n))
    return LogRecord(LogKind.BLOCK, *ids, payload, checksum_of(payload))


def log(rounds: int) -> list[Row]:
    payload = b"x" * 200
    writer = SegmentWriter(SegmentId(1))
    parts = [writer.start()]
    for group in range(1_000):
        parts.append(writer.group([_record(group * 100 + n, payload) for n in range(100)]))
        writer.mark_synced()
    data = b"".join(parts)
    name = segment_name(SegmentId(1))
    ours, peer = best(rounds, lambda: read_segment(name, data), lambda: data.count(b"y"))
    print(f"log: {len(data) / 1e6 / ours:,.0f} MB/s of records with 200-byte payloads")
    return [Row(f"read {len(data) / 1e6:.0f} MB of log", ours, peer, "one pass over the bytes", None)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    rows = keys(arguments.rounds) + log(arguments.rounds)
    with tempfile.TemporaryDirectory() as directory:
        rows += fragments(arguments.records, arguments.rounds, Path(directory))
    report("format", rows)


if __name__ == "__main__":
    main()
