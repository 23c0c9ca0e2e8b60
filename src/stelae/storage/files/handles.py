"""Open files, a bounded number of them: a store of thousands of fragments must not need as many descriptors.

A blob given out here opens itself when it is read, and may be closed when others need its place; the next read opens it
again. A file that was deleted in between raises NotFound, as any store may.

A caller that must not wait for a disk reads within `only_cached`: whatever would touch a file raises NotCached then.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, local

from typing_extensions import Buffer

from stelae.model.errors import Closed, NotCached
from stelae.ports.blobs import Blob, BlobStore

OPEN_FILES_MAX = 512


class _Here(local):
    is_only_cached = False


_here = _Here()


@contextmanager
def only_cached() -> Iterator[None]:
    """In this thread, no file is read."""
    before, _here.is_only_cached = _here.is_only_cached, True
    try:
        yield
    finally:
        _here.is_only_cached = before


class Handles:
    """The files of a store that are open for reading, the least recently used closed first; safe for threads."""

    def __init__(self, blobs: BlobStore, open_max: int = OPEN_FILES_MAX) -> None:
        self._blobs = blobs
        self._open_max = open_max
        self._open: OrderedDict[str, Blob] = OrderedDict()
        self._lock = Lock()

    def blob(self, name: str) -> SharedBlob:
        return SharedBlob(self, name, self._get(name).size_bytes)

    def read(self, name: str, offset: int, length: int) -> Buffer:
        while True:
            try:
                return self._get(name).read(offset, length)
            except Closed:
                # Another thread needed the place between the lookup and the read.
                continue

    def _get(self, name: str) -> Blob:
        if _here.is_only_cached:
            raise NotCached(f"{name} would have to be read")
        with self._lock:
            found = self._open.get(name)
            if found is not None:
                self._open.move_to_end(name)
                return found
        opened = self._blobs.open(name)
        with self._lock:
            first = self._open.setdefault(name, opened)
            unused = [opened] if first is not opened else []
            while len(self._open) > self._open_max:
                unused.append(self._open.popitem(last=False)[1])
        for blob in unused:
            blob.close()
        return first

    def close(self, name: str) -> None:
        with self._lock:
            found = self._open.pop(name, None)
        if found is not None:
            found.close()

    def close_all(self) -> None:
        with self._lock:
            names = list(self._open)
        for name in names:
            self.close(name)


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
