"""`stelae demo`: the store's parts at work on a directory of their own, with figures taken on the way."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from stelae.adapters.blobs_local import LocalBlobStore
from stelae.adapters.clock import SystemClock
from stelae.adapters.logfiles import LocalLogFiles
from stelae.format import layout
from stelae.format.block import SmallBlock, decode_block, encode_block
from stelae.format.fragment.footer import FragmentFooter, FragmentSeal, FragmentSpec, spec_of
from stelae.format.fragment.reader import FragmentReader
from stelae.format.fragment.writer import FragmentWriter
from stelae.format.log import LogKind, LogRecord, SegmentWriter, read_segment, segment_name
from stelae.model.errors import AlreadyExists, Corruption
from stelae.model.hybrid import HybridClock
from stelae.model.ids import ClientId, ColumnId, Epoch, GroupId, SchemaVersion, Sequence, TableId, TabletId, Txn
from stelae.model.keys.vector import encode_arrays
from stelae.model.mutation import Put
from stelae.model.schema import Column, ColumnsGroup, KeyColumn, TableSchema, check_schema
from stelae.model.types import Int, String, Timestamp, parse_type

ORDERS = ColumnsGroup(
    GroupId(3),
    "orders",
    (
        Column(ColumnId(4), "item", String()),
        Column(ColumnId(5), "amount", parse_type("decimal(12, 2)")),
        Column(ColumnId(6), "placed", Timestamp()),
    ),
)
SCHEMA = check_schema(
    TableSchema(
        SchemaVersion(1),
        (KeyColumn(ColumnId(1), "customer", String()), KeyColumn(ColumnId(2), "number", Int(64))),
        (ORDERS,),
        last_id=6,
    )
)
TABLE = TableId(1)
ITEMS = ("tea", "bread", "lamp", "paper", "chair", "bicycle")


class _Demo:
    def __init__(self, directory: Path, console: Console) -> None:
        self.directory = directory
        self.console = console
        self.clock = SystemClock()
        self.hybrid = HybridClock(self.clock.wall_ms)
        self.figures: list[tuple[str, str]] = []

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        self.console.rule(f"[bold]{title}", align="left")
        start = self.clock.monotonic_s()
        yield
        self.console.print(f"[dim]{self.clock.monotonic_s() - start:.2f} s[/]")


def run(rows: int, spark: bool, keep: Path | None, console: Console) -> None:
    if keep is not None and keep.exists():
        raise AlreadyExists(f"{keep} is there already; name a new directory")
    directory = Path(tempfile.mkdtemp(prefix="stelae-demo-")) if keep is None else keep
    demo = _Demo(directory, console)
    try:
        _play(demo, rows, spark)
    finally:
        if keep is None:
            shutil.rmtree(directory, ignore_errors=True)
    table = Table(title="figures", show_header=False)
    for name, figure in demo.figures:
        table.add_row(name, figure)
    console.print(table)
    if keep is not None:
        console.print(f"files are in {keep}; try: stelae inspect {keep}/fragments/orders.parquet")


def _play(demo: _Demo, rows: int, spark: bool) -> None:
    with demo.step(f"1. Make {rows:,} orders, keys as bytes that sort as (customer, number)"):
        table = _orders(demo, rows)
    with demo.step("2. Write one immutable fragment: sorted Parquet with checksums and filter"):
        spec, footer, seal = _write(demo, table)
    with demo.step("3. Find single rows in it"):
        _points(demo, spec, seal, table)
    with demo.step("4. Log writes, tear the end off as a crash would, and recover"):
        _recover(demo)
    file = demo.directory / "fragments" / "orders.parquet"
    with demo.step("5. Open the same file with DuckDB"):
        _duckdb(demo, file)
    if spark:
        with demo.step("6. And with Spark"):
            _spark(demo, file, footer)


def _orders(demo: _Demo, rows: int) -> pa.Table:
    numbers = np.arange(rows)

    def mixed(step: int, below: int) -> pa.Array:
        """Numbers without a visible pattern, the same in every run."""
        return pa.array((numbers * step >> 7) % below)

    customers = pa.array([f"customer-{n:06d}" for n in range(max(1, rows // 10))])
    columns = {
        "customer": customers.take(mixed(2_654_435_761, len(customers))),
        "number": pa.array(numbers),
        "item": pa.array(ITEMS).take(mixed(40_503_551, len(ITEMS))),
        "amount": pa.array(mixed(7_919_777, 99_900).to_numpy() / 100 + 0.99).cast(pa.decimal128(12, 2)),
        "placed": pa.array(1_700_000_000_000_000 + numbers * 1_000).cast(pa.timestamp("us", "UTC")),
    }
    start = demo.clock.monotonic_s()
    columns[layout.ROW] = encode_arrays(SCHEMA.codec, [columns["customer"], columns["number"]])
    took = demo.clock.monotonic_s() - start
    demo.figures.append(("keys encoded", f"{rows / took / 1e6:.1f} million a second"))
    return pa.table(columns).sort_by(layout.ROW)


def _write(demo: _Demo, table: pa.Table) -> tuple[FragmentSpec, FragmentFooter, FragmentSeal]:
    spec = spec_of(TABLE, SCHEMA, ORDERS, nulls="written", has_ts=False, has_txn=False, has_kind=False)
    store = LocalBlobStore(demo.directory / "fragments")
    sink = store.create("orders.parquet")
    writer = FragmentWriter(sink, spec, ORDERS.options)
    start = demo.clock.monotonic_s()
    batches = table.select(spec.arrow_schema().names).cast(spec.arrow_schema()).to_batches(max_chunksize=65_536)
    with Progress(console=demo.console, transient=True) as progress:
        for batch in progress.track(batches, description="writing"):
            writer.write(batch)
    footer, seal = writer.close()
    sink.commit()
    took = demo.clock.monotonic_s() - start
    demo.console.print(f"{footer.stats.records:,} records in {len(footer.starts)} blocks, {seal.size_bytes:,} bytes")
    demo.figures.append(
        ("fragment written, durable", f"{footer.stats.records / took / 1e6:.1f} million records a second")
    )
    return spec, footer, seal


def _points(demo: _Demo, spec: FragmentSpec, seal: FragmentSeal, table: pa.Table) -> None:
    reader = FragmentReader(LocalBlobStore(demo.directory / "fragments").open("orders.parquet"), seal)
    codec = spec.codec()
    ordered = table.select(spec.arrow_schema().names)
    wanted = [ordered.slice(n, 1).to_pylist()[0] for n in range(0, table.num_rows, max(1, table.num_rows // 50))]
    start = demo.clock.monotonic_s()
    found = [reader.lookup(codec.encode((order["customer"], order["number"]))) for order in wanted]
    took = demo.clock.monotonic_s() - start
    if [each.to_pylist() for each in found] != [[order] for order in wanted]:
        raise Corruption("a row was not found as it was written", "orders.parquet")
    demo.console.print({name: value for name, value in wanted[-1].items() if name != layout.ROW})
    absent = sum(reader.may_contain(codec.encode(("nobody", n)), 0) for n in range(1_000))
    demo.console.print(f"of 1,000 rows that are not there, the filter lets {absent} through")
    demo.figures.append(("point read, nothing cached", f"{took / len(wanted) * 1e3:.1f} ms"))


def _recover(demo: _Demo) -> None:
    logs = LocalLogFiles(demo.directory / "log")
    first = demo.hybrid.tick()
    writer = SegmentWriter(first)
    file = logs.create(segment_name(first))
    file.append(writer.start())
    acknowledged = []
    start = demo.clock.monotonic_s()
    for n in range(200):
        record = _record(demo.hybrid.tick(), n)
        file.append(writer.group([record]))
        file.sync()
        writer.mark_synced()
        acknowledged.append(record)
    took = demo.clock.monotonic_s() - start
    file.append(writer.group([_record(demo.hybrid.tick(), 200)])[:-5])
    file.close()
    content = read_segment(file.name, logs.read(file.name))
    if list(content.records) != acknowledged or not content.torn:
        raise Corruption("an acknowledged record is lost", file.name)
    logs.truncate(file.name, content.end)
    last = decode_block(content.records[-1].payload)
    demo.console.print(f"all {len(acknowledged)} acknowledged records are there, the torn one is cut; the last is")
    demo.console.print(last)
    demo.figures.append(("log record, durable", f"{took / 200 * 1e3:.2f} ms each, alone in its group"))


def _record(txn: Txn, number: int) -> LogRecord:
    row = SCHEMA.codec.encode(("customer-000001", number))
    block = encode_block(SmallBlock(SCHEMA.version, (Put(row, ((ColumnId(4), "tea"),)),)))
    return LogRecord(LogKind.BLOCK, TABLE, TabletId(1), Epoch(1), txn, ClientId(1), Sequence(number), block)


def _duckdb(demo: _Demo, file: Path) -> None:
    try:
        import duckdb
    except ImportError:
        demo.console.print("DuckDB is not installed (pip install duckdb); passed over")
        return
    query = "select item, count(*), sum(amount), max(placed)::varchar from read_parquet($1) group by item order by item"
    with duckdb.connect() as connection:
        rows = connection.execute(query, [str(file)]).fetchall()
        _print_rows(demo, ("item", "orders", "amount", "last placed"), rows)


def _spark(demo: _Demo, file: Path, footer: FragmentFooter) -> None:
    from stelae.spark.session import session

    with demo.console.status("starting Spark"):
        running = session("stelae-demo")
        try:
            frame = running.read.parquet(str(file))
            demo.console.print(", ".join(f"{name} {type_}" for name, type_ in frame.dtypes))
            top = frame.groupBy("customer").count().orderBy("count", "customer", ascending=False).limit(3).collect()
            if frame.count() != footer.stats.records:
                raise Corruption("Spark does not see every record", file.name)
        finally:
            running.stop()
    _print_rows(demo, ("best customers", "orders"), [tuple(row) for row in top])


def _print_rows(demo: _Demo, names: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    table = Table(*names)
    for row in rows:
        table.add_row(*(str(value) for value in row))
    demo.console.print(table)
