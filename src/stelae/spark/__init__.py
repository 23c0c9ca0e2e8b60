"""The data pipeline on Spark: read, load and maintain tables by Spark jobs.

import stelae
import stelae.spark

spark = stelae.spark.session()
with stelae.open("data") as db:
    frame = stelae.spark.read(spark, db, "users", columns=["name"])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stelae.spark.backups import backup
    from stelae.spark.compacting import compact
    from stelae.spark.exporting import export
    from stelae.spark.loading import load, merge
    from stelae.spark.reading import read
    from stelae.spark.restoring import restore
    from stelae.spark.sessions import session
    from stelae.spark.sink import foreach_batch
    from stelae.spark.statistics import stats
    from stelae.spark.verifying import verify

__all__ = [
    "backup",
    "compact",
    "export",
    "foreach_batch",
    "load",
    "merge",
    "read",
    "restore",
    "session",
    "stats",
    "verify",
]

# What needs pyspark is imported when it is first used: without it, the message says what to install.
_HOMES = {
    "backup": "backups",
    "compact": "compacting",
    "export": "exporting",
    "foreach_batch": "sink",
    "load": "loading",
    "merge": "loading",
    "read": "reading",
    "restore": "restoring",
    "session": "sessions",
    "stats": "statistics",
    "verify": "verifying",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'stelae.spark' has no attribute {name!r}")
    return getattr(import_module(f"stelae.spark.{_HOMES[name]}"), name)
