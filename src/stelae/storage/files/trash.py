"""Where fragments go that nobody needs: aside for a while, in case that was a mistake, and then for good.

A file is put aside by moving it, so no reader finds it and its bytes are as they were:

    fragments/TABLE/FILE.parquet  ->  trash/MILLISECONDS.TABLE.FILE.parquet

The milliseconds, twelve hexadecimal digits, are when it was put there. It is deleted when it has lain there for as long
as was said, when all of it together has become more than what is needed, or when the disk is full.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress

from stelae.model.errors import NotFound
from stelae.ports.blobs import BlobStore
from stelae.storage.files.names import FRAGMENTS
from stelae.storage.turns import Turn

TRASH = "trash/"
_NAME = re.compile(r"trash/([0-9a-f]{12})\.[0-9a-f]{8,16}\.[0-9a-f]{16}-[0-9a-f]+\.parquet")


def name_in_trash(fragment: str, at_ms: int) -> str:
    return f"{TRASH}{at_ms:012x}.{fragment.removeprefix(FRAGMENTS).replace('/', '.')}"


class Trash:
    """The files of a store that were put aside. What lies there is listed once, when it is first asked for, and after
    `look_anew`. Safe for threads."""

    def __init__(self, blobs: BlobStore, now_ms: Callable[[], int], kept_ms: int) -> None:
        self._blobs = blobs
        self._now_ms = now_ms
        self._kept_ms = kept_ms
        self._turn = Turn()
        self._files: dict[str, int] | None = None

    def look_anew(self) -> None:
        """Others may have put files there, or deleted some."""
        with self._turn:
            self._files = None

    def put(self, fragment: str, size_bytes: int) -> None:
        """NotFound if it is gone already."""
        with self._turn:
            name = name_in_trash(fragment, self._now_ms())
            self._blobs.move(fragment, name)
            self._known()[name] = size_bytes

    def tidy(self, bytes_max: int) -> int:
        """Delete what has lain there long enough, and of the rest the oldest until no more than so much is left; how
        many bytes were freed."""
        with self._turn:
            files = self._known()
            over_ms, left = self._now_ms() - self._kept_ms, sum(files.values())
            freed = 0
            for name in sorted(files):
                if _put_ms(name) > over_ms and left - freed <= bytes_max:
                    break
                freed += self._delete(name)
            return freed

    def empty(self) -> int:
        """Delete all that lies there."""
        with self._turn:
            return sum(self._delete(name) for name in sorted(self._known()))

    def _delete(self, name: str) -> int:
        with suppress(NotFound):
            self._blobs.delete(name)
        return self._known().pop(name)

    def _known(self) -> dict[str, int]:
        if self._files is None:
            self._files = {info.name: info.size_bytes for info in self._blobs.list(TRASH) if _NAME.fullmatch(info.name)}
        return self._files


def _put_ms(name: str) -> int:
    found = _NAME.fullmatch(name)
    return int(found[1], 16) if found else 0
