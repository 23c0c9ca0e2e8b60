"""A log's files on a disk that is slow, or hangs: in a simulated thread, a sync takes virtual time."""

from __future__ import annotations

from typing_extensions import Buffer

from stelae.ports.logfiles import LogFile, LogFileInfo, LogFiles
from stelae.sim.effects import Pace
from stelae.sim.loop import SimLoop
from stelae.sim.threads.thread import current_thread

SYNC_S_MAX = 0.005


class PacedLogFiles:
    """A `LogFiles`. What is synced is on the disk at the end of the wait, or at its beginning, as is drawn."""

    def __init__(self, files: LogFiles, pace: Pace, loop: SimLoop) -> None:
        self._files = files
        self._pace = pace
        self._loop = loop

    def create(self, name: str) -> LogFile:
        return _PacedFile(self._files.create(name), self)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        return self._files.read(name, offset, length)

    def truncate(self, name: str, size_bytes: int) -> None:
        self._files.truncate(name, size_bytes)

    def list(self) -> list[LogFileInfo]:
        return self._files.list()

    def delete(self, name: str) -> None:
        self._files.delete(name)

    def synced(self) -> LogFileInfo | None:
        return self._files.synced()

    def lost(self) -> str | None:
        return self._files.lost()

    def wait(self) -> None:
        """Wait as long as the disk takes for a sync now."""
        thread = current_thread()
        if thread is None:
            return
        thread.sleep(self._loop.draw() * (SYNC_S_MAX + self._pace.slow_s_max))
        while self._pace.hangs:
            wait = thread.begin_wait()
            self._pace.when_free(lambda wait=wait: thread.wake(wait))  # type: ignore[misc]
            thread.wait()

    def draw(self) -> float:
        return self._loop.draw()


class _PacedFile:
    def __init__(self, file: LogFile, files: PacedLogFiles) -> None:
        self._file = file
        self._files = files

    @property
    def name(self) -> str:
        return self._file.name

    @property
    def size_bytes(self) -> int:
        return self._file.size_bytes

    def append(self, *data: Buffer) -> int:
        return self._file.append(*data)

    def sync(self) -> None:
        if self._files.draw() < 0.5:
            self._file.sync()
            self._files.wait()
        else:
            self._files.wait()
            self._file.sync()

    def close(self) -> None:
        self._file.close()
