"""Log files on a disk with a page cache, which loses as much at a crash as the LogFiles contract allows.

A file is its cached bytes, of which the first `synced` were covered by a good sync, except ranges in doubt: those that
an earlier sync failed to write, which the cache then took for clean. All other bytes are at the mercy of `crash`. A
name is durable from the first good sync on. A truncate or delete that failed leaves both states possible. Room may be
taken ahead of the bytes, and is found as zeros behind them after a crash, or a kill while the file is written.

Beside single faults there are those that last: a call that fails until it is mended, a disk that is full until files
are deleted, one that is slow or hangs (`pace`), and bits that flip in what was synced, which no contract allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from typing_extensions import Buffer

from stelae.model.errors import AlreadyExists, Closed, DiskFailed, DiskFull, InvalidArgument, NotFound
from stelae.ports.logfiles import LogFileInfo
from stelae.ports.names import check_log_name
from stelae.ports.rng import Rng
from stelae.sim.effects import Effects, Faults, Pace

T = TypeVar("T")

DiskCall = Literal["create", "append", "sync", "truncate", "delete"]


@dataclass(slots=True)
class _Inode:
    """Bytes [0, synced) but those in `doubt` are on the disk. After failed truncates any of `before` may come back.
    `is_roomy`: zeros may follow the last byte, until a truncate has cut them off."""

    data: bytearray = field(default_factory=bytearray)
    synced: int = 0
    doubt: list[tuple[int, int]] = field(default_factory=list)
    before: list[_Inode] = field(default_factory=list)
    has_writer: bool = False
    is_roomy: bool = False

    def volatile(self) -> list[tuple[int, int]]:
        return [*self.doubt, (self.synced, len(self.data))]

    def cut(self, size_bytes: int) -> None:
        del self.data[size_bytes:]
        self.synced = min(self.synced, size_bytes)
        self.doubt = [(start, min(end, size_bytes)) for start, end in self.doubt if start < size_bytes]

    def doubt_unsynced(self) -> None:
        if self.synced < len(self.data):
            self.doubt.append((self.synced, len(self.data)))

    def image(self) -> _Inode:
        return _Inode(bytearray(self.data), self.synced, list(self.doubt), is_roomy=self.is_roomy)


class SimLogFile:
    """One file open for appending; made by `SimDisk.create`. A crash or kill of the disk closes it."""

    def __init__(self, disk: SimDisk, name: str, inode: _Inode) -> None:
        self._disk = disk
        self._name = name
        self._inode = inode
        self._life = disk._life

    @property
    def name(self) -> str:
        return self._name

    @property
    def size_bytes(self) -> int:
        return len(self._inode.data)

    def append(self, *data: Buffer) -> int:
        self._check_open()
        return self._disk._append(self._name, self._inode, b"".join(bytes(memoryview(part)) for part in data))

    def sync(self) -> None:
        self._check_open()
        self._disk._sync(self._name, self._inode)

    def close(self) -> None:
        if self._life == self._disk._life:
            self._inode.has_writer = False

    def _check_open(self) -> None:
        self._disk._effects.check_alive()
        if self._life != self._disk._life or not self._inode.has_writer:
            raise Closed(f"log file {self._name} is closed")


class SimDisk:
    """The same seed and the same calls leave the same bytes. Not for threads.

    `fail` arms faults; `crash` is a power loss and `kill` the end of the process only. After either, old handles raise
    Closed, and the next process may use the disk.
    """

    def __init__(self, rng: Rng, page_bytes: int = 4096, effects: Effects | None = None) -> None:
        self._rng = rng
        self._page_bytes = page_bytes
        self._effects = effects or Effects()
        self._faults = Faults()
        self._life = 0
        self._visible: dict[str, _Inode] = {}
        self._durable: dict[str, _Inode] = {}
        self._synced: list[LogFileInfo | None] = [None]
        self._last_group: tuple[_Inode, int, int] | None = None
        self.wipes = 0
        """How often it was put in the place of another."""
        self.pace = Pace()
        """For the executor whose jobs use this disk."""
        self.size_bytes_max: int | None = None
        """What all files together may have; what goes beyond it raises DiskFull."""

    def fail(self, call: DiskCall, error: type[DiskFull | DiskFailed], nth: int = 1) -> None:
        """Let the nth next such call raise. An append then leaves nothing, a part or all of its bytes; a sync leaves
        all unsynced bytes in doubt for ever; a truncate or delete may have happened until the next crash, or not."""
        self._faults.arm(call, error, nth)

    def fail_on(self, call: DiskCall, error: type[DiskFull | DiskFailed]) -> None:
        """Let every such call raise until `mend`."""
        self._faults.last(call, error)

    def fill(self) -> None:
        """No byte more fits, until a file is deleted, or `mend`."""
        self.size_bytes_max = self.used_bytes

    def mend(self) -> None:
        """No more faults, as much room as is wanted, and quick. What the faults did to bytes stays."""
        self._faults.mend()
        self.size_bytes_max = None
        self.pace.slow_s_max = 0.0
        self.pace.free()

    @property
    def used_bytes(self) -> int:
        return sum(len(inode.data) for inode in self._visible.values())

    def flip_bit(self) -> str | None:
        """Flip a drawn bit of what was synced last, as a failing device does; where, or None if it is gone."""
        if self._last_group is None:
            return None
        inode, start, end = self._last_group
        name = next((name for name, each in self._visible.items() if each is inode), None)
        if name is None or start >= min(end, len(inode.data)):
            return None
        place = start + self._rng.below(min(end, len(inode.data)) - start)
        inode.data[place] ^= 1 << self._rng.below(8)
        return f"{name} at {place}"

    def wipe(self) -> None:
        """An empty disk in its place, as after a repair. Open files are closed."""
        self.wipes += 1
        self._visible, self._durable = {}, {}
        self._synced, self._last_group = [None], None
        self._end_life()

    def image(self) -> bytes:
        """Every file with its bytes, as a process reads them now: the same for disks that are the same."""
        parts = [b"%s %d:%s" % (name.encode(), len(inode.data), inode.data) for name, inode in self._sorted()]
        return b"".join(parts)

    def create(self, name: str) -> SimLogFile:
        self._effects.check_alive()
        check_log_name(name)
        if name in self._visible:
            raise AlreadyExists(f"log file {name} exists")
        if error := self._faults.due("create"):
            raise error(f"{name}: simulated fault at create")
        inode = _Inode(has_writer=True, is_roomy=True)
        self._visible[name] = inode
        self._effects.happen("create", name)
        return SimLogFile(self, name, inode)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        self._effects.check_alive()
        data = self._inode(name).data
        if offset < 0 or (length is not None and length < 0):
            raise InvalidArgument(f"{name}: cannot read {length} bytes at {offset}")
        return bytes(data[offset : None if length is None else offset + length])

    def truncate(self, name: str, size_bytes: int) -> None:
        self._effects.check_alive()
        inode = self._inode(name)
        if not 0 <= size_bytes <= len(inode.data):
            raise InvalidArgument(f"{name} has {len(inode.data)} bytes; cannot cut it to {size_bytes}")
        if inode.has_writer:
            raise InvalidArgument(f"{name} cannot be truncated while a writer has it open")
        error = self._faults.due("truncate")
        if error is None or self._coin():
            inode.before.append(inode.image())
            inode.cut(size_bytes)
        self._effects.happen("truncate", name)
        if error is not None:
            inode.doubt_unsynced()
            raise error(f"{name}: simulated fault at truncate")
        inode.before.clear()
        inode.synced = size_bytes
        inode.is_roomy = False
        self._durable[name] = inode

    def list(self) -> list[LogFileInfo]:
        self._effects.check_alive()
        return [LogFileInfo(name, len(inode.data)) for name, inode in self._sorted()]

    def delete(self, name: str) -> None:
        self._effects.check_alive()
        check_log_name(name)
        error = self._faults.due("delete")
        if error is None or self._coin():
            self._visible.pop(name, None)
        self._effects.happen("delete", name)
        if error is not None:
            raise error(f"{name}: simulated fault at delete")
        self._durable.pop(name, None)

    def synced(self) -> LogFileInfo | None:
        self._effects.check_alive()
        return self._synced[-1]

    def lost(self) -> str | None:
        return None

    def crash(self) -> None:
        """Power loss: keep what was promised, and draw the fate of everything else. What is then read is durable."""
        survivors = {}
        for name in sorted({*self._visible, *self._durable}):
            inode = self._pick([self._visible.get(name), self._durable.get(name)])
            if inode is not None:
                survivor = survivors[name] = self._surviving(inode)
                if self._last_group is not None and self._last_group[0] is inode:
                    self._last_group = (survivor, *self._last_group[1:])
        self._visible = survivors
        self._durable = dict(survivors)
        self._synced = [self._pick(self._synced)]
        self._end_life()

    def kill(self) -> None:
        """The process dies and the machine lives on: the page cache stays, and unsynced bytes stay unsynced."""
        for inode in self._visible.values():
            if inode.has_writer:
                inode.has_writer = False
                inode.data += bytes(self._room_bytes(inode))
        self._end_life()

    def _append(self, name: str, inode: _Inode, data: bytes) -> int:
        offset = len(inode.data)
        error = self._faults.due("append")
        if self.size_bytes_max is not None and self.used_bytes + len(data) > self.size_bytes_max:
            data = data[: max(0, self.size_bytes_max - self.used_bytes)]
            error = DiskFull
        inode.data += data if error is None else data[: self._pick([0, self._rng.below(len(data) + 1), len(data)])]
        self._effects.happen("append", name)
        if error is not None:
            raise error(f"{name}: simulated fault at append")
        return offset

    def _sync(self, name: str, inode: _Inode) -> None:
        error = self._faults.due("sync")
        self._effects.happen("sync", name)
        if error is not None:
            inode.doubt_unsynced()
            raise error(f"{name}: simulated fault at sync")
        if inode.synced < len(inode.data):
            self._last_group = (inode, inode.synced, len(inode.data))
        inode.synced = len(inode.data)
        if self._visible.get(name) is inode:
            self._durable[name] = inode
            self._synced = [*self._synced[-2:], LogFileInfo(name, inode.synced)]

    def _surviving(self, inode: _Inode) -> _Inode:
        state = self._pick([inode, *inode.before])
        full_bytes = len(state.data)
        between = state.synced + self._rng.below(full_bytes - state.synced + 1)
        size_bytes = self._pick([state.synced, between, full_bytes])
        data = bytearray(state.data[:size_bytes])
        for start, end in self._pages(state.volatile(), size_bytes):
            lost_from, lost_to = self._lost(start, end)
            data[lost_from:lost_to] = bytes(lost_to - lost_from)
        data += bytes(self._room_bytes(state))
        return _Inode(data, synced=len(data))

    def _room_bytes(self, inode: _Inode) -> int:
        """How many zeros are found behind the bytes."""
        return self._pick([0, self._rng.below(3 * self._page_bytes)]) if inode.is_roomy else 0

    def _pages(self, ranges: Sequence[tuple[int, int]], size_bytes: int) -> Iterator[tuple[int, int]]:
        for start, end in ranges:
            while start < min(end, size_bytes):
                page_end = min((start // self._page_bytes + 1) * self._page_bytes, end, size_bytes)
                yield start, page_end
                start = page_end

    def _lost(self, start: int, end: int) -> tuple[int, int]:
        """Which bytes of a page's unsynced part are still the zeros they were: none, all, its end, or its beginning."""
        tear = start + self._rng.below(end - start + 1)
        return self._pick([(start, start), (start, end), (tear, end), (start, tear)])

    def _end_life(self) -> None:
        self._life += 1
        self._effects.restart()

    def _sorted(self) -> Sequence[tuple[str, _Inode]]:
        return sorted(self._visible.items(), key=lambda item: item[0])

    def _inode(self, name: str) -> _Inode:
        inode = self._visible.get(check_log_name(name))
        if inode is None:
            raise NotFound(f"log file {name} does not exist")
        return inode

    def _coin(self) -> bool:
        return self._rng.below(2) == 1

    def _pick(self, options: Sequence[T]) -> T:
        return options[self._rng.below(len(options))]
