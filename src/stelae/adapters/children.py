"""Processes that this one starts, each a program of its own: by exec, never by fork alone.

A *child* lives no longer than who started it: it holds one end of a pipe, and ends when the other is closed, which the
system does whatever way its parent ends. A process that is started *apart* outlives who started it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread

from stelae.adapters.files import make_directories, os_errors

_LINE_BYTES_MAX = 1 << 20
_LOG_BYTES_MAX = 16 << 20
_LAST_THREADS_S = 5.0
_STDIN = 0
ORPHANED = 3
"""The exit code of a child whose parent has ended."""


def stelae_command(*words: str) -> list[str]:
    """This very installation, as a command. What lies in the current directory is not imported."""
    return [sys.executable, "-P", "-m", "stelae.cli", *words]


class Child:
    """Tells of itself in a line on its standard output. It has a session of its own: Ctrl-C on a terminal is for its
    parent, who passes signals on."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @staticmethod
    async def start(command: Sequence[str]) -> Child:
        """What it writes to its standard error goes where this process's does."""
        with os_errors(command[0]):
            process = await asyncio.create_subprocess_exec(
                *command, stdin=PIPE, stdout=PIPE, start_new_session=True, limit=_LINE_BYTES_MAX
            )
        return Child(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def first_line(self) -> bytes:
        """Empty if it ended without a word."""
        said = self._process.stdout
        return b"" if said is None else await said.readline()

    async def wait(self) -> int:
        """Its exit code; of one that a signal ended, minus that signal's number."""
        return await self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """One that has ended gets none."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


def end_with_parent(last_words: Callable[[], None]) -> None:
    """For a child: end at once when its parent has ended, in the middle of whatever it does."""

    def watch() -> None:
        while os.read(_STDIN, 4096):
            continue
        try:
            last_words()
        finally:
            os._exit(ORPHANED)

    Thread(target=watch, name="stelae-parent", daemon=True).start()


class Apart:
    """A process that goes on when this one ends. What it writes is added to a file."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        """A file that has grown large is put aside first."""
        self.log = log
        with os_errors(str(log)):
            make_directories(str(log.parent))
            if log.exists() and log.stat().st_size > _LOG_BYTES_MAX:
                log.replace(log.with_suffix(".old.txt"))
            with log.open("ab") as file:
                self._log_begin = file.tell()
                self._process = subprocess.Popen(  # noqa: S603 - our own command
                    command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
                )

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        """Of a process that has ended, as `Child.wait` gives it; None of one that runs. Its threads may end a little
        later than the process seems to."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(_LAST_THREADS_S)
        return None

    def said(self) -> str:
        """What it has written so far."""
        with self.log.open("rb") as file:
            file.seek(self._log_begin)
            return file.read(_LINE_BYTES_MAX).decode("utf-8", "replace")

    def leave(self) -> None:
        """It goes on by itself, and this process ends."""
        self._process.returncode = self._process.poll() or 0
