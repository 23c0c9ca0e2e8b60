"""Log files whose first changes wait: recovery cuts and deletes, and only when all of it has proved good is that done.

Until `settle`, cuts and deletions are remembered and shown as if they were done, and nothing on disk changes. The first
file that is created settles, too.
"""

from __future__ import annotations

from stelae.model.errors import InvalidArgument, NotFound
from stelae.ports.logfiles import LogFile, LogFileInfo, LogFiles
from stelae.ports.names import check_log_name


class DeferredLogFiles:
    def __init__(self, files: LogFiles) -> None:
        self._files = files
        self._cut: dict[str, int] = {}
        self._deleted: dict[str, None] = {}
        self._is_settled = False

    def settle(self) -> None:
        """Do what was put off; from here on nothing is. What fails may be tried again."""
        for name in list(self._cut):
            if name not in self._deleted:
                self._files.truncate(name, self._cut[name])
            del self._cut[name]
        for name in list(self._deleted):
            self._files.delete(name)
            del self._deleted[name]
        self._is_settled = True

    def create(self, name: str) -> LogFile:
        self.settle()
        return self._files.create(name)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        if name in self._deleted:
            raise NotFound(f"{name} was deleted")
        end = self._cut.get(name)
        if end is None:
            return self._files.read(name, offset, length)
        there = max(0, end - offset)
        return self._files.read(name, offset, there if length is None else min(length, there))

    def truncate(self, name: str, size_bytes: int) -> None:
        if self._is_settled:
            self._files.truncate(name, size_bytes)
            return
        size = {info.name: info.size_bytes for info in self.list()}.get(check_log_name(name))
        if size is None:
            raise NotFound(f"{name} is not there")
        if not 0 <= size_bytes <= size:
            raise InvalidArgument(f"{name} has {size} bytes; cannot cut it to {size_bytes}")
        self._cut[name] = size_bytes

    def list(self) -> list[LogFileInfo]:
        return [
            LogFileInfo(info.name, self._cut.get(info.name, info.size_bytes))
            for info in self._files.list()
            if info.name not in self._deleted
        ]

    def delete(self, name: str) -> None:
        if self._is_settled:
            self._files.delete(name)
        else:
            self._deleted[check_log_name(name)] = None

    def synced(self) -> LogFileInfo | None:
        return self._files.synced()

    def lost(self) -> str | None:
        return self._files.lost()
