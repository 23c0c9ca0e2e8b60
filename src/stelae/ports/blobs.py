"""Immutable objects on a store shared by all processes: what an object store can do, and no more.

What survives a crash:
- An object is there whole, or not at all; nobody ever sees a part of one.
- Once `commit` returns, it survives. A `commit` that raised Unavailable may or may not have happened: look before
  acting (the name then holds exactly these bytes, or is absent).
- Bytes of a writer that was never committed are gone for readers, and their space is given back in the end.
- A `delete` that returned may be undone by a crash; deleting is repeated by whoever collects garbage.

`list` and `open` see every commit and delete that returned before they were called.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec
from typing_extensions import Buffer

from stelae.model.errors import InvalidArgument


class BlobInfo(msgspec.Struct, frozen=True):
    name: str
    size_bytes: int


def check_range(info: BlobInfo, offset: int, length: int) -> None:
    """What every `Blob.read` refuses, in the same words."""
    if offset < 0 or length < 0 or offset + length > info.size_bytes:
        raise InvalidArgument(f"{info.name} has {info.size_bytes} bytes; cannot read {length} bytes at {offset}")


class Blob(Protocol):
    """One object open for reading; safe for threads. Goes on reading even if the name is deleted meanwhile, or raises
    NotFound: never other bytes. After `close`, which may be called twice, `read` raises Closed."""

    @property
    def name(self) -> str: ...

    @property
    def size_bytes(self) -> int: ...

    def read(self, offset: int, length: int) -> Buffer:
        """Exactly the bytes [offset, offset + length); InvalidArgument if they are not all inside the object."""
        ...

    def close(self) -> None: ...


class BlobWriter(Protocol):
    """One object in the making, invisible until `commit`. Not safe for threads.

    A `write` or `commit` that raises ends the writer as `abort` does: half of an object is never committed later.
    """

    def write(self, data: Buffer) -> None: ...

    def commit(self) -> None:
        """Put if absent: AlreadyExists, and nothing changed, if the name is taken."""
        ...

    def abort(self) -> None:
        """Forget it. After commit or abort, abort is no error and everything else raises Closed."""
        ...


class BlobStore(Protocol):
    """Names are paths of [A-Za-z0-9._=-] parts joined by '/', no part empty, '.' or '..', at most 900 characters.

    No part starts with a dot or has more than 200 characters. No name is the directory of another ('a' and 'a/b'): a
    store made of directories refuses the second with InvalidArgument at `commit`, others may not notice.

    A missing object raises NotFound; access refused raises PermissionDenied; no room raises DiskFull; a store that
    cannot be reached raises Unavailable.
    """

    def create(self, name: str) -> BlobWriter:
        """Does not look whether the name is taken; `commit` does."""
        ...

    def open(self, name: str) -> Blob: ...

    def list(self, prefix: str = "") -> Iterator[BlobInfo]:
        """All objects whose name starts with the prefix (any prefix, not only whole parts), by name."""
        ...

    def delete(self, name: str) -> None:
        """A name that is not there is no error."""
        ...

    def delete_below(self, directory: str) -> None:
        """Delete every object whose name begins with `directory` and a '/'; that there is none is no error. As of
        `delete`, a crash may undo some of it. Nobody may be writing there."""
        ...

    def move(self, name: str, to: str) -> None:
        """Give an object another name, which nobody else uses. NotFound if it is not there. A crash, or an error, may
        leave it under either name, or under both."""
        ...
