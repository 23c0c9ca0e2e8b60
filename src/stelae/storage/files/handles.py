"""Open files, a bounded number of them: a store of thousands of fragments must not need as many descriptors.

All stores of a process share one number of open files (`OPEN_FILES`), equally. A blob given out here opens itself when
it is read, and may be closed when others need its place; the next read opens it again. A file that was deleted in
between raises MissingFile.

A caller that must not wait for a disk reads within `only_cached`: whatever would touch a file raises NotCached then.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import AbstractContextManager
from threading import Lock, local
from weakref import WeakKeyDictionary

from typing_extensions import Buffer

from stelae.model.errors import Closed, Corruption, NotCached, NotFound, Overloaded
from stelae.ports.blobs import Blob, BlobStore

_FILES_MAX = 128
"""Until somebody says how many the process may have."""
_LEFT_MIN = 1


class MissingFile(NotFound):
    """A file is not there. Whoever went by a tablet's state of before looks at the tablet as it is now."""

    def __init__(self, file: str) -> None:
        super().__init__(f"{file} is not there any more")
        self.file = file

    def needed(self) -> Corruption:
        """What it is if the tablet needs the file now."""
        return Corruption("the file is missing; `stelae check` says which table needs it", self.file)


class OpenFiles:
    """How many files all its users may have open together, each an equal part. Safe for threads."""

    def __init__(self, files_max: int) -> None:
        self._files_max = files_max
        self._users: WeakKeyDictionary[Handles, None] = WeakKeyDictionary()  # in the order in which they came
        self._lock = Lock()

    @property
    def each_max(self) -> int:
        """How many one user may have open."""
        return max(_LEFT_MIN, self._files_max // max(1, len(self._users)))

    def allow(self, files_max: int) -> None:
        """Change the number. Who has too many open closes them now."""
        with self._lock:
            self._files_max = files_max
            users = list(self._users)
        for user in users:
            user.close_down_to(self.each_max)

    def join(self, user: Handles) -> None:
        """One user more: the others have a smaller part now."""
        with self._lock:
            self._users[user] = None
            users = list(self._users)
        for other in users:
            other.close_down_to(self.each_max)

    def leave(self, user: Handles) -> None:
        with self._lock:
            self._users.pop(user, None)


OPEN_FILES = OpenFiles(_FILES_MAX)
"""Of this process: descriptors are the process's, whoever opens them."""


class _Here(local):
    is_only_cached = False


_here = _Here()


class _OnlyCached:
    """Every point read that a loop answers goes through this: a generator would take several times as long."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before, _here.is_only_cached = _here.is_only_cached, True

    def __exit__(self, *_: object) -> None:
        _here.is_only_cached = self._before


def only_cached() -> AbstractContextManager[None]:
    """While it is entered, this thread reads no file: what would have to raises NotCached."""
    return _OnlyCached()


def is_only_cached() -> bool:
    """Whether this thread must not wait for anything now."""
    return _here.is_only_cached


class Handles:
    """The files of a store that are open for reading, the least recently used closed first; safe for threads."""

    def __init__(self, blobs: BlobStore, files: OpenFiles = OPEN_FILES) -> None:
        self._blobs = blobs
        self._files = files
        self._open: OrderedDict[str, Blob] = OrderedDict()
        self._lock = Lock()
        files.join(self)

    def blob(self, name: str) -> SharedBlob:
        return SharedBlob(self, name, self._get(name).size_bytes)

    def known_blob(self, name: str, size_bytes: int) -> SharedBlob:
        """One whose size is known: it is looked for when it is read."""
        return SharedBlob(self, name, size_bytes)

    def read(self, name: str, offset: int, length: int) -> Buffer:
        while True:
            try:
                return self._get(name).read(offset, length)
            except Closed:
                # Another thread needed the place between the lookup and the read.
                continue
            except NotFound:
                raise MissingFile(name) from None

    def _get(self, name: str) -> Blob:
        if _here.is_only_cached:
            raise NotCached(f"{name} would have to be read")
        with self._lock:
            found = self._open.get(name)
            if found is not None:
                self._open.move_to_end(name)
                return found
        try:
            opened = self._open_blob(name)
        except NotFound:
            raise MissingFile(name) from None
        with self._lock:
            first = self._open.setdefault(name, opened)
        if first is not opened:
            opened.close()
        self.close_down_to(self._files.each_max)
        return first

    def _open_blob(self, name: str) -> Blob:
        try:
            return self._blobs.open(name)
        except Overloaded:
            # The process has no descriptor left: others needed more than their part. Live with half of ours.
            self.close_down_to(len(self._open) // 2)
            return self._blobs.open(name)

    def close_down_to(self, files_max: int) -> None:
        """Close the least recently used until no more than so many are open."""
        unused = []
        with self._lock:
            while len(self._open) > files_max:
                unused.append(self._open.popitem(last=False)[1])
        for blob in unused:
            blob.close()

    def close(self, name: str) -> None:
        with self._lock:
            found = self._open.pop(name, None)
        if found is not None:
            found.close()

    def close_all(self) -> None:
        """Whoever reads again opens again."""
        self.close_down_to(0)
        self._files.leave(self)


class SharedBlob:
    """A `Blob` that holds no descriptor of its own."""

    def __init__(self, handles: Handles, name: str, size_bytes: int) -> None:
        self._handles = handles
        self.name = name
        self.size_bytes = size_bytes

    def read(self, offset: int, length: int) -> Buffer:
        return self._handles.read(self.name, offset, length)

    def close(self) -> None:
        self._handles.close(self.name)
