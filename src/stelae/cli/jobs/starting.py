"""Spark for the verbs that need it, and what they have in common."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from stelae.cli.screens import progress_bar

JOBS_PANEL = "Whole tables, on Spark if they are large"

MasterOption = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="Spark's master, such as local[4]; local[*] if left out."),
]


def start_spark(master: str | None) -> Any:
    """Spark is brought up here alone: no other verb waits for it."""
    from stelae.spark.driver.sessions import session

    with progress_bar("starting Spark"), quiet_interrupts():
        return session("stelae", master)


@contextmanager
def quiet_interrupts() -> Iterator[None]:
    """For a Spark that is started in here: what it does about Ctrl-C, jobs do themselves, and nobody needs to read
    where in the talk with Java it came."""
    root = logging.getLogger()
    if _is_telling not in root.filters:
        root.addFilter(_is_telling)
    yield
    from stelae.adapters.signals import plain_interrupts

    plain_interrupts()


def _is_telling(record: logging.LogRecord) -> bool:
    return not str(record.msg).endswith(" while sending command.")
