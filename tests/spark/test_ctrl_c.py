"""Ctrl-C in a load of several of Spark's jobs: a real signal while the first is at work. The later ones never begin."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import stelae
import stelae.spark
from tests.spark.tickets import Tickets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def begin_and_wait(marks: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Long enough to be cancelled before it is done."""
    Path(marks, "first").write_bytes(b"!")
    Event().wait(120)
    yield from batches


def begin(marks: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    Path(marks, "second").touch()
    yield from batches


def test_a_signal_during_the_first_of_several_jobs(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    os.mkfifo(marks / "first")
    heard = os.open(marks / "first", os.O_RDWR)
    first = spark.range(0, 300, 1, 2).mapInArrow(partial(begin_and_wait, str(marks)), "id long")
    second = first.repartition(2, "id").mapInArrow(partial(begin, str(marks)), "id long")
    rows = second.selectExpr("id", "concat('n', id) AS name")

    def press() -> None:
        os.read(heard, 1)
        os.kill(os.getpid(), signal.SIGINT)

    with stelae.open(tmp_path / "data") as db:
        users = db.create_table("users", {"id": "int64"}, [stelae.columns("g", {"name": "string"})])
        tickets = Tickets(db)
        pressing = Thread(target=press)
        pressing.start()
        with pytest.raises(KeyboardInterrupt):
            stelae.spark.load(spark, db, "users", rows)
        pressing.join()
        os.close(heard)
        assert (tickets.out, tickets.given) == (set(), 1)
        assert not spark.sparkContext.statusTracker().getActiveJobsIds()
        assert [mark.name for mark in marks.iterdir()] == ["first"]
        assert users.count() == 0
        assert "load users: interrupted, ending its tasks" in caplog.text
        assert db.check().problems == ()
        stelae.spark.load(spark, db, "users", spark.range(3).selectExpr("id", "'n' AS name"))
        assert users.count() == 3
