"""Locks of the simulated world, in place of those of Python's library: who waits for one lets the loop go on.

Python's conditions, events and futures are made of locks, so `simulated_locks` makes all of them wait in virtual time,
wherever a simulated thread uses them. Outside of such threads these locks are what they replace. On the loop, where
nobody may wait, a lock that is held by a thread that waits is an error.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from _thread import allocate_lock
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stelae.sim.effects import SimCrash
from stelae.sim.loop import SimLoop
from stelae.sim.threads.thread import SimThread, current_ident, current_thread

_REAL_LOCK = threading.Lock
_REAL_RLOCK = threading.RLock
_REAL_IDENT = threading.get_ident


class StepLock:
    """A `threading.Lock`. `preemption`: how often, from 0 to 1, a thread that asks for a lock, held or not, lets others
    go first. Without it threads change only where they have to wait."""

    preemption = 0.0

    def __init__(self) -> None:
        self._real = allocate_lock()
        self._waiting: list[tuple[SimThread, int]] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        thread = current_thread()
        if thread is not None and blocking and self.preemption and not thread.dies:
            self._let_others_go(thread)
        if self._real.acquire(False):
            return True
        if not blocking:
            return False
        if thread is not None:
            return self._wait(thread, None if timeout < 0 else timeout)
        is_on_loop = isinstance(asyncio._get_running_loop(), SimLoop)
        if is_on_loop:
            raise RuntimeError("the loop would wait for a lock that a waiting thread holds")
        return self._real.acquire(blocking, timeout)

    def release(self) -> None:
        thread = current_thread()
        if thread is not None and thread.dies and not self._real.locked():
            return
        self._real.release()
        if self._waiting:
            waiting, wait = self._waiting.pop(0)
            waiting.wake(wait)

    def locked(self) -> bool:
        return self._real.locked()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _let_others_go(self, thread: SimThread) -> None:
        if thread.draw() < self.preemption:
            thread.wake(thread.begin_wait())
            thread.wait()

    def _wait(self, thread: SimThread, timeout_s: float | None) -> bool:
        until = None if timeout_s is None else thread.time() + timeout_s
        while True:
            entry = (thread, thread.begin_wait())
            self._waiting.append(entry)
            woken = thread.wait(None if until is None else until - thread.time())
            if entry in self._waiting:
                self._waiting.remove(entry)
            if self._real.acquire(False):
                return True
            if not woken:
                return False


class StepRLock:
    """A `threading.RLock`."""

    def __init__(self) -> None:
        self._lock = StepLock()
        self._owner: int | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = current_ident()
        if self._owner == me:
            self._count += 1
            return True
        if not self._lock.acquire(blocking, timeout):
            return False
        self._owner = me
        self._count = 1
        return True

    def release(self) -> None:
        if self._owner != current_ident():
            thread = current_thread()
            if thread is not None and thread.dies:
                return
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._owner = None
            self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    # -- for conditions

    def _release_save(self) -> tuple[int, int | None]:
        saved = self._count, self._owner
        self._count, self._owner = 0, None
        self._lock.release()
        return saved

    def _acquire_restore(self, saved: tuple[int, int | None]) -> None:
        try:
            self._lock.acquire()
        except SimCrash:
            return  # the thread is at its end, and goes on to its next wait without it
        self._count, self._owner = saved

    def _is_owned(self) -> bool:
        return self._owner == current_ident()


_SIMULATED: dict[Any, Any] = {_REAL_RLOCK: StepRLock, _REAL_IDENT: current_ident}


@contextmanager
def simulated_locks(preemption: float = 0.0) -> Iterator[None]:
    """Whatever the rooms make meanwhile has these locks. Modules that took the names of the real ones when they were
    imported get these for so long, and threads have numbers of their own. `preemption`: see `StepLock`."""
    changed: list[tuple[Any, str, Any]] = [
        (threading, "Lock", _REAL_LOCK),
        (threading, "_allocate_lock", threading._allocate_lock),  # type: ignore[attr-defined]
        (threading, "RLock", _REAL_RLOCK),
    ]
    for name, module in list(sys.modules.items()):
        if name.startswith("stelae.") and not name.startswith("stelae.sim."):
            for key, value in list(vars(module).items()):
                if value is _REAL_LOCK or value is _REAL_RLOCK or value is _REAL_IDENT:
                    changed.append((module, key, value))
    for module, key, value in changed:
        setattr(module, key, _SIMULATED.get(value, StepLock))
    StepLock.preemption = preemption
    try:
        yield
    finally:
        StepLock.preemption = 0.0
        for module, key, value in changed:
            setattr(module, key, value)
