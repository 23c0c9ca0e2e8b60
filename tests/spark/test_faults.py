"""Loads that are cut short anywhere: all or nothing, the next run of the same job loads once, and nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import stelae
import stelae.spark
from stelae.model.errors import Conflict, StelaeError
from stelae.spark.loading.fragment_task import write_task_fragments
from stelae.spark.loading.job import LoadOptions
from stelae.spark.stores import backend_of
from tests.effort import HANG_S, long_run
from tests.spark import spark_driver
from tests.spark.by_hand import load_by_hand, plan_of
from tests.spark.load_driver import JOB, frame, run
from tests.spark.standalone import cluster
from tests.spark.tickets import Tickets, interrupting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
_LOOKS_MAX = 50
OWNER = """
import sys
import stelae
db = stelae.open(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with stelae.open(tmp_path / "data") as db:
        db.create_table("users", {"id": "int64"}, [stelae.columns("g", {"name": "string"})], splits=[100, 200])
    return tmp_path / "data"


def driver(directory: Path, point: str, module: str = "load_driver") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"tests.spark.{module}", str(directory), point]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=False)


def check_clean(db: stelae.Database) -> None:
    """Nothing is wrong, and no file is left that nobody needs."""
    backend: Any = db._session.backend
    users = backend.find("users").id
    left = -1
    for _ in range(_LOOKS_MAX):  # the store's own threads, and perhaps a task that was cancelled, work on it too
        backend.release(backend.begin_load(users, "so that files are looked at again").ticket)
        while backend.compact_step():
            pass
        report = backend.check()
        assert not report.problems
        left = report.counts["unneeded fragments"]
        if not left:
            break
    assert left == 0


def loaded(db: stelae.Database) -> int:
    return sum(row["name"] == f"n{row['id']}" for row in db.table("users").scan())


