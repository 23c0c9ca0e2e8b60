"""Events in the process's log: one line each, for those who turn it on, and nothing is configured for anybody else."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
import structlog

from stelae.adapters.event_log import LOGGER, EventLog
from stelae.model.events import Collected, DiskRefused, Flushed
from stelae.model.ids import TableId, TabletId

FLUSHED = Flushed(TableId(7), (TabletId(11),), files=1, records=30, size_bytes=4_096, seconds=0.01234567)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    found: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(f"{record.levelname} {record.name} {record.getMessage()}")

    handler = Lines()
    logging.getLogger("stelae").addHandler(handler)
    with caplog.at_level(logging.INFO, "stelae"):
        yield found
    logging.getLogger("stelae").removeHandler(handler)


def test_an_event_is_a_line_of_the_process_log(lines: list[str]) -> None:
    log = EventLog("s")
    log(FLUSHED)
    log(DiskRefused("a flush", "no space left"))
    assert lines == [
        f"INFO {LOGGER} flushed store='s' table=7 tablets=(11,) files=1 records=30 size_bytes=4096 seconds=0.012346",
        f"WARNING {LOGGER} disk_refused store='s' during='a flush' words='no space left'",
    ]


def test_nothing_is_configured_for_others(lines: list[str]) -> None:
    before = structlog.get_config()
    EventLog("s")(FLUSHED)
    assert not structlog.is_configured()
    assert structlog.get_config() == before
    assert lines


def test_what_others_configure_changes_nothing_here(lines: list[str]) -> None:
    structlog.configure(processors=[structlog.processors.JSONRenderer()], wrapper_class=structlog.BoundLogger)
    try:
        EventLog("s")(Collected(2, 10))
    finally:
        structlog.reset_defaults()
    assert lines == [f"INFO {LOGGER} collected store='s' files=2 size_bytes=10"]


def test_nobody_sees_anything_unless_it_is_turned_on() -> None:
    """Not even warnings, which the standard library would print by itself; and nothing is imported for it."""
    program = """
import sys
from stelae.adapters.event_log import EventLog
from stelae.model.events import Collected, DiskRefused
log = EventLog("s")
log(Collected(1, 1))
assert "structlog" not in sys.modules
log(DiskRefused("a flush", "no space left"))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
