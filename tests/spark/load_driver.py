"""A driver that loads a frame by hand and ends with -9 at some point: `python -m tests.spark.load_driver DIR POINT`.

POINT: `files` when the files are written, `commit` when the store is asked to commit, `committed` afterwards; `none`
lives on until it is killed from outside. Without Spark, so that it is cheap; the ticket, the files and the commit are
those of every load.
"""

from __future__ import annotations

import os
import signal
import sys

import pyarrow as pa

import stelae
from stelae.spark.loading.fragment_task import write_task_fragments
from stelae.spark.loading.job import LoadOptions
from stelae.spark.stores import backend_of
from tests.spark.by_hand import plan_of

JOB = "a job"


def frame() -> pa.Table:
    return pa.table({"id": list(range(300)), "name": [f"n{id_}" for id_ in range(300)]})


def run(directory: str, point: str) -> None:
    def end_at(name: str) -> None:
        if point == name:
            os.kill(os.getpid(), signal.SIGKILL)

    with stelae.open(directory) as db:
        backend = backend_of(db)
        ticket = backend.begin_load(backend.find("users").id, JOB)
        if ticket.committed is not None:
            print("done before", flush=True)
            return
        plan = plan_of(ticket, frame(), LoadOptions(), run_bytes=500)
        report = write_task_fragments(plan, frame().to_batches(max_chunksize=50))
        end_at("files")
        if point == "commit":
            _kill_in_log()
        backend.commit_load(ticket.ticket, report.files)
        end_at("committed")
        print("loaded", flush=True)


def _kill_in_log() -> None:
    """The tablets are prepared, and nothing in the log says that it counts."""
    from stelae.tserver.jobs import loads

    def killed(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    vars(loads)["Loaded"] = killed


if __name__ == "__main__":
    run(*sys.argv[1:])
