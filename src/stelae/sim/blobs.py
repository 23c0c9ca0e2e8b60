"""An object store in memory which loses answers, and forgets deletes, as the BlobStore contract allows.

One server has the objects, each process its own client (`SimBlobServer.client`): with its own faults, its own effects,
and handles that end when it crashes, and with no other. A store that is made alone has a server of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from typing_extensions import Buffer

from stelae.model.errors import AlreadyExists, Closed, InvalidArgument, NotFound, StelaeError, Unavailable
from stelae.ports.blobs import BlobInfo, check_range
from stelae.ports.names import check_blob_name
from stelae.ports.rng import Rng
from stelae.sim.effects import Effects, Faults, Pace

BlobCall = Literal["create", "write", "commit", "open", "read", "list", "delete"]

UNDONE_MAX = 256


class _Object:
    """The bytes of one commit: a later object of the same name, even of the same bytes, is another one."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class SimBlob:
    """One object open for reading. Once its name is gone, the seed says whether it goes on or raises NotFound."""

    def __init__(self, store: SimBlobStore, name: str, held: _Object) -> None:
        self._store = store
        self._info = BlobInfo(name, len(held.data))
        self._held = held
        self._life = store._life
        self._outlives_name: bool | None = None
        self._closed = False

    @property
    def name(self) -> str:
        return self._info.name

    @property
    def size_bytes(self) -> int:
        return self._info.size_bytes

    def read(self, offset: int, length: int) -> bytes:
        check_range(self._info, offset, length)
        self._store._effects.check_alive()
        if self._closed or self._life != self._store._life:
            raise Closed(f"object {self.name} is closed")
        self._store._raise_if_due("read", self.name)
        if self._store._server.objects.get(self.name) is not self._held:
            if self._outlives_name is None:
                self._outlives_name = self._store._coin()
            if not self._outlives_name:
                raise NotFound(f"object {self.name} was deleted")
        return self._held.data[offset : offset + length]

    def close(self) -> None:
        self._closed = True


class SimBlobWriter:
    """One object in the making; a crash of the store ends it."""

    def __init__(self, store: SimBlobStore, name: str) -> None:
        self._store = store
        self._name = name
        self._data = bytearray()
        self._life = store._life
        self._closed = False

    def write(self, data: Buffer) -> None:
        self._check_open()
        try:
            self._store._raise_if_due("write", self._name)
        except StelaeError:
            self.abort()
            raise
        self._data += memoryview(data)

    def commit(self) -> None:
        self._check_open()
        self._closed = True
        self._store._commit(self._name, _Object(bytes(self._data)))

    def abort(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        self._store._effects.check_alive()
        if self._closed or self._life != self._store._life:
            raise Closed(f"the writer of {self._name} was committed or aborted")


class SimBlobServer:
    """The objects themselves, which outlive every process."""

    def __init__(self, rng: Rng) -> None:
        self.objects: dict[str, _Object] = {}
        self.directories: set[str] = set()
        self._rng = rng

    def client(self, effects: Effects | None = None) -> SimBlobStore:
        """The store as one process has it."""
        return SimBlobStore(self._rng, effects, self)

    def image(self) -> bytes:
        """Every object with its bytes: the same for stores that are the same."""
        parts = [b"%s %d:%s" % (name.encode(), len(self.objects[name].data), self.objects[name].data) for name in self]
        return b"".join(parts)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.objects))


