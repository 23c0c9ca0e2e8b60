"""Snapshots and overlays that frames of a real Spark need: there while they are needed, and not longer."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import stelae
import stelae.spark
from stelae.adapters.blobs.local import LocalBlobStore
from stelae.adapters.clock import SystemClock
from stelae.client.api.database import Database
from stelae.model.errors import DiskFull
from stelae.spark.reading import frames, holding, overlays
from stelae.spark.reading.overlays import StoreOverlays
from stelae.spark.reading.referents import Referents, referents_of
from tests.clusters import until
from tests.effort import HANG_S
from tests.spark.tickets import Tickets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
ROWS = 200


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Of a store with a table in which rows were changed in one column, and erased."""
    with stelae.open(tmp_path / "data") as db:
        group = stelae.columns("g", {"n": "int64", "name": "string"})
        table = db.create_table("t", {"id": "int64"}, [group], splits=[ROWS // 2])
        table.put_many([{"id": number, "n": number, "name": f"n{number}"} for number in range(ROWS)])
        table.flush()
        table.put_many([{"id": number, "n": -number} for number in range(0, ROWS, 7)])
        table.erase_many([{"id": number} for number in range(0, ROWS, 13)])
    return tmp_path / "data"


def left(directory: Path) -> list[Path]:
    """Anything of overlays that is there, and what dead writers left."""
    return [*(directory / "overlays").glob("*"), *(directory / ".tmp").glob("*")]


def rows_of(db: Database) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = db.table("t").scan().to_arrow().to_pylist()
    return found


def collected(frame: Any) -> list[dict[str, Any]]:
    return sorted((row.asDict() for row in frame.collect()), key=lambda row: row["id"])


def test_two_handles_on_one_snapshot(spark: SparkSession, directory: Path) -> None:
    """What one of them made, the other uses; and still has it when the first is closed."""
    with stelae.open(directory) as other:
        with stelae.open(directory) as first:
            wanted = rows_of(first)
            one, two = (stelae.spark.read(spark, db, "t") for db in (first, other))
            assert collected(one) == wanted
            (made, again) = (directory / "overlays").glob("*/*.parquet")
            assert made.samefile(again)
        assert len(left(directory)) == 1
        assert collected(two) == wanted
    assert left(directory) == []


def test_nothing_is_left_when_the_database_is_closed(spark: SparkSession, directory: Path) -> None:
    with stelae.open(directory) as db:
        tickets = Tickets(db)
        for number in range(3):
            db.table("t").put({"id": number, "n": 1})
            stelae.spark.read(spark, db, "t").count()
        assert len(left(directory)) == len(tickets.out) == 3
    assert left(directory) == []
    assert tickets.out == set()


def driver(directory: Path, point: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.spark.overlay_driver", str(directory), point]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=False)


@pytest.mark.spark
def test_a_session_that_follows_another(directory: Path) -> None:
    with stelae.open(directory) as db:
        count = len(rows_of(db))
    said = driver(directory, "stopped")
    assert said.stdout.splitlines() == [f"{count} rows", "1 overlays", f"{count} rows", "0 overlays"], said.stderr
    assert left(directory) == []


def test_a_driver_that_is_killed(spark: SparkSession, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its overlay lies there for as long as its hold lives, and is in nobody's way; then both are gone."""
    assert driver(directory, "killed").returncode == -signal.SIGKILL
    (dead,) = (directory / "overlays").glob("*")
    with stelae.open(directory) as db:
        assert collected(stelae.spark.read(spark, db, "t")) == rows_of(db)
        assert len(left(directory)) == 2
    assert left(directory) == [dead]
    later_ms = int((holding.HOLD_TTL_S + 1) * 1_000)
    monkeypatch.setattr(SystemClock, "wall_ms", lambda _: time.time_ns() // 1_000_000 + later_ms)
    with stelae.open(directory) as db:
        assert left(directory) == []
        assert collected(stelae.spark.read(spark, db, "t")) == rows_of(db)
    assert left(directory) == []


class _Full(LocalBlobStore):
    def create(self, name: str) -> Any:
        writer = super().create(name)

        def write(data: object) -> None:
            writer.abort()
            raise DiskFull(f"{name}: no room")

        writer.write = write  # type: ignore[method-assign]
        return writer


def test_a_full_disk(spark: SparkSession, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stelae.open(directory) as db:
        tickets = Tickets(db)
        with monkeypatch.context() as patch:
            patch.setattr(overlays, "blobs_of", lambda root, writing: _Full(str(directory)))
            with pytest.raises(DiskFull, match="make room, or compact the table"):
                stelae.spark.read(spark, db, "t")
        assert left(directory) == []
        assert tickets.out == set()
        assert collected(stelae.spark.read(spark, db, "t")) == rows_of(db)


def test_ctrl_c_while_an_overlay_is_made(spark: SparkSession, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield next(batches)
        raise KeyboardInterrupt

    with stelae.open(directory) as db:
        tickets = Tickets(db)
        with monkeypatch.context() as patch:
            patch.setattr(overlays, "large_batches", interrupted)
            with pytest.raises(KeyboardInterrupt):
                stelae.spark.read(spark, db, "t")
        assert left(directory) == []
        assert tickets.out == set()
        assert collected(stelae.spark.read(spark, db, "t")) == rows_of(db)


def test_where_overlays_may_take_no_more_room(
    spark: SparkSession, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "StoreOverlays", partial(StoreOverlays, bytes_max=0))
    with stelae.open(directory) as db:
        frame = stelae.spark.read(spark, db, "t")
        assert list((directory / "overlays").glob("*/*.parquet")) == []
        assert collected(frame) == rows_of(db)


def wait_forgotten(spark: SparkSession, referents: Referents) -> None:
    """Until the JVM has collected what nobody refers to. On a busy machine what lets go of it comes late: queues of
    events there, and the threads that hear what Python has forgotten."""

    def are_forgotten() -> bool:
        gc.collect()
        spark._jvm.System.gc()
        return not referents.are_alive()

    until(are_forgotten)


@pytest.mark.parametrize("asked", [{}, {"history": 2}], ids=["by Spark", "by tasks"])
def test_plans_are_known_to_be_forgotten(spark: SparkSession, directory: Path, asked: dict[str, Any]) -> None:
    with stelae.open(directory) as db:
        frame = stelae.spark.read(spark, db, "t", **asked)
        referents = referents_of(frame)
        frame.createOrReplaceTempView("seen")
        derived = frame.filter("id > 3").select("id")
        del frame
        for forget in (lambda: spark.catalog.dropTempView("seen"), lambda: None):
            gc.collect()
            spark._jvm.System.gc()
            assert referents.are_alive()
            forget()
        assert derived.count() > 0
        del derived
        wait_forgotten(spark, referents)


def test_a_frame_of_no_rows_needs_no_snapshot(spark: SparkSession, directory: Path) -> None:
    with stelae.open(directory) as db:
        frame = stelae.spark.read(spark, db, "t", start=2 * ROWS)
        assert not referents_of(frame).are_alive()
        assert frame.count() == 0


def test_a_session_that_reads_without_end_holds_few(
    spark: SparkSession, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = holding.Holder(holds_max=2)
    monkeypatch.setattr(holding, "_holder", holder)
    with stelae.open(directory) as db:
        kept = stelae.spark.read(spark, db, "t")
        wanted = rows_of(db)
        for number in range(5):
            db.table("t").put({"id": number, "n": 1})
            forgotten = referents_of(stelae.spark.read(spark, db, "t"))
            wait_forgotten(spark, forgotten)
        assert len(holder.holds()) <= 4
        assert collected(kept) == wanted
    holder.close()


def test_views_are_planned_as_parquet_is(spark: SparkSession, directory: Path) -> None:
    """By true sizes: a small one is sent to all tasks, its columns are pruned, its filters pushed."""
    with stelae.open(directory) as db:
        stelae.spark.view(spark, db, "t")
        stelae.spark.view(spark, db, "t", "early", columns=["name"], stop=20)
        query = spark.sql("SELECT t.n, early.name FROM t JOIN early USING (id) WHERE t.n > 5")
        plan = query._jdf.queryExecution().executedPlan().toString()
        assert "BroadcastHashJoin" in plan
        assert "BatchScan" not in plan
        assert "GreaterThan(n,5)" in plan
        wanted = [(row["n"], row["name"]) for row in rows_of(db) if row["id"] < 20 and row["n"] > 5]
        assert sorted((row["n"], row["name"]) for row in query.collect()) == wanted
        db.table("t").put({"id": 19, "n": 1_000})
        stelae.spark.view(spark, db, "t")
        assert spark.sql("SELECT max(n) FROM t").first() == (1_000,)
        for name in ("t", "early"):
            spark.catalog.dropTempView(name)
