"""What the catalog costs as it grows: on SQLite, through the service, as an embedded store uses it.

    python bench/bench_catalog.py [--tables 100000] [--versions 100000]

Prints how long creating one more table takes with more and more tables there, and how long a process takes to join a
catalog of many versions, with a snapshot every 1,000 against replaying all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from harness import Row, report
from rich.console import Console
from rich.table import Table

from stelae.adapters.clock import SystemClock
from stelae.adapters.rng import SystemRng
from stelae.catalog.commands.tables import CreateTable, SetProperty, TableName
from stelae.catalog.decide import decide_batch
from stelae.catalog.entries import Update, apply_update
from stelae.catalog.value import CatalogVersion, empty_catalog
from stelae.launch.metastores import InDirectory, open_metastore
from stelae.model.declare import cells, columns, declare
from stelae.model.hybrid import HybridClock
from stelae.model.ids import Txn
from stelae.ports.metastore import Metastore, PutKey
from stelae.registry.catalog import update_log as log
from stelae.registry.catalog.following import follow_catalog
from stelae.registry.catalog.service import CatalogService

SCHEMA = declare(
    {"id": "string"},
    [columns("profile", {"name": "string", "age": "int32", "score": "float64"}), cells("events", ["click", "view"])],
)
SAMPLES = 40
JOIN_TABLES = 1_000
SNAPSHOT_EVERY = 1_000


def create(number: int) -> CreateTable:
    return CreateTable(TableName.parse(f"table_{number:06d}"), SCHEMA)


@asynccontextmanager
async def follow(store: Metastore) -> AsyncIterator[CatalogService]:
    clock = SystemClock()
    service = await follow_catalog(store, clock, HybridClock(clock.wall_ms), SystemRng(), "bench")
    try:
        yield service
    finally:
        await service.close()


async def growth(directory: Path, tables: int) -> list[tuple[int, float]]:
    """Median milliseconds of a single create, when so many tables are there."""
    points = [point for point in (100, 1_000, 10_000, 30_000, 100_000) if point <= tables]
    found = []
    async with open_metastore(InDirectory(directory)) as store, follow(store) as service:
        made = 0
        for point in points:
            while made < point:
                batch = [create(made + n) for n in range(min(1_000, point - made))]
                await service.execute(*batch)
                made += len(batch)
            times = []
            for _ in range(SAMPLES):
                start = time.perf_counter()
                await service.execute(create(made))
                times.append((time.perf_counter() - start) * 1_000)
                made += 1
            found.append((point, statistics.median(times)))
    return found


async def fill(directory: Path, versions: int) -> None:
    """A catalog of some tables, changed again and again. Versions are packed 60 to a transaction, to get there."""
    catalog = empty_catalog()
    changes: list[PutKey] = []
    async with open_metastore(InDirectory(directory)) as store:
        for version in range(1, versions + 1):
            number = (version - 1) % JOIN_TABLES
            command = create(number) if version <= JOIN_TABLES else _touch(number, version)
            entries = decide_batch(catalog, [command])
            update = Update(CatalogVersion(version), Txn(version), b"%016d" % version, "bench", entries)
            catalog = apply_update(catalog, update)
            value = await log.encode_update(store, update, b"%012d" % version)
            if value is None:
                raise SystemExit(f"somebody else has made version {version} in {directory}")
            changes.append(PutKey(log.update_key(version), value))
            if len(changes) == 60 or version == versions:
                await store.txn([], [*changes, PutKey(log.VERSION_KEY, log.number_value(version))])
                changes = []


def _touch(number: int, version: int) -> SetProperty:
    return SetProperty(TableName.parse(f"table_{number:06d}"), "comment", f"changed in {version}")


async def join(directory: Path) -> tuple[float, int]:
    """Seconds until a new process knows the newest version, and which that is."""
    async with open_metastore(InDirectory(directory)) as store:
        start = time.perf_counter()
        async with follow(store) as service:
            return time.perf_counter() - start, service.latest.version


async def compact(directory: Path, target: int) -> None:
    async with open_metastore(InDirectory(directory)) as store:
        await _compact(store, target)


async def _compact(store: Metastore, target: int) -> None:
    async with follow(store) as service:
        if await service.compact(CatalogVersion(target)) != target:
            raise SystemExit("the catalog was not compacted")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=100_000)
    parser.add_argument("--versions", type=int, default=100_000)
    arguments = parser.parse_args()
    console = Console()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        with console.status("creating tables"):
            points = asyncio.run(growth(Path(scratch) / "growth", arguments.tables))
        table = Table("tables there", "one more takes", "times the cost at 100", title="creating a table (SQLite)")
        for count, milliseconds in points:
            table.add_row(f"{count:,}", f"{milliseconds:.2f} ms", f"{milliseconds / points[0][1]:.2f}")
        console.print(table)
        rows += [
            Row(f"create the {count:,}th table", ms / 1e3, points[0][1] / 1e3, "the 100th", 0.5)
            for count, ms in points[1:]
        ]
        with console.status("making versions"):
            whole, short = Path(scratch) / "whole", Path(scratch) / "short"
            asyncio.run(fill(whole, arguments.versions))
            shutil.copytree(whole, short)
            asyncio.run(compact(short, arguments.versions - SNAPSHOT_EVERY + 1))
        replayed, newest = asyncio.run(join(whole))
        joined, same = asyncio.run(join(short))
        if newest != same:
            raise SystemExit(f"versions differ: {newest} and {same}")
        rows.append(Row(f"join at version {newest:,} with a snapshot", joined, replayed, "replaying all", 20.0))
    report("catalog", rows)


if __name__ == "__main__":
    main()
