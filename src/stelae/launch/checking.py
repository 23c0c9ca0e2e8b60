"""`stelae check`: attaches to a store, or opens a copy of its metadata, and has all of it read: nothing is changed."""

from __future__ import annotations

import os
from pathlib import Path

from stelae.adapters.clock import SystemClock
from stelae.adapters.rng import SystemRng
from stelae.client.calls.retries import Patience
from stelae.launch.embedded import open_session
from stelae.launch.metastores import METASTORE_FILE, has_metastore
from stelae.model.errors import Corruption, NotFound
from stelae.service.reports import CheckReport, Problem, Progress


def check_store(
    path: str | os.PathLike[str], progress: Progress | None = None, *, store: str | None = None
) -> CheckReport:
    """What is wrong with the store in a directory. A store that cannot be opened because it is damaged is a problem,
    too; any other reason is raised."""
    try:
        if not has_metastore(Path(path)):
            raise NotFound(f"no store in {os.fspath(path)}: there is no {METASTORE_FILE}")
        session = open_session(path, Patience(SystemClock(), SystemRng()), store=store, read_only=True)
    except Corruption as error:
        return CheckReport((Problem("store", error.file, str(error)),), {})
    try:
        return session.ask(lambda backend, until: backend.check(progress, deadline=until))
    finally:
        session.close()
