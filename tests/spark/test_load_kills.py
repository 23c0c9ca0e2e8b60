"""Loads by a real Spark, and truncations, of a table on many shards, while a real process is killed with -9.

The driver, the master that leads, or a shard is killed: while tasks write, when the commit is asked for, and when it
was answered. All of it happens, or nothing; nobody who reads ever sees a part; and the same load asked for again
happens once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest

import stelae
import stelae.spark
from stelae.adapters.liveness import ProcessMark, mark_process
from stelae.model.errors import StelaeError
from stelae.spark.loading import cutting
from stelae.spark.loading import job as load_job
from tests.clusters import RealCluster, kill, mark_of, real_cluster, until
from tests.effort import HANG_S, is_soak, long_run
from tests.spark.spark_driver import told_around_commit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
ROWS = 3_000_000 if is_soak() else 40_000
TABLETS = 12
SPLITS = [ROWS * tablet // TABLETS for tablet in range(1, TABLETS)]
LOOKED_AT = [ROWS * tablet // TABLETS + 1 for tablet in range(TABLETS)]
"""A row of each tablet."""
POINTS = ("tasks", "commit", "committed")
GROUPS = [stelae.columns("g", {"word": "string"})]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with real_cluster(tmp_path_factory.mktemp("killed") / "c") as running:
        running.up("--masters", "2", "--nodes", "3", "--shards", "2")
        yield running


@pytest.fixture(scope="module")
def masters(cluster: RealCluster) -> str:
    """The addresses of both: whichever is killed, the other is known."""
    return str(cluster.status()["connect"])


@pytest.fixture(scope="module")
def db(masters: str) -> Iterator[stelae.Database]:
    with stelae.connect(masters, timeout_s=HANG_S) as database:
        yield database
        until(lambda: not database.check().problems)


def find_one(cluster: RealCluster, who: str) -> ProcessMark:
    """The master that leads, or a shard, which its node starts again when it is killed."""

    def living() -> ProcessMark | None:
        status = cluster.status()
        found = status["masters"] if who == "master" else status["nodes"][1]["shards"][:1]
        pids = [each["pid"] for each in found if who != "master" or each["leading"]]
        return mark_process(pids[0]) if pids and pids[0] else None

    found: ProcessMark = until(living)
    return found


@contextmanager
def seen_words(masters: str, table: str) -> Iterator[set[frozenset[str]]]:
    """What rows of all tablets say, at one snapshot after the other."""
    seen: set[frozenset[str]] = set()
    failed: list[BaseException] = []
    is_over = Event()

    def watch() -> None:
        try:
            with stelae.connect(masters, timeout_s=HANG_S) as db:
                while not is_over.is_set():
                    rows = db.table(table).get_many(LOOKED_AT)
                    seen.add(frozenset("" if row is None else str(row["word"])[:1] for row in rows))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test fails with it
            failed.append(error)

    watcher = Thread(target=watch)
    watcher.start()
    try:
        until(lambda: seen or failed)
        yield seen
    finally:
        is_over.set()
        watcher.join()
    assert not failed, failed


def frame_of(spark: SparkSession, word: str) -> Any:
    return spark.range(0, ROWS, 1, 4).selectExpr("id", f"concat('{word}', id) AS word")


def tried(who: str, point: str) -> Any:
    is_plain = (who, point) in {("master", "commit"), ("shard", "tasks")}
    return pytest.param(who, point, marks=() if is_plain else long_run)


@pytest.mark.parametrize(("who", "point"), [tried(who, point) for who in ("master", "shard") for point in POINTS])
def test_a_server_is_killed_in_a_load(
    spark: SparkSession,
    db: stelae.Database,
    cluster: RealCluster,
    masters: str,
    monkeypatch: pytest.MonkeyPatch,
    who: str,
    point: str,
) -> None:
    """The load goes on by itself, and so do those who read."""
    monkeypatch.setattr(cutting, "TASK_BYTES", 1)
    cluster.up()  # a master that was killed before is there again
    name = f"killed_{who}_{point}"
    table = db.create_table(name, {"id": "int64"}, GROUPS, splits=SPLITS)
    assert len({each.server for each in table.tablets()}) == 6
    stelae.spark.load(spark, db, name, frame_of(spark, "a"))
    killed: list[str] = []

    def reach(where: str) -> None:
        if where == point and not killed:
            killed.append(where)
            kill(find_one(cluster, who))

    monkeypatch.setattr(load_job, "patiently", told_around_commit(reach))
    with seen_words(masters, name) as seen:
        result = stelae.spark.load(
            spark, db, name, frame_of(spark, "b"), job=f"job {name}", mode="overwrite",
            progress=lambda done, total: reach("tasks") if done > total // 2 else None,
        )  # fmt: skip
    assert killed
    assert result.rows == ROWS
    assert stelae.spark.load(spark, db, name, frame_of(spark, "c"), job=f"job {name}").was_done
    assert seen <= {frozenset("a"), frozenset("b")}, "never a part"
    read = stelae.spark.read(spark, db, name)
    assert read.where("word LIKE 'b%'").count() == read.count() == table.count() == ROWS


@pytest.mark.parametrize(
    "point", ["commit", pytest.param("tasks", marks=long_run), pytest.param("committed", marks=long_run)]
)
def test_a_driver_with_spark_is_killed(spark: SparkSession, db: stelae.Database, masters: str, point: str) -> None:
    name = f"driven_{point}"
    table = db.create_table(name, {"id": "int64"}, GROUPS, splits=SPLITS)
    stelae.spark.load(spark, db, name, frame_of(spark, "a"))
    with seen_words(masters, name) as seen:
        command = [sys.executable, "-m", "tests.spark.load_kills_driver", masters, name, str(ROWS), point]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=False)
        assert ended.returncode == -9, ended.stderr
        is_done = point == "committed"
        assert table.get(LOOKED_AT[0]) == {"id": LOOKED_AT[0], "word": f"{'b' if is_done else 'a'}{LOOKED_AT[0]}"}
        again = stelae.spark.load(spark, db, name, frame_of(spark, "b"), job=f"job {name}", mode="overwrite")
    assert again.was_done == is_done
    assert seen <= {frozenset("a"), frozenset("b")}, "never a part"
    assert table.count() == ROWS


@pytest.mark.parametrize("who", ["master", pytest.param("shard", marks=long_run)])
def test_a_server_is_killed_in_truncations(
    spark: SparkSession, db: stelae.Database, cluster: RealCluster, masters: str, who: str
) -> None:
    """A truncation is asked for and a process killed at once; others follow until it is dead."""
    cluster.up()
    name = f"truncated_{who}"
    table = db.create_table(name, {"id": "int64"}, GROUPS, splits=SPLITS)
    begun, is_dead = Event(), Event()

    def truncate() -> None:
        while True:
            begun.set()
            try:
                db.truncate_table(name)
                if is_dead.is_set():
                    return
            except (stelae.Unavailable, stelae.UnknownOutcome):
                continue

    for word in "ab":
        stelae.spark.load(spark, db, name, frame_of(spark, word))
        victim = find_one(cluster, who)
        with seen_words(masters, name) as seen:
            begun.clear()
            is_dead.clear()
            truncating = Thread(target=truncate)
            truncating.start()
            begun.wait()
            kill(victim)
            is_dead.set()
            truncating.join(HANG_S)
            assert not truncating.is_alive()
        assert seen <= {frozenset(word), frozenset([""])}, "never a part"
        assert table.count() == 0
        cluster.up()


def test_an_error_is_told_when_there_is_no_time_left(
    spark: SparkSession, db: stelae.Database, cluster: RealCluster, masters: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver with little patience, whose masters are all gone when it asks for the commit: told in words, and what
    it wrote counts for nothing until somebody asks again."""
    name = "hurried"
    table = db.create_table(name, {"id": "int64"}, GROUPS, splits=SPLITS)

    def end_masters(where: str) -> None:
        if where == "commit":
            for each in cluster.status()["masters"]:
                if each["alive"]:
                    kill(mark_of(each["pid"]))

    with monkeypatch.context() as patched, stelae.connect(masters, timeout_s=2) as hurried:
        patched.setattr(load_job, "patiently", told_around_commit(end_masters))
        with pytest.raises((stelae.Unavailable, stelae.UnknownOutcome)) as told:
            stelae.spark.load(spark, hurried, name, frame_of(spark, "a"), job="hurried")
    assert isinstance(told.value, StelaeError)
    cluster.up()
    assert table.get(LOOKED_AT[3]) is None
    assert stelae.spark.load(spark, db, name, frame_of(spark, "a"), job="hurried").rows == ROWS
    assert table.count() == ROWS
