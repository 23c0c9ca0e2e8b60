"""Local sockets by their path, however long it is, and who is at the other end.

The system takes about a hundred bytes as the path of a socket. A longer one is reached by a detour: a private directory
under the system's place for temporary files, in it a symbolic link to the socket's directory, and through that link the
socket by its own name. The detour is needed while the socket is bound or connected to, and is removed right after: no
pointer stays behind, and every process that knows the long path finds the socket. (To change the working directory
would do the same, but it belongs to all threads; `/proc/self/fd` would, but only on Linux.)
"""

from __future__ import annotations

import os
import socket
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from stelae.model.errors import InvalidArgument

PATH_BYTES_MAX = 100
NAME_BYTES_MAX = 40
"""Of the last part of a path that is too long."""

_CREDENTIALS = struct.Struct("3i")


def checked_path(address: str) -> str:
    """Absolute. The path of a socket is text that can be a file's name."""
    if not address or "\0" in address:
        raise InvalidArgument(f"{address!r} is not the path of a local socket")
    return os.path.abspath(address)


@contextmanager
def short_path(path: str) -> Iterator[str]:
    """A path to the same place that is short enough for a socket; for as long as it is needed."""
    if len(os.fsencode(path)) <= PATH_BYTES_MAX:
        yield path
        return
    directory, name = os.path.split(path)
    if len(os.fsencode(name)) > NAME_BYTES_MAX:
        raise InvalidArgument(f"{path}: the name of a socket has at most {NAME_BYTES_MAX} bytes where its path is long")
    with tempfile.TemporaryDirectory(prefix="stelae-", dir=_temporary_root()) as private:
        link = os.path.join(private, "d")
        os.symlink(directory, link)
        yield os.path.join(link, name)


def _temporary_root() -> str | None:
    """None: where the system says, unless that is too long itself."""
    is_short = len(os.fsencode(tempfile.gettempdir())) <= PATH_BYTES_MAX - NAME_BYTES_MAX - len("/stelae-12345678/d/")
    return None if is_short else "/tmp"  # noqa: S108 - a directory of our own is made in it


def peer_name(peer: socket.socket, path: str) -> str:
    """For messages: the process, where the system tells."""
    if hasattr(socket, "SO_PEERCRED"):
        try:
            found = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError:
            return path
        return f"process {_CREDENTIALS.unpack(found)[0]} at {path}"
    return path
