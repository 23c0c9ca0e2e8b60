"""Load on a server: so many callers at once, each with one call under way, for so many seconds.

A client lives in a process of its own, so that the processor time of the callers is that process's, whatever threads it
has. A caller waits for its answer and asks again at once: throughput is callers divided by the time a call takes.
"""

from __future__ import annotations

import asyncio
import gc
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from threading import Barrier
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from made_rows import batch_of, key_of
from processor_time import ProcessTree

HOT_ROWS = 20_000
"""So many are read, and written, in random order."""
GET, PUT = "get", "put"
_WARM_UP_S_MAX = 1.0
_ROUND = 4_096

AsyncCall: TypeAlias = Callable[[bytes, bytes], Awaitable[object]]
"""Of a key and a value: a get gives the value back, a put is durable when it returns."""
Call: TypeAlias = Callable[[bytes, bytes], object]


@dataclass(frozen=True, slots=True)
class Load:
    """What was measured; several rounds are one load of all of them. `took_s`: of each operation; of bulk work, of each
    run, where `count` is of rows."""

    count: int
    wall_s: float
    server_s: float
    caller_s: float
    took_s: tuple[float, ...]

    def __add__(self, other: Load) -> Load:
        return Load(
            self.count + other.count,
            self.wall_s + other.wall_s,
            self.server_s + other.server_s,
            self.caller_s + other.caller_s,
            self.took_s + other.took_s,
        )

    @property
    def per_s(self) -> float:
        return self.count / self.wall_s

    def quantile_s(self, part: float) -> float:
        return float(np.quantile(self.took_s, part))


class Measure:
    """Between two moments. `servers`: the processes that serve; none if this one serves itself."""

    def __init__(self, servers: Sequence[int]) -> None:
        self._servers = ProcessTree(*servers) if servers else None
        gc.collect()
        self._server_s = self._served_s()
        self._caller_s, self._wall_s = time.process_time(), time.perf_counter()

    def end(self, count: int, took_s: Sequence[float]) -> Load:
        wall_s, caller_s = time.perf_counter() - self._wall_s, time.process_time() - self._caller_s
        return Load(count, wall_s, self._served_s() - self._server_s, caller_s, tuple(took_s))

    def _served_s(self) -> float:
        return 0.0 if self._servers is None else self._servers.processor_s()


class Client(ABC):
    """In its process. `servers`: the ids of the processes that serve it."""

    def __init__(self, endpoint: str, servers: Sequence[int]) -> None:
        self.endpoint = endpoint
        self.servers = servers

    @abstractmethod
    def fill(self, batch: pa.RecordBatch) -> None:
        """Put the rows in that are read later."""

    @abstractmethod
    def drive(self, what: str, callers: int, seconds: float) -> Load:
        """`what`: GET or PUT."""

    def put_many(self, rows: pa.Table) -> None:
        raise NotImplementedError

    def fill_large(self, rows: pa.Table) -> None:
        """A table of its own, which is scanned."""
        raise NotImplementedError

    def scan(self) -> pa.Table:
        """The table that `fill_large` made, as Arrow."""
        raise NotImplementedError


class AsyncClient(Client):
    """All callers are tasks of one event loop."""

    @abstractmethod
    def connect(self, what: str, callers: int) -> AbstractAsyncContextManager[list[AsyncCall]]:
        """A call for each caller."""

    def drive(self, what: str, callers: int, seconds: float) -> Load:
        return asyncio.run(self._drive(what, callers, seconds))

    async def _drive(self, what: str, callers: int, seconds: float) -> Load:
        async with self.connect(what, callers) as calls:
            plans = plans_of(what, callers)
            await asyncio.gather(*map(_repeat_async, calls, plans, [_warm_up_s(seconds)] * callers))
            measure = Measure(self.servers)
            found = await asyncio.gather(*map(_repeat_async, calls, plans, [seconds] * callers))
            took_s = [each for took in found for each in took]
            return measure.end(len(took_s), took_s)


class ThreadClient(Client):
    """Each caller is a thread."""

    @abstractmethod
    def connect(self, what: str, callers: int) -> AbstractContextManager[list[Call]]:
        """A call for each caller, made before their threads are."""

    def drive(self, what: str, callers: int, seconds: float) -> Load:
        with self.connect(what, callers) as calls, ThreadPoolExecutor(callers) as threads:
            plans = plans_of(what, callers)
            begin, is_warm = Barrier(callers + 1), Barrier(callers + 1)

            def work(call: Call, plan: Plan) -> list[float]:
                _repeat(call, plan, _warm_up_s(seconds))
                is_warm.wait()
                begin.wait()
                return _repeat(call, plan, seconds)

            working = [threads.submit(work, call, plan) for call, plan in zip(calls, plans, strict=True)]
            is_warm.wait()
            measure = Measure(self.servers)
            begin.wait()
            took_s = [each for future in working for each in future.result()]
            return measure.end(len(took_s), took_s)


Plan: TypeAlias = Sequence[tuple[bytes, bytes]]


def plans_of(what: str, callers: int) -> list[Plan]:
    """What each caller asks for, again and again: keys with the values that are there, or with new ones."""
    rows = batch_of(0, HOT_ROWS, 1, seed=int(what == PUT))
    values = rows.column(1).to_pylist()
    chance = np.random.default_rng([callers, len(what)])
    return [
        [(key_of(number), values[number]) for number in map(int, chance.integers(0, HOT_ROWS, _ROUND))]
        for _ in range(callers)
    ]


def check_value(found: object, value: bytes) -> None:
    if found != value:
        raise SystemExit(f"a store gives {found!r} where {value!r} was put")


def _warm_up_s(seconds: float) -> float:
    return min(_WARM_UP_S_MAX, seconds / 3)


async def _repeat_async(call: AsyncCall, plan: Plan, seconds: float) -> list[float]:
    took_s: list[float] = []
    now_s = time.perf_counter()
    until_s, at = now_s + seconds, 0
    while now_s < until_s:
        key, value = plan[at]
        at = (at + 1) % len(plan)
        await call(key, value)
        began_s, now_s = now_s, time.perf_counter()
        took_s.append(now_s - began_s)
    return took_s


def _repeat(call: Call, plan: Plan, seconds: float) -> list[float]:
    took_s: list[float] = []
    now_s = time.perf_counter()
    until_s, at = now_s + seconds, 0
    while now_s < until_s:
        key, value = plan[at]
        at = (at + 1) % len(plan)
        call(key, value)
        began_s, now_s = now_s, time.perf_counter()
        took_s.append(now_s - began_s)
    return took_s
