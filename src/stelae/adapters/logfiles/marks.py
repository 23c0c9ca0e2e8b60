"""What is remembered of a log apart from its files: the last place that was synced, and the oldest file that was kept.

A log that has lost its newest bytes looks like one that ended earlier, and one that has lost its oldest file like one
whose oldest files were not needed any more. The marks tell them apart. Neither ever says too much: a place is noted
after it was synced; and before a file is deleted, the next one is noted as the oldest, durably.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from stelae.adapters.files import sync_directory
from stelae.adapters.marks import Mark
from stelae.ports.logfiles import LogFileInfo

END = "log.mark"
OLDEST = "log-oldest.mark"


class LogMarks:
    """In a directory, for files that are called by a number of sixteen hexadecimal digits and the suffix."""

    def __init__(self, directory: str | os.PathLike[str], suffix: str) -> None:
        self._directory = os.path.abspath(directory)
        self._suffix = suffix
        self._end = Mark(os.path.join(directory, END))
        self._oldest = Mark(os.path.join(directory, OLDEST))

    def synced(self) -> LogFileInfo | None:
        reached = self._end.read()
        return None if reached is None else LogFileInfo(self._name(reached[0]), reached[1])

    def oldest(self) -> str | None:
        """The oldest file that there must be."""
        reached = self._oldest.read()
        return None if reached is None else self._name(reached[0])

    def noting(self, name: str) -> Callable[[int], None]:
        """To be called with a file's size after each sync of it."""
        number, end = _number(name), self._end
        is_noted = self._oldest.read() is not None

        def note(size_bytes: int) -> None:
            nonlocal is_noted
            end.note((number, size_bytes))
            if not is_noted:
                is_noted = True
                self._oldest.note((number, 0))

        return note

    def keep_from(self, name: str | None) -> None:
        """Files before this one may go from here on; None: all. Durable when it returns."""
        if name is not None:
            self._oldest.note((_number(name), 0))
            with suppress(OSError):
                self._oldest.sync_now()
                return
        # What cannot be said must not be believed either.
        self._oldest.close()
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(self._directory, OLDEST))
        sync_directory(self._directory)

    def close(self) -> None:
        self._end.close()
        self._oldest.close()

    def _name(self, number: int) -> str:
        return f"{number:016x}{self._suffix}"


def _number(name: str) -> int:
    return int(name.partition(".")[0], 16)
