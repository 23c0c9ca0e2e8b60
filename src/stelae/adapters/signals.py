"""Ctrl-C, where it must not come in the middle of something, where another's way with it is of no use, and where
somebody waits for standard input; and the signals that ask a program to stop."""

from __future__ import annotations

import asyncio
import io
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, Self, cast

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interrupts_later() -> Iterator[None]:
    """An interrupt in here is raised at the end. Only the main thread gets any; elsewhere this does nothing. A handler
    that somebody sets in here stays."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupts: list[bool] = []

    def note(*_: Any) -> None:
        interrupts.append(True)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, before)
    if interrupts:
        raise KeyboardInterrupt


@contextmanager
def started_without_interrupts() -> Iterator[None]:
    """Processes that this thread starts in here never hear Ctrl-C, which a terminal sends to all that it runs: whoever
    started them ends them. A Python that hears it before it has begun shows a traceback of its own insides."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def plain_interrupts() -> None:
    """Ctrl-C raises KeyboardInterrupt and does nothing else."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


class StopAsked(BaseException):
    """Somebody wants this process to end, while it is still at its beginning."""


class StopSignals:
    """SIGTERM, SIGINT and SIGHUP, for a program that serves until it gets one: the first asks it to stop, which it does
    in its own time; the second ends the process at once. For the main thread."""

    def __init__(self) -> None:
        self._is_asked = False
        self._is_beginning = False
        self._reader = self._writer = -1
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        # A pipe, and no lock: a handler comes in the middle of whatever its thread does, which may hold the lock.
        self._reader, self._writer = os.pipe()
        for number in STOPS:
            # Who was started with nohup does not end with its terminal.
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue
            self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        os.close(self._reader)
        os.close(self._writer)

    def _take(self, number: int, _: Any) -> None:
        if self._is_asked:
            os._exit(128 + number)
        self._is_asked = True
        os.write(self._writer, b"!")
        if self._is_beginning:
            raise StopAsked

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """What is done in here is broken off by the first signal, with StopAsked."""
        if self._is_asked:
            raise StopAsked
        self._is_beginning = True
        try:
            yield
        finally:
            self._is_beginning = False

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until somebody wants it to stop, or so long; whether somebody does."""
        return bool(select.select([self._reader], [], [], timeout_s)[0])


def ask_to_stop() -> None:
    """Ask this process itself to stop, as whoever started it would."""
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def watch_stops(stop: Callable[[], None], end: Callable[[], None]) -> Iterator[None]:
    """The same for a program that is an event loop: the first signal calls `stop`, the second `end`, and then ends the
    process at once."""
    loop = asyncio.get_running_loop()
    asked: list[signal.Signals] = []

    def take(number: signal.Signals) -> None:
        if asked:
            end()
            os._exit(128 + number)
        asked.append(number)
        stop()

    watched = [each for each in STOPS if not (each is signal.SIGHUP and signal.getsignal(each) is signal.SIG_IGN)]
    for number in watched:
        loop.add_signal_handler(number, take, number)
    try:
        yield
    finally:
        for number in watched:
            loop.remove_signal_handler(number)


def words_of_end(code: int) -> str:
    """How a process ended, from its exit code, which is minus the number of the signal that ended it."""
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


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
    if threading.current_thread() is not threading.main_thread() or not isinstance(stream, io.BufferedReader):
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
