"""Ports of this machine that nobody listens on."""

from __future__ import annotations

import errno
import socket
from collections.abc import Collection
from contextlib import ExitStack

from stelae.adapters.files import os_errors
from stelae.adapters.sockets.addresses import PORT_MAX, with_port
from stelae.model.errors import AlreadyExists, InvalidArgument, PermissionDenied, StelaeError


def check_free(host: str, port: int) -> None:
    """AlreadyExists if somebody listens there, PermissionDenied if this user may not, InvalidArgument if it is no port
    of this machine. Somebody else may be quicker all the same: whoever listens then is told so again."""
    if not 0 <= port <= PORT_MAX:
        raise InvalidArgument(f"port {port}: a port is a number from 1 to {PORT_MAX}, or 0 for one that is free")
    with _bind(host, port):
        return


def choose_free(host: str, count: int, first: int = 0, besides: Collection[int] = ()) -> list[int]:
    """So many ports, the lowest free ones from `first` on; of 0, any. `besides`: none of these."""
    with ExitStack() as held:
        if not first:
            return [held.enter_context(_bind(host, 0)).getsockname()[1] for _ in range(count)]
        chosen: list[int] = []
        for port in range(first, PORT_MAX + 1):
            if port not in besides and _can_hold(held, host, port):
                chosen.append(port)
                if len(chosen) == count:
                    return chosen
    raise AlreadyExists(f"{host}: there are no {count} free ports from {first} on")


def choose_run(host: str, count: int, first: int, besides: Collection[int] = ()) -> int:
    """The first of so many ports in a row, all free: the lowest ones from `first` on. `besides`: none of these."""
    with ExitStack() as held:
        begin = first
        for port in range(first, PORT_MAX + 1):
            if port in besides or not _can_hold(held, host, port):
                begin = port + 1
            elif port + 1 - begin == count:
                return begin
    raise AlreadyExists(f"{host}: there are no {count} free ports in a row from {first} on")


def _can_hold(held: ExitStack, host: str, port: int) -> bool:
    try:
        held.enter_context(_bind(host, port))
    except StelaeError:
        return False
    return True


def _bind(host: str, port: int) -> socket.socket:
    opened = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    address = with_port(host, port)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with os_errors(address):
            try:
                opened.bind((host, port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise AlreadyExists(f"{address} is taken: another process listens there") from error
                if error.errno in (errno.EACCES, errno.EPERM):
                    raise PermissionDenied(f"{address}: this user may not listen on port {port}") from error
                raise
    except BaseException:
        opened.close()
        raise
    return opened