@pytest.mark.parametrize(
    ("point", "owner"),
    [("files", "driver"), ("commit", "driver"), ("committed", "driver"), ("files", "other"), ("committed", "other")],
)
def test_a_driver_that_is_killed(directory: Path, point: str, owner: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before, in and after the commit. Where the driver owns the store, that dies with it."""
    is_done = point == "committed"
    if owner == "other":
        with stelae.open(directory) as db:
            assert driver(directory, point).returncode == -signal.SIGKILL
            assert loaded(db) == (300 if is_done else 0)
    else:
        assert driver(directory, point).returncode == -signal.SIGKILL
    with stelae.open(directory) as db:
        assert loaded(db) == (300 if is_done else 0)
        run(str(directory), "none")
        assert capsys.readouterr().out == ("done before\n" if is_done else "loaded\n")
        assert loaded(db) == 300
        assert db.table("users").stats().records == 300
        check_clean(db)


@pytest.fixture
def eight(tmp_path: Path) -> Path:
    with stelae.open(tmp_path / "data") as db:
        splits = [spark_driver.ROWS * tablet // spark_driver.TABLETS for tablet in range(1, spark_driver.TABLETS)]
        db.create_table("users", {"id": "int64"}, [stelae.columns("g", {"name": "string"})], splits=splits)
    return tmp_path / "data"


@pytest.mark.parametrize(
    "point", ["tasks", pytest.param("commit", marks=long_run), pytest.param("committed", marks=long_run)]
)
def test_a_driver_with_spark_that_is_killed(spark: SparkSession, eight: Path, point: str) -> None:
    """The store is another process's, which sees all of the rows or none. The next run of the job loads once."""
    is_done = point == "committed"
    rows = spark_driver.rows(spark)
    with stelae.open(eight) as db:
        ended = driver(eight, point, "spark_driver")
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        assert loaded(db) == (spark_driver.ROWS if is_done else 0)
        again = stelae.spark.load(spark, db, "users", rows, job=JOB)
        assert again.was_done == is_done
        assert loaded(db) == spark_driver.ROWS
        assert db.table("users").stats().records == spark_driver.ROWS
        check_clean(db)


@long_run
@pytest.mark.spark
def test_executors_of_their_own_with_retries_and_speculation(eight: Path) -> None:
    """Tasks write their files, then fail, die, or are slow and overtaken; an executor is killed. One attempt counts."""
    with cluster(eight.parent / "cluster", workers=2) as address, stelae.open(eight) as db:
        ended = driver(eight, address, "spark_driver")
        line = f"loaded {spark_driver.ROWS} rows in {spark_driver.TABLETS} files\n"
        assert ended.stdout == 2 * line, ended.stderr
        for number, count in enumerate([3, 1]):
            attempts = [path.name for path in Path(f"{eight}.{number}").iterdir()]
            assert all(sum(name.startswith(f"{part}-") for name in attempts) > 1 for part in range(count)), attempts
        assert loaded(db) == spark_driver.ROWS
        assert db.table("users").stats().records == 2 * spark_driver.ROWS
        check_clean(db)


def test_attempts_that_fail_leave_only_garbage(directory: Path) -> None:
    """A task that breaks off, and one that was done twice: the files of one attempt count."""

    def breaking() -> Iterator[pa.RecordBatch]:
        yield from frame().to_batches(max_chunksize=100)[:2]
        raise OSError("the machine is gone")

    with stelae.open(directory) as db:
        backend = backend_of(db)
        ticket = backend.begin_load(backend.find("users").id, JOB)
        plan = plan_of(ticket, frame(), LoadOptions(), run_bytes=100)
        with pytest.raises(OSError, match="gone"):
            write_task_fragments(plan, breaking())
        write_task_fragments(plan, frame().to_batches())
        report = write_task_fragments(plan, frame().to_batches())
        backend.commit_load(ticket.ticket, report.files)
        assert loaded(db) == 300
        assert db.table("users").stats().files == 3
        check_clean(db)


def test_an_attempt_that_was_overtaken_cannot_commit(directory: Path) -> None:
    with stelae.open(directory) as db:
        backend = backend_of(db)
        slow = backend.begin_load(backend.find("users").id, JOB)
        report = write_task_fragments(plan_of(slow, frame(), LoadOptions()), frame().to_batches())
        quick = backend.begin_load(backend.find("users").id, JOB)
        with pytest.raises(Conflict, match="another attempt at the same job"):
            backend.commit_load(slow.ticket, report.files)
        backend.release(quick.ticket)
        load_by_hand(db, "users", [frame()])
        assert loaded(db) == 300
        check_clean(db)


@pytest.fixture
def owner(directory: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", OWNER, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process
        process.kill()


def test_the_owner_is_killed_during_a_load(spark: SparkSession, directory: Path, owner: subprocess.Popen[str]) -> None:
    """The driver goes on: the store's next process finds the ticket and the files."""
    rows = spark.range(0, 300, 1, 2).selectExpr("id", "concat('n', id) AS name")

    def progress(done: int, total: int) -> None:
        if done and owner.poll() is None:
            os.kill(owner.pid, signal.SIGKILL)
            owner.wait()

    with stelae.open(directory) as db:
        result = stelae.spark.load(spark, db, "users", rows, job=JOB, progress=progress)
        assert owner.poll() is not None
        assert (loaded(db), result.rows) == (300, 300)
        assert stelae.spark.load(spark, db, "users", rows, job=JOB).was_done
        check_clean(db)


def test_jobs_that_fail_or_are_interrupted(
    spark: SparkSession, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ticket is let go of, and what tasks have written goes."""
    monkeypatch.setattr("stelae.spark.loading.cutting.TASK_BYTES", 1)  # several tasks, though there are few rows
    rows = spark.range(0, 300, 1, 2).selectExpr("id", "concat('n', id) AS name")
    failing = rows.selectExpr("IF(id = 299, raise_error('broken'), id) AS id", "name")
    with stelae.open(directory) as db:
        tickets = Tickets(db)
        with pytest.raises(stelae.JobFailed, match="broken"):
            stelae.spark.load(spark, db, "users", failing, job=JOB)
        with pytest.raises(KeyboardInterrupt):
            stelae.spark.load(spark, db, "users", rows, job=JOB, progress=interrupting(1))
        assert (tickets.out, tickets.given) == (set(), 2)
        assert loaded(db) == 0
        check_clean(db)
        stelae.spark.load(spark, db, "users", rows, job=JOB)
        assert loaded(db) == 300


def test_what_fails_in_the_end_is_let_go_too(
    spark: SparkSession, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = spark.range(0, 300, 1, 2).selectExpr("id", "concat('n', id) AS name")
    with stelae.open(directory) as db:
        tickets = Tickets(db)

        def refused(*_: Any, **__: Any) -> None:
            raise StelaeError("no commit today")

        monkeypatch.setattr(tickets, "commit_load", refused, raising=False)
        with pytest.raises(StelaeError, match="no commit today"):
            stelae.spark.load(spark, db, "users", rows, job=JOB)
        assert tickets.out == set()
        assert loaded(db) == 0
        check_clean(db)
