"""Decoded blocks of fragments, in a bounded number of bytes; blocks of in-memory groups stay longest.

A block has a rank, 1 to 4, by how much of its fragment is in in-memory groups. Room is made from the worst rank that
holds anything, so a block goes only when none of a worse rank is left; and a newcomer takes room only from its own
rank and worse ones. If that is not enough it is given out and not kept, and nothing goes for it in vain.

Within a rank blocks wait in a ring (CLOCK): the one at the hand goes unless it was hit since it was last looked at; if
it was, it is sent round once more. So a hit needs no lock and moves nothing: it counts up a number, and that is all
that `get` costs beyond a dict lookup. A sweep gives a bounded number of second chances, so no call works for long
under the lock. Hits counted by several threads at once may lose a few; nothing depends on the exact number.

Sizes are what the caller says they are. The sum of the sizes kept is never above the capacity, not even for a moment,
except while `resize` is taking room away.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from enum import IntEnum
from threading import Event, Lock, get_ident
from typing import Generic, TypeAlias, TypeVar

import msgspec

from stelae.model.errors import InvalidArgument

T = TypeVar("T")

BlockKey: TypeAlias = tuple[str, Hashable, *tuple[Hashable, ...]]
"""The file, then whatever tells its blocks apart: (file, block, columns)."""

_SECOND_CHANCES_MAX = 128


class CachePriority(IntEnum):
    """Where a fragment's columns are: the smaller the number, the longer its blocks stay."""

    ONE_GROUP = 1
    """All in one in-memory group."""
    SEVERAL_GROUPS = 2
    """All in in-memory groups, two or more."""
    PARTLY = 3
    """Some in an in-memory group."""
    ON_DEMAND = 4
    """None in an in-memory group."""


def priority_of(fragment_columns: frozenset[int], groups: Sequence[tuple[frozenset[int], bool]]) -> CachePriority:
    """The rank of a fragment's blocks, given each group's columns and whether it is in memory.

    Of a fragment without columns (rows that only exist) all columns are in any group there is.
    """
    in_memory = [columns for columns, is_in_memory in groups if is_in_memory]
    if any(fragment_columns <= columns for columns in in_memory):
        return CachePriority.ONE_GROUP
    covered = fragment_columns.intersection(frozenset().union(*in_memory))
    if not covered:
        return CachePriority.ON_DEMAND
    return CachePriority.SEVERAL_GROUPS if covered == fragment_columns else CachePriority.PARTLY


class CacheStats(msgspec.Struct, frozen=True):
    """`hits`: values given without reading; `misses`: reads that `load` did; `evictions`: blocks that made room."""

    capacity_bytes: int
    size_bytes: int
    blocks: int
    hits: int
    misses: int
    evictions: int
    bytes_by_priority: tuple[int, ...]


class _Entry(Generic[T]):
    __slots__ = ("hits", "hits_seen", "key", "priority", "size_bytes", "value")

    def __init__(self, key: BlockKey, priority: CachePriority, value: T, size_bytes: int) -> None:
        self.key = key
        self.priority = priority
        self.value = value
        self.size_bytes = _checked_size(key, size_bytes)
        self.hits = 0
        self.hits_seen = 0


class _Load(Generic[T]):
    """A read under way in one thread, for which others may wait."""

    __slots__ = ("done", "entry", "is_kept", "priority", "takes_room", "thread")

    def __init__(self, priority: CachePriority, *, takes_room: bool = True) -> None:
        """`takes_room`: others of its rank may go for it."""
        self.priority = priority
        self.takes_room = takes_room
        self.thread = get_ident()
        self.done = Event()
        self.is_kept = True
        self.entry: _Entry[T] | None = None


