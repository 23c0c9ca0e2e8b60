"""Real processes: terminals, interrupts, broken pipes, and two of them at once."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from contextlib import suppress
from itertools import count
from pathlib import Path
from threading import Thread
from typing import IO

import pytest

import stelae
from tests.cli.running import Cli
from tests.effort import HANG_S

PROGRAM = [sys.executable, "-c", "from stelae.cli.app import main; main()"]
COLOUR = re.compile(rb"\x1b\[[0-9;]*3[0-9]")


class Terminal:
    """A process on a terminal of its own, which a person could sit at."""

    def __init__(self, *words: str | Path, stdin: int | None = None, **environment: str) -> None:
        """`stdin`: in place of the terminal's keyboard."""
        self._leader, follower = pty.openpty()
        settings = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", **environment}
        self.process = subprocess.Popen(
            [*PROGRAM, *map(str, words)], stdin=follower if stdin is None else stdin, stdout=follower, stderr=follower,
            env=settings, start_new_session=True,
        )  # fmt: skip
        os.close(follower)
        self.shown = b""

    def until(self, words: bytes) -> None:
        while words not in self.shown:
            read = self._read()
            assert read, self.shown

    def _read(self) -> bytes:
        try:
            read = os.read(self._leader, 65_536)
        except OSError:  # the other side is closed
            read = b""
        self.shown += read
        return read

    def type(self, text: bytes) -> None:
        os.write(self._leader, text)

    def end(self) -> int:
        while self._read():
            pass
        os.close(self._leader)
        return self.process.wait(HANG_S)


@pytest.fixture
def many(users: Cli) -> Cli:
    """So many rows that nobody is through with them at once."""
    with stelae.open(users.path) as database:
        table = database.table("users")
        for first in range(0, 60_000, 20_000):
            table.put_many([{"id": f"n{n:06d}", "name": "x" * 50} for n in range(first, first + 20_000)])
    return users


def test_colours_are_for_terminals(users: Cli) -> None:
    terminal = Terminal("table", "describe", "users", "--path", users.path)
    assert terminal.end() == 0
    assert COLOUR.search(terminal.shown)
    plain = Terminal("table", "describe", "users", "--path", users.path, NO_COLOR="1")
    assert plain.end() == 0
    assert not COLOUR.search(plain.shown)
    piped = subprocess.run(
        [*PROGRAM, "table", "describe", "users", "--path", users.path], capture_output=True, check=True
    )
    assert b"\x1b" not in piped.stdout


def test_a_person_is_asked(users: Cli) -> None:
    for answer, code in ((b"n\n", 1), (b"y\n", 0)):
        terminal = Terminal("table", "drop", "users", "--path", users.path)
        terminal.until(b"Drop table users (")
        terminal.until(b"[y/N]")
        terminal.type(answer)
        assert terminal.end() == code
    assert users.done("table", "list", "--json") == ""


def test_a_person_without_a_key_is_told(users: Cli) -> None:
    terminal = Terminal("put", "users", "--path", users.path)
    assert terminal.end() == 1
    assert b"give a key and values, --json-line" in terminal.shown


def write_for_ever(pipe: IO[bytes], form: str) -> None:
    """Rows for `import -`, until nobody reads them any more."""
    try:
        if form == "csv":
            pipe.write(b"id,age\n")
        for n in count():
            pipe.write((f"x{n:09d},1\n" if form == "csv" else f'{{"id": "x{n:09d}", "age": 1}}\n').encode())
    except BrokenPipeError:
        pass
    finally:
        with suppress(BrokenPipeError):
            pipe.close()


@pytest.mark.parametrize("form", ["csv", "json"])
def test_progress_is_shown_and_an_import_can_be_interrupted(users: Cli, form: str) -> None:
    terminal = Terminal(
        "import", "users", "-", "--format", form, "--path", users.path, "--batch-rows", "1000",
        stdin=subprocess.PIPE,
    )  # fmt: skip
    assert terminal.process.stdin is not None
    writer = Thread(target=write_for_ever, args=(terminal.process.stdin, form), daemon=True)
    writer.start()
    terminal.until(b"rows/s")
    os.killpg(terminal.process.pid, signal.SIGINT)
    assert terminal.end() == 130
    writer.join(HANG_S)
    assert terminal.shown.endswith(b"interrupted\r\n")
    told = re.search(rb"([0-9,]+) rows are durable", terminal.shown)
    assert told, terminal.shown
    durable = int(told[1].replace(b",", b""))
    assert durable > 0
    assert b"Traceback" not in terminal.shown
    # The part under way may have been finished too.
    assert durable <= users.json("scan", "users", "--prefix", "x", "--count")["rows"] <= durable + 1_000


@pytest.mark.parametrize("form", ["csv", "json"])
def test_an_import_that_waits_for_a_person_can_be_interrupted(users: Cli, form: str) -> None:
    terminal = Terminal("import", "users", "-", "--format", form, "--path", users.path)
    terminal.until(b"importing")
    os.killpg(terminal.process.pid, signal.SIGINT)
    assert terminal.end() == 130
    assert b"nothing of it was written" in terminal.shown
    assert terminal.shown.endswith(b"interrupted\r\n")
    assert b"Traceback" not in terminal.shown


def test_an_interrupted_scan_leaves_the_store_usable(many: Cli) -> None:
    terminal = Terminal("scan", "users", "--path", many.path)
    terminal.until(b"n0000")
    os.killpg(terminal.process.pid, signal.SIGINT)
    assert terminal.end() == 130
    assert b"Traceback" not in terminal.shown
    assert many.json("put", "users", "after")["rows"] == 1


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["table", "json"])
def test_a_reader_that_goes_is_no_error(many: Cli, form: list[str]) -> None:
    command = [*PROGRAM, "scan", "users", *form, "--path", str(many.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait(HANG_S) == 141
    assert said == b""


def test_two_at_once(many: Cli) -> None:
    command = [*PROGRAM, "scan", "users", "--json", "--path", str(many.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as reading:
        assert reading.stdout is not None
        assert b'"ann"' in reading.stdout.readline()
        # The first holds the store while its output is not read; the second goes through it.
        assert many.json("put", "users", "meanwhile")["rows"] == 1
        assert many.lines("get", "users", "meanwhile", "--columns", "age") == [{"id": "meanwhile", "age": 0}]
        rest = reading.stdout.read()
        assert reading.wait(HANG_S) == 0
    assert rest.count(b"\n") == 60_002
    assert b"meanwhile" not in rest


def test_output_that_cannot_be_written(users: Cli) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    with full.open("wb") as stream:
        command = [*PROGRAM, "scan", "users", "--json", "--path", str(users.path)]
        done = subprocess.run(command, stdout=stream, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert done.stderr == b"error: No space left on device\n"
