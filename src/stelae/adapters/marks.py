"""A small file beside a larger one that says how far the larger one has certainly come: its witness.

What a database or a log has lost at its end, it does not miss. So whoever makes something durable then notes here how
far that was, as two numbers that only grow. Whoever opens the two later and finds less than the mark says knows that
bytes were lost or taken back since.

The mark is written after what it speaks of is on disk, and is not synced by itself: a killed process leaves it exact,
and a power loss leaves this mark or an older one. It never says too much. Two slots are written in turn, each with its
checksum, so one that is torn or damaged leaves the one before it. A mark that cannot be written, or is missing, says
less or nothing, and is no error.
"""

from __future__ import annotations

import errno
import os
import struct
from contextlib import suppress
from threading import Lock

from stelae.adapters.files import sync_file
from stelae.format.checksums import crc32c

_MAGIC = b"STLEMARK"
_SLOT = struct.Struct("<8sQQQ")
_CRC = struct.Struct("<I")
_SLOT_BYTES = 512
"""A sector each: what a disk tears is one of the two."""

Reached = tuple[int, int]
"""How far something has come; the first number counts before the second."""


class Mark:
    """Safe for threads. Several processes may have one mark: the largest that was noted stays, or one a little below
    it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._fd = -1
        self._lock = Lock()
        self._turn = 0
        self._is_unsynced = False

    def read(self) -> Reached | None:
        """The larger of the slots that are whole; None if there is none."""
        found = self._slots()
        return max(found)[0] if found else None

    def note(self, reached: Reached) -> None:
        """Say that it has come so far. Nothing is written that would say less than before."""
        with self._lock:
            try:
                if self._fd < 0 and not self._open(reached):
                    return
                self._is_unsynced = False
                turn = self._turn + 1
                body = _SLOT.pack(_MAGIC, turn, *reached)
                os.pwrite(self._fd, body + _CRC.pack(crc32c(body)), turn % 2 * _SLOT_BYTES)
                self._turn, self._is_unsynced = turn, True
            except OSError:
                return

    def _open(self, reached: Reached) -> bool:
        """Whether the file says no more than what is reached."""
        known = self._slots()
        self._turn = max(known)[1] if known else 0
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        return not known or max(known)[0] <= reached

    def sync(self) -> None:
        """Let what was noted survive a power loss, too, if that can be had."""
        if self._is_unsynced:
            with suppress(OSError):
                self.sync_now()

    def sync_now(self) -> None:
        """OSError if what was noted last could not be written, or may not survive."""
        with self._lock:
            if self._fd < 0 or not self._is_unsynced:
                raise OSError(errno.EIO, "the mark was not written", self._path)
            sync_file(self._fd)
            self._is_unsynced = False

    def close(self) -> None:
        self.sync()
        with self._lock:
            fd, self._fd, self._is_unsynced = self._fd, -1, False
            if fd >= 0:
                os.close(fd)

    def _slots(self) -> list[tuple[Reached, int]]:
        """What each whole slot says, and its turn."""
        try:
            with open(self._path, "rb") as file:
                data = file.read(2 * _SLOT_BYTES)
        except OSError:
            return []
        found = []
        for at in (0, _SLOT_BYTES):
            body = data[at : at + _SLOT.size]
            crc = data[at + _SLOT.size : at + _SLOT.size + _CRC.size]
            if len(crc) == _CRC.size and _CRC.unpack(crc)[0] == crc32c(body) and body.startswith(_MAGIC):
                _, turn, first, second = _SLOT.unpack(body)
                found.append(((first, second), turn))
        return found