class SimBlobStore:
    """The same seed and the same calls give the same objects and answers.

    Refuses 'a' beside 'a/b', as a store of directories does. Of concurrent commits of one name one wins, also from
    threads; nothing else here is for threads.
    """

    def __init__(self, rng: Rng, effects: Effects | None = None, server: SimBlobServer | None = None) -> None:
        self.unavailable = 0.0
        """How many of all calls meet Unavailable: a rate from 0 to 1."""
        self.pace = Pace()
        """For the executor whose jobs use this store."""
        self._rng = rng
        self._server = server or SimBlobServer(rng)
        self._effects = effects or Effects()
        self._faults = Faults()
        self._life = 0
        self._deleted: dict[str, _Object] = {}
        self._in_flight: dict[str, _Object] = {}

    def fail(self, call: BlobCall, error: type[StelaeError], nth: int = 1) -> None:
        """Let the nth next such call raise. With Unavailable, or an error derived from it, only the answer may be lost:
        the seed says whether a commit or delete happened. With others it did not."""
        self._faults.arm(call, error, nth)

    def mend(self) -> None:
        """No more faults, and quick. What was done or lost stays so."""
        self._faults.mend()
        self.unavailable = 0.0
        self.pace.slow_s_max = 0.0
        self.pace.free()

    def create(self, name: str) -> SimBlobWriter:
        self._effects.check_alive()
        check_blob_name(name)
        self._raise_if_due("create", name)
        return SimBlobWriter(self, name)

    def open(self, name: str) -> SimBlob:
        self._effects.check_alive()
        check_blob_name(name)
        self._raise_if_due("open", name)
        held = self._server.objects.get(name)
        if held is None:
            raise NotFound(f"object {name} does not exist")
        return SimBlob(self, name, held)

    def list(self, prefix: str = "") -> Iterator[BlobInfo]:
        self._effects.check_alive()
        self._raise_if_due("list", prefix)
        for name, held in sorted(self._server.objects.items()):
            if name.startswith(prefix):
                yield BlobInfo(name, len(held.data))

    def delete(self, name: str) -> None:
        self._effects.check_alive()
        check_blob_name(name)
        error = self._due("delete")
        if error is None or (issubclass(error, Unavailable) and self._coin()):
            held = self._server.objects.pop(name, None)
            if held is not None:
                self._remember_deleted(name, held)
            self._effects.happen("delete", name)
        if error is not None:
            raise error(f"{name}: simulated fault at delete")

    def delete_below(self, directory: str) -> None:
        check_blob_name(directory)
        for info in list(self.list(f"{directory}/")):
            self.delete(info.name)

    def move(self, name: str, to: str) -> None:
        """A fault that is armed for a delete is met here, too."""
        self._effects.check_alive()
        check_blob_name(to)
        held = self._server.objects.get(check_blob_name(name))
        if held is None:
            raise NotFound(f"object {name} does not exist")
        error = self._due("delete")
        if error is None or (issubclass(error, Unavailable) and self._coin()):
            self._server.objects[to] = held
            self._server.directories.update(_directories_of(to))
            del self._server.objects[name]
            self._remember_deleted(name, held)
            self._effects.happen("delete", name)
        if error is not None:
            raise error(f"{name}: simulated fault at delete")

    def crash(self) -> None:
        """The process ends, perhaps with its machine: its deletes may be undone, a commit under way happened or did
        not. Other clients of the server go on."""
        for name, held in sorted(self._deleted.items()):
            if self._coin():
                self._server.objects.setdefault(name, held)
        for name, held in sorted(self._in_flight.items()):
            if self._coin():
                self._server.objects.setdefault(name, held)
        self._deleted.clear()
        self._in_flight.clear()
        self._life += 1
        self._effects.restart()

    def _commit(self, name: str, new: _Object) -> None:
        error = self._due("commit")
        if error is not None and (not issubclass(error, Unavailable) or self._coin()):
            raise error(f"{name}: simulated fault at commit")
        self._check_no_directory(name)
        if name not in self._server.objects:
            self._in_flight[name] = new
            self._effects.happen("commit", name)
            self._in_flight.pop(name, None)
        happened = self._server.objects.setdefault(name, new) is new
        if happened:
            self._server.directories.update(_directories_of(name))
        if error is not None:
            raise error(f"{name}: simulated lost answer at commit")
        if not happened:
            raise AlreadyExists(f"object {name} exists")

    def _check_no_directory(self, name: str) -> None:
        if name in self._server.directories or not self._server.objects.keys().isdisjoint(_directories_of(name)):
            raise InvalidArgument(f"{name}: no object may be the directory of another")

    def _remember_deleted(self, name: str, held: _Object) -> None:
        """What a crash may bring back; not for ever."""
        self._deleted[name] = held
        if len(self._deleted) > UNDONE_MAX:
            del self._deleted[next(iter(self._deleted))]

    def _due(self, call: BlobCall) -> type[StelaeError] | None:
        error = self._faults.due(call)
        if error is None and self.unavailable and self._rng.fraction() < self.unavailable:
            return Unavailable
        return error

    def _raise_if_due(self, call: BlobCall, name: str) -> None:
        if error := self._due(call):
            raise error(f"{name}: simulated fault at {call}")

    def _coin(self) -> bool:
        return self._rng.below(2) == 1


def _directories_of(name: str) -> list[str]:
    return [name[:end] for end, character in enumerate(name) if character == "/"]
