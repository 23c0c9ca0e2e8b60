"""Run by Python before the program, in the processes of a cluster that `tests.cluster.machines` prepared: the clocks of
a shard's process go as the file beside its directory says, and its directory takes nothing while there is a file that
says so. All else is as it is.

This has no imports of the product or of the tests: it is no module of theirs, but a part of the machine."""

from __future__ import annotations

import errno
import mmap
import os
import struct
import sys
import time
from typing import Any

CLOCK = struct.Struct("<dddd")
"""The wall clock is so many seconds ahead; both clocks go at this rate, since the true monotonic time, when the
monotonic clock showed that."""
SLOTS_AT = 8
"""A byte says which of two slots counts; they begin here."""


def _directory() -> str | None:
    """Of the shard that this process is; None: it is none."""
    words = sys.orig_argv
    return words[words.index("--dir") + 1] if "shard" in words and "--dir" in words else None


def _set_clocks(path: str) -> None:
    with open(path, "rb") as file:
        shared = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    true_ns, wall_ns = time.monotonic_ns, time.time_ns

    def passed_ns() -> tuple[int, int]:
        """What the monotonic clock shows, and how far the wall clock is ahead."""
        ahead_s, rate, since_s, shown_s = CLOCK.unpack_from(shared, SLOTS_AT + shared[0] * CLOCK.size)
        now_ns = true_ns()
        shown_ns = int(shown_s * 1e9 + (now_ns - since_s * 1e9) * rate)
        return shown_ns, int(ahead_s * 1e9) + shown_ns - now_ns

    time.monotonic_ns = lambda: passed_ns()[0]
    time.monotonic = lambda: passed_ns()[0] / 1e9
    time.time_ns = lambda: wall_ns() + passed_ns()[1]
    time.time = lambda: time.time_ns() / 1e9


def _limit_room(directory: str, full: str) -> None:
    """A quota of our own, for where no small disk can be mounted."""

    def refuse_if_full(path: str) -> None:
        if path.startswith(directory) and os.path.exists(full):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def limited(call: Any) -> Any:
        def write(fd: int, *args: Any) -> Any:
            refuse_if_full(os.readlink(f"/proc/self/fd/{fd}"))
            return call(fd, *args)

        return write

    open_file = os.open

    def open_limited(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if flags & os.O_CREAT:
            refuse_if_full(os.fspath(path))
        return open_file(path, flags, *args, **options)

    os.open = open_limited
    os.pwrite, os.posix_fallocate = limited(os.pwrite), limited(os.posix_fallocate)


def _prepare() -> None:
    directory = _directory()
    if directory is not None and os.path.exists(f"{directory}.clock"):
        _set_clocks(f"{directory}.clock")
        _limit_room(directory, f"{directory}.full")


_prepare()
