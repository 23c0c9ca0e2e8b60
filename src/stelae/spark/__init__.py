"""The data pipeline on Spark: read, load and maintain tables by Spark jobs.

import stelae
import stelae.spark

spark = stelae.spark.session()
with stelae.open("data") as db:
    frame = stelae.spark.read(spark, db, "users", columns=["name"])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stelae.model.errors import nearest

if TYPE_CHECKING:
    from stelae.spark.driver.sessions import session
    from stelae.spark.jobs.backups import backup
    from stelae.spark.jobs.compacting import compact
    from stelae.spark.jobs.exporting import export
    from stelae.spark.jobs.restoring import restore
    from stelae.spark.jobs.statistics import stats
    from stelae.spark.jobs.verifying import verify
    from stelae.spark.loading.loads import load, merge
    from stelae.spark.loading.sink import foreach_batch
    from stelae.spark.reading.frames import read
    from stelae.spark.reading.views import view

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
    "view",
]

# What needs pyspark is imported when it is first used: without it, the message says what to install.
_HOMES = {
    "backup": "jobs.backups",
    "compact": "jobs.compacting",
    "export": "jobs.exporting",
    "foreach_batch": "loading.sink",
    "load": "loading.loads",
    "merge": "loading.loads",
    "read": "reading.frames",
    "restore": "jobs.restoring",
    "session": "driver.sessions",
    "stats": "jobs.statistics",
    "verify": "jobs.verifying",
    "view": "reading.views",
}


if not TYPE_CHECKING:  # who checks types knows all names, and finds misspelt ones

    def __getattr__(name: str) -> Any:
        from importlib import import_module

        if name not in _HOMES:
            raise AttributeError(f"module 'stelae.spark' has no attribute {name!r}{nearest(name, __all__)}")
        return getattr(import_module(f"stelae.spark.{_HOMES[name]}"), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
