"""A streaming sink with point reads: meters that report all the time, and a table that knows where each one stands.

Readings arrive as files; a stream sums them by meter and keeps the sums in a table, batch by batch, while anybody reads
single rows of it in microseconds. Then the machine "goes down" at the worst moment, when a batch is in the table and
Spark has not written down that it is: started again, Spark applies the batch a second time, and the table does not.

    python examples/streaming_sink.py              # in a temporary directory
    python examples/streaming_sink.py --dir power  # leaves it in power/
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import stelae
import stelae.spark

METERS, PER_FILE = 40, 1_000
console = Console(highlight=False, soft_wrap=True)


def meter(number: int) -> str:
    return f"meter-{number:02d}"


def arrive(directory: Path, file: int) -> None:
    """A file of readings, there at once."""
    numbers = range(file * PER_FILE, (file + 1) * PER_FILE)
    lines = [json.dumps({"meter": meter(number * 7 % METERS), "watts": number % 300}) for number in numbers]
    draft = directory / f".{file}"
    draft.write_text("\n".join(lines) + "\n")
    draft.rename(directory / f"{file}.json")


class Watcher:
    """Is told of each batch, and looks at one meter meanwhile, as a service would."""

    def __init__(self, table: stelae.Table) -> None:
        self.table = table
        self.applied: list[bool] = []

    def __call__(self, result: Any) -> None:
        self.applied.append(not result.was_done)
        start = time.perf_counter()
        row = self.table.get(meter(7))
        took_us = (time.perf_counter() - start) * 1e6
        what = "was in the table already" if result.was_done else f"{result.rows} meters changed"
        shown = f"{row['readings']} readings, {row['watts']:,} W in sum" if row else "unknown"
        console.print(f"batch {len(self.applied)}: {what}; {meter(7)}: {shown} [dim](read in {took_us:.0f} us)[/]")


def stream(spark: Any, db: stelae.Database, directory: Path, watcher: Watcher) -> None:
    """All that has arrived, a file a batch."""
    readings = spark.readStream.schema("meter string, watts bigint").option("maxFilesPerTrigger", 1)
    sums = spark.sql(
        "SELECT meter, count(*) AS readings, sum(watts) AS watts FROM {readings} GROUP BY meter",
        readings=readings.json(str(directory / "arrivals")),
    )
    query = (
        sums.writeStream.outputMode("update")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .foreachBatch(stelae.spark.foreach_batch(db, "meters", told=watcher))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def forget_last_batch(directory: Path) -> None:
    """What a power cut right after the load would leave: Spark has not noted that the batch is done."""
    commits = directory / "checkpoint" / "commits"
    last = max((path for path in commits.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)


def show(table: stelae.Table) -> None:
    shown = Table("meter", "readings", "watts in sum")
    for row in table.scan(prefix="meter-0", limit=4):
        shown.add_row(row["meter"], f"{row['readings']:,}", f"{row['watts']:,}")
    console.print(shown)


def run(directory: Path) -> bool:
    (directory / "arrivals").mkdir()
    spark = stelae.spark.session("streaming-sink")
    with stelae.open(directory / "data") as db:
        columns = {"readings": "int64", "watts": "int64"}
        meters = db.create_table("meters", key={"meter": "string"}, groups=[stelae.columns("sums", columns)])
        watcher = Watcher(meters)
        for file in range(2):
            arrive(directory / "arrivals", file)
        stream(spark, db, directory, watcher)
        console.print("[bold red]the power goes[/], and comes back; meanwhile another file has arrived")
        forget_last_batch(directory)
        arrive(directory / "arrivals", 2)
        stream(spark, db, directory, watcher)
        show(meters)
        readings = sum(row["readings"] for row in meters.scan(columns=["readings"]))
        versions = len(meters.history(meter(7), columns=["readings"])["readings"])
        is_exact = readings == 3 * PER_FILE and watcher.applied == [True, True, False, True] and versions == 3
        words = "[green]each batch was applied exactly once[/]" if is_exact else "[red]not exactly once[/]"
        console.print(f"{readings:,} readings of {3 * PER_FILE:,} in the table, in {versions} versions: {words}")
    return is_exact


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dir", type=Path, help="a new directory to leave it all in")
    directory = parser.parse_args(argv).dir
    with tempfile.TemporaryDirectory(prefix="streaming-sink-") as temporary:
        if directory is not None:
            directory.mkdir()
        return 0 if run(Path(temporary) if directory is None else directory.absolute()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
