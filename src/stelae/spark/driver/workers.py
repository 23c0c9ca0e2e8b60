"""The process that Spark forks its Python workers from, with all that tasks of ours need imported before.

Spark imports nothing there, as libraries may start threads, which a fork does not copy. So each worker takes a second
of processor time to import Arrow and this package: as much as loading half a million rows. What is imported here starts
no thread but that of Arrow's allocator (jemalloc), which sees to forks itself: Spark has said to numpy by then that one
thread is enough. Sessions that we make use this in place of `pyspark.daemon` where their workers' Python has it.
"""

from __future__ import annotations

import gc

import pyspark.worker  # noqa: F401 - for the workers
from pyspark.daemon import manager

import stelae.spark.loading.mutation_task
import stelae.spark.source.reader  # noqa: F401 - for the workers


def main() -> None:
    """Serve Spark. What is imported by now stays: collections in workers pass over it, and copy no page of it."""
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