class BlockCache(Generic[T]):
    """Any thread may call anything. No value is None: that is how `get` says that it has none."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = _checked_capacity(capacity_bytes)
        self._size_bytes = 0
        self._entries: dict[BlockKey, _Entry[T]] = {}
        # By priority; nothing has priority 0.
        self._rings: list[OrderedDict[BlockKey, _Entry[T]]] = [OrderedDict() for _ in range(len(CachePriority) + 1)]
        self._bytes = [0] * (len(CachePriority) + 1)
        self._files: dict[str, set[BlockKey]] = {}
        self._loads: dict[BlockKey, _Load[T]] = {}
        self._hits_gone = 0
        self._misses = 0
        self._evictions = 0
        self._lock = Lock()

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    @property
    def room_bytes(self) -> int:
        """How much more can be kept before something must go."""
        return self._capacity_bytes - self._size_bytes

    def get(self, key: BlockKey) -> T | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        entry.hits += 1
        return entry.value

    def load(self, key: BlockKey, priority: CachePriority, read: Callable[[], tuple[T, int]]) -> T:
        """The cached value, or what `read` gives: the value and its size.

        Of threads that miss the same key at once, one reads and the others wait for it; if it fails, its error is its
        own, and the next one reads. `read` may load other keys (a block's index, say), but never in a circle.
        """
        entry = self._entries.get(key)
        if entry is not None and entry.priority is priority:
            entry.hits += 1
            return entry.value
        own = _Load[T](priority)
        while True:
            with self._lock:
                entry = self._entries.get(key)
                if entry is not None:
                    entry.hits += 1
                    self._rerank(entry, priority)
                    return entry.value
                other = self._loads.setdefault(key, own)
                self._misses += other is own
            if other is own:
                return self._read(key, own, read)
            if other.thread == get_ident():
                raise InvalidArgument(f"the read of block {key} asks the cache for the same block")
            other.done.wait()
            if other.entry is not None:
                with self._lock:
                    self._hits_gone += 1
                return other.entry.value

    def preload(self, key: BlockKey, priority: CachePriority, read: Callable[[], tuple[T, int]]) -> bool:
        """Read a value that nobody has asked for. It is kept if nothing of its rank or a better one has to go for it;
        False if there is no room for it so."""
        own = _Load[T](priority, takes_room=False)
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._rerank(entry, priority)
                return True
            if self._loads.setdefault(key, own) is not own:
                return True  # somebody is reading it
        self._read(key, own, read)
        return own.is_kept

    def put(self, key: BlockKey, priority: CachePriority, value: T, size_bytes: int) -> None:
        """Keep a value, in place of the one that was there; if there is no room for it, neither is kept."""
        entry = _Entry(key, priority, value, size_bytes)
        with self._lock:
            self._replace(entry)

    def grew(self, key: BlockKey, by_bytes: int) -> None:
        """The value takes so much more now. It may have to go for that; if it is gone already, nothing happens."""
        if by_bytes < 0:
            raise InvalidArgument(f"block {key} grew by {by_bytes} bytes")
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._remove(entry)
                entry.size_bytes += by_bytes
                self._admit(entry)

    def rerank_file(self, file: str, priority: CachePriority) -> None:
        """A group went into or out of memory: the blocks of this file have another rank now."""
        with self._lock:
            for key in self._files.get(file, ()):
                self._rerank(self._entries[key], priority)
            for key, load in self._loads.items():
                if key[0] == file:
                    load.priority = priority

    def drop_file(self, file: str) -> None:
        """Keep nothing of this file, nor what is being read of it."""
        with self._lock:
            self._drop(list(self._files.get(file, ())))
            self._drop([key for key in self._loads if key[0] == file])

    def drop(self, matches: Callable[[BlockKey], bool]) -> None:
        """Keep no block whose key matches, nor what is being read of such. Asks of every key, outside the lock."""
        with self._lock:
            keys = [*self._entries, *self._loads]
        unwanted = [key for key in keys if matches(key)]
        with self._lock:
            self._drop(unwanted)

    def resize(self, capacity_bytes: int) -> None:
        with self._lock:
            self._capacity_bytes = _checked_capacity(capacity_bytes)
            self._shrink_to(capacity_bytes)

    def stats(self) -> CacheStats:
        with self._lock:
            entries = list(self._entries.values())
            _, *by_priority = self._bytes
            hits_gone, misses, evictions = self._hits_gone, self._misses, self._evictions
            capacity_bytes, size_bytes = self._capacity_bytes, self._size_bytes
        return CacheStats(
            capacity_bytes=capacity_bytes,
            size_bytes=size_bytes,
            blocks=len(entries),
            hits=hits_gone + sum(entry.hits for entry in entries),
            misses=misses,
            evictions=evictions,
            bytes_by_priority=tuple(by_priority),
        )

    def _read(self, key: BlockKey, own: _Load[T], read: Callable[[], tuple[T, int]]) -> T:
        try:
            value, size_bytes = read()
            own.entry = _Entry(key, own.priority, value, size_bytes)
            return value
        finally:
            with self._lock:
                del self._loads[key]
                if own.entry is not None and own.is_kept:
                    own.entry.priority = own.priority
                    own.is_kept = own.takes_room or self._has_room(own.entry)
                    if own.is_kept:
                        self._replace(own.entry)
            own.done.set()

    def _drop(self, keys: Iterable[BlockKey]) -> None:
        for key in keys:
            entry = self._entries.get(key)
            if entry is not None:
                self._remove(entry)
            load = self._loads.get(key)
            if load is not None:
                load.is_kept = False

    def _replace(self, entry: _Entry[T]) -> None:
        old = self._entries.get(entry.key)
        if old is not None:
            self._remove(old)
        self._admit(entry)

    def _has_room(self, entry: _Entry[T]) -> bool:
        """Whether it fits if only blocks of worse ranks go."""
        return sum(self._bytes[: entry.priority + 1]) + entry.size_bytes <= self._capacity_bytes

    def _admit(self, entry: _Entry[T]) -> None:
        """Keep it if it fits once blocks of its own rank and worse ones have gone."""
        better_bytes = sum(self._bytes[: entry.priority])
        if better_bytes + entry.size_bytes > self._capacity_bytes:
            return
        self._shrink_to(self._capacity_bytes - entry.size_bytes)
        self._entries[entry.key] = entry
        self._rings[entry.priority][entry.key] = entry
        self._files.setdefault(entry.key[0], set()).add(entry.key)
        self._bytes[entry.priority] += entry.size_bytes
        self._size_bytes += entry.size_bytes

    def _remove(self, entry: _Entry[T]) -> None:
        del self._entries[entry.key]
        del self._rings[entry.priority][entry.key]
        keys = self._files[entry.key[0]]
        keys.remove(entry.key)
        if not keys:
            del self._files[entry.key[0]]
        self._bytes[entry.priority] -= entry.size_bytes
        self._size_bytes -= entry.size_bytes
        self._hits_gone += entry.hits
        entry.hits = entry.hits_seen = 0

    def _rerank(self, entry: _Entry[T], priority: CachePriority) -> None:
        if entry.priority is not priority:
            del self._rings[entry.priority][entry.key]
            self._bytes[entry.priority] -= entry.size_bytes
            entry.priority = priority
            self._rings[priority][entry.key] = entry
            self._bytes[priority] += entry.size_bytes

    def _shrink_to(self, size_bytes: int) -> None:
        while self._size_bytes > size_bytes:
            self._remove(self._victim())
            self._evictions += 1

    def _victim(self) -> _Entry[T]:
        ring = next(ring for ring in reversed(self._rings) if ring)
        for _ in range(_SECOND_CHANCES_MAX):
            entry = next(iter(ring.values()))
            if entry.hits == entry.hits_seen:
                return entry
            entry.hits_seen = entry.hits
            ring.move_to_end(entry.key)
        return next(iter(ring.values()))


def _checked_capacity(capacity_bytes: int) -> int:
    if capacity_bytes < 0:
        raise InvalidArgument(f"a cache of {capacity_bytes} bytes")
    return capacity_bytes


def _checked_size(key: BlockKey, size_bytes: int) -> int:
    """A block counts for one byte at least, so that empty ones are bounded too."""
    if size_bytes < 0:
        raise InvalidArgument(f"block {key} of {size_bytes} bytes")
    return max(size_bytes, 1)
