"""`stelae bench`: what this machine does, in half a minute, on a directory of its own; or a cluster, on a table of its
own.

Each figure is of one thread that waits for each answer, over rows of a string key and four columns. It is for a first
idea and for comparing disks and machines; `bench/` in the repository compares with other stores.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import stelae
from stelae.adapters.clock import SystemClock
from stelae.adapters.rng import SystemRng
from stelae.cli.places import MACHINE_PANEL, JsonOption, cluster_place
from stelae.cli.screens import counted, grid, number_text, out, print_json, progress_bar, size_text
from stelae.model.errors import InvalidArgument

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMNS = {"name": "string", "age": "int32", "score": "float64", "city": "string"}
_CITIES = ("Lima", "Oslo", "Pune", "Kyiv", "Rome", "Bonn", "Baku")
_STEP = 7_919
_ROWS_A_WRITE = 10_000
_SINGLES_MAX = 2_000


@dataclass(frozen=True, slots=True)
class Figure:
    what: str
    count: int
    seconds: float
    unit: str = "rows"

    @property
    def per_second(self) -> float:
        return self.count / max(self.seconds, 1e-9)


def register_bench(app: typer.Typer) -> None:
    app.command("bench", rich_help_panel=MACHINE_PANEL, epilog="Example: stelae bench --rows 50000 --dir /mnt/disk")(
        run_bench
    )


def run_bench(
    rows: Annotated[int, typer.Option(min=1_000, max=10_000_000, help="How many rows.")] = 100_000,
    directory: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="Measure the disk that this directory is on.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="HOST:PORT", help="Measure a cluster, from here.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """How quick is it here?

    Puts, gets and scans on a temporary directory, or a table of a cluster that is dropped again, with a table of
    figures.
    """
    if directory is not None and not directory.is_dir():
        raise InvalidArgument(f"--dir {directory}: there is no such directory")
    if directory is not None and cluster is not None:
        raise InvalidArgument("give --dir or --cluster, not both")
    figures, size_bytes = _measure_directory(directory, rows) if cluster is None else _measure_cluster(cluster, rows)
    if json:
        told = [{**asdict(each), "per_second": round(each.per_second, 1)} for each in figures]
        print_json({"rows": rows, "size_bytes": size_bytes, "figures": told})
        return
    table = grid("what", "per second", "each", "done", right=("per second", "each", "done"))
    for each in figures:
        table.add_row(each.what, f"[bold]{number_text(round(each.per_second))}[/] {each.unit}", _each(each), each.count)
    out().print(table)
    out().print(f"[dim]{counted(rows, 'row')} are {size_text(size_bytes)} on disk[/]")


def _measure_directory(directory: Path | None, rows: int) -> tuple[list[Figure], int]:
    place = Path(tempfile.mkdtemp(prefix="stelae-bench-", dir=directory))
    try:
        with stelae.open(place / "store") as database:
            return _measure(database, "users", rows)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _measure_cluster(masters: str, rows: int) -> tuple[list[Figure], int]:
    table = f"bench_{SystemRng().token(4).hex()}"
    with cluster_place(masters).open() as database:
        try:
            return _measure(database, table, rows)
        finally:
            database.drop_table(table, if_exists=True)


def _each(figure: Figure) -> str:
    micros = 1e6 / figure.per_second
    return f"{micros / 1000:,.2f} ms" if micros >= 1000 else f"{micros:,.2f} µs"


def _key(number: int) -> str:
    return f"user-{number:09d}"


def _rows(first: int, count: int) -> pa.Table:
    import pyarrow as pa

    numbers = range(first, first + count)
    return pa.table(
        {
            "id": [_key(n) for n in numbers],
            "name": [f"Name {n * _STEP % 9_973}" for n in numbers],
            "age": pa.array([n * _STEP % 90 for n in numbers], pa.int32()),
            "score": [n * _STEP % 10_007 / 7 for n in numbers],
            "city": [_CITIES[n * _STEP % len(_CITIES)] for n in numbers],
        }
    )


def _measure(database: stelae.Database, name: str, rows: int) -> tuple[list[Figure], int]:
    clock = SystemClock()
    figures: list[Figure] = []
    singles = min(rows // 10, _SINGLES_MAX)

    with progress_bar("measuring", total=8, counts=True) as bar:
        users = database.create_table(name, {"id": "string"}, [stelae.columns("profile", _COLUMNS)])

        def measure(what: str, count: int, job: Callable[[], object], unit: str = "rows") -> None:
            bar.at(len(figures), words=what)
            started = clock.monotonic_s()
            job()
            figures.append(Figure(what, count, clock.monotonic_s() - started, unit))

        chosen = [_key(n * _STEP % rows) for n in range(singles)]
        some = [_key(n * _STEP % rows) for n in range(min(rows, 10 * singles))]
        parts = [_rows(first, min(_ROWS_A_WRITE, rows - first)) for first in range(0, rows, _ROWS_A_WRITE)]
        lone = _rows(rows, singles).to_pylist()
        measure("put, durable one by one", singles, lambda: [users.put(row) for row in lone])
        measure("put_many, durable", rows, lambda: [users.put_many(part) for part in parts])
        measure("get, from memory", len(some), lambda: [users.get(key) for key in some])
        measure("flush to files", rows + singles, users.flush)
        measure("get, from files", len(some), lambda: [users.get(key) for key in some])
        measure("update (read, change, write)", singles, lambda: [users.update(key, _older) for key in chosen])
        measure("scan to Arrow", rows + singles, lambda: users.scan().to_arrow())
        measure("scan with a condition", rows + singles, lambda: users.count(stelae.col("age") > 60))
        size_bytes = database.describe(name)["size_bytes"]
    return figures, size_bytes


def _older(row: stelae.Row | None) -> dict[str, int] | None:
    return None if row is None else {"age": row["age"] + 1}
