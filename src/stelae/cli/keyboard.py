"""Standard input that can be interrupted, whoever reads it."""

from __future__ import annotations

import io
import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import IO, Any, cast


class _Interruptible(io.RawIOBase):
    """Standard input that a thread of a library may wait for, and Ctrl-C still ends: Python looks for signals in its
    main thread alone, which does not run as long as it waits for the library."""

    def __init__(self, stream_fd: int, signals_fd: int) -> None:
        self._stream_fd, self._signals_fd = stream_fd, signals_fd
        self._is_interrupted = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._is_interrupted:
            ready, _, _ = select.select([self._stream_fd, self._signals_fd], [], [])
            if self._signals_fd in ready:
                self._is_interrupted = signal.SIGINT in os.read(self._signals_fd, 64)
            else:
                return os.readv(self._stream_fd, [buffer])
        raise InterruptedError("interrupted while it waited for input")


@contextmanager
def standard_input() -> Iterator[IO[bytes]]:
    """The bytes that come in; Ctrl-C ends whoever waits for them."""
    stream = sys.stdin.buffer
    if current_thread() is not main_thread() or not isinstance(stream, io.BufferedReader):
        yield stream
        return
    signals_fd, told_fd = os.pipe()
    os.set_blocking(told_fd, False)
    before = signal.set_wakeup_fd(told_fd, warn_on_full_buffer=False)
    try:
        yield cast(IO[bytes], _Interruptible(stream.fileno(), signals_fd))
    finally:
        signal.set_wakeup_fd(before)
        os.close(signals_fd)
        os.close(told_fd)
