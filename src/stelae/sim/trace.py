"""The trace of a run as one hash: two runs of a seed that differ anywhere have other hashes."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from hashlib import blake2b
from typing import Any, cast

from stelae.sim.process import SimProcess

_LINES_AT_ONCE = 1_000


class Trace:
    """Hears of every step: its number, its process, its callback, the true time. With `lines_max` it keeps the last so
    many as text, to find where two runs part."""

    def __init__(self, lines_max: int = 0) -> None:
        self._hash = blake2b(digest_size=16)
        self._unhashed: list[str] = []
        self.lines: deque[str] = deque(maxlen=lines_max)

    @property
    def digest(self) -> str:
        self._hash_all()
        return self._hash.hexdigest()

    def step(self, number: int, process: SimProcess | None, handle: asyncio.Handle, now_ns: int) -> None:
        line = f"{number} {process.name if process else '-'} {_name(cast(Any, handle)._callback)} {now_ns}"
        self._unhashed.append(line)
        if len(self._unhashed) >= _LINES_AT_ONCE:
            self._hash_all()
        self.lines.append(line)

    def _hash_all(self) -> None:
        self._hash.update("".join(self._unhashed).encode())
        self._unhashed.clear()

    def add(self, what: str, data: bytes) -> None:
        """What a run left behind: the bytes of a disk, the last revision."""
        self._hash_all()
        self._hash.update(b"%s %d:" % (what.encode(), len(data)))
        self._hash.update(data)
        self.lines.append(f"{what}: {len(data)} bytes, {blake2b(data, digest_size=8).hexdigest()}")


def _name(callback: Any) -> str:
    """The same in every run: no address, no number that the whole interpreter counts."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return owner.get_name()
    while isinstance(callback, partial):
        callback = callback.func
    name = getattr(callback, "__qualname__", None)
    return name if isinstance(name, str) else type(callback).__qualname__
