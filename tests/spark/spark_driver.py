"""A driver with a Spark of its own: `python -m tests.spark.spark_driver DIR POINT`.

POINT says where it ends with -9: `tasks`, when the first task is done and others run; `commit`, when all files are
written and the store is asked to commit; `committed`, when that has answered. With `none` it loads to the end. With
the address of a cluster it runs there, and tasks fail, die, take their executor with them, and are overtaken by others
that Spark starts because they are slow.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

import stelae
import stelae.spark
from stelae.spark.loading import cutting
from stelae.spark.loading import job as load_job
from stelae.spark.loading.fragment_task import FragmentTask, TaskPlan

JOB = "a job"
ROWS = 40_000
TABLETS = 8
_SLOW_S = 120.0


def fail() -> None:
    raise OSError("the disk of this machine is gone")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def lag() -> None:
    """Until Spark has had enough of it."""
    Event().wait(_SLOW_S)


def kill_executor() -> None:
    """Above this process is the daemon that made it, and above that the executor."""
    os.kill(_parent(os.getppid()), signal.SIGKILL)


class FaultyTask:
    """Files are written, then it goes wrong in the first attempts of some. Each attempt leaves a mark."""

    def __init__(self, plan: TaskPlan, marks: Path, faults: Sequence[Callable[[], None]]) -> None:
        self._plan = plan
        self._marks = marks
        self._faults = faults

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        part = context.partitionId()
        written = list(FragmentTask(self._plan)(batches))
        is_first = not any(self._marks.glob(f"{part}-*"))
        (self._marks / f"{part}-{context.taskAttemptId()}").touch()
        if is_first and part < len(self._faults):
            self._faults[part]()
        yield from written


def _parent(process: int) -> int:
    stat = Path(f"/proc/{process}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def rows(spark: Any) -> Any:
    return spark.range(0, ROWS, 1, 4).selectExpr("id", "concat('n', id) AS name")


def main(directory: str, point: str) -> None:
    def end_at(name: str) -> None:
        if point == name:
            os.kill(os.getpid(), signal.SIGKILL)

    def progress(done: int, total: int) -> None:
        if done > TABLETS // 2:
            end_at("tasks")

    vars(cutting)["TASK_BYTES"] = 1
    with stelae.open(directory) as db:
        spark = _session(point)
        frame = rows(spark)
        if "://" in point:
            for number, faults in enumerate([(fail, die, lag), (kill_executor,)]):
                marks = Path(f"{directory}.{number}")
                marks.mkdir()
                vars(load_job)["FragmentTask"] = partial(FaultyTask, marks=marks, faults=faults)
                said = stelae.spark.load(spark, db, "users", frame, job=f"{JOB} {number}")
                print(f"loaded {said.rows} rows in {said.files} files", flush=True)
        else:
            vars(load_job)["patiently"] = told_around_commit(end_at)
            result = stelae.spark.load(spark, db, "users", frame, job=JOB, progress=progress)
            print("done before" if result.was_done else f"loaded {result.rows} rows", flush=True)
        spark.stop()


def told_around_commit(do: Callable[[str], None]) -> Callable[[Any, Any], Any]:
    """The `patiently` of loads, which also tells when the commit is about to be asked for, and when it was answered."""
    asked = load_job.patiently

    def patiently(db: Any, request: Any) -> Any:
        is_commit = "commit_load" in request.__code__.co_names
        if is_commit:
            do("commit")
        found = asked(db, request)
        if is_commit:
            do("committed")
        return found

    return patiently


def local_session() -> Any:
    return stelae.spark.session("stelae-driver", "local[2]", **{"spark.driver.memory": "512m"})


def _session(point: str) -> Any:
    if "://" not in point:
        return local_session()
    settings = {
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.5",
        "spark.speculation.minTaskRuntime": "1s",
    }
    os.environ["PYSPARK_PYTHON"] = sys.executable
    return stelae.spark.session("stelae-faults", point, **settings)


if __name__ == "__main__":
    main(*sys.argv[1:])
