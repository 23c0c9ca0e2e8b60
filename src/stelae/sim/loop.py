"""An event loop of virtual time: no call sleeps, every order is drawn from a seed, and a run repeats exactly.

Each step runs one callback, drawn from all that are ready; so tasks interleave at their awaits in every order that
asyncio allows, and some that only its habit of first come, first served rules out. What one callback schedules comes
after it. When none is ready, time jumps to the next timer. Nothing left to run while the main task waits is a
SimDeadlock that says where each task waits; too many steps are a SimOverrun. An error that no one took fails the run.

A run repeats as far as the code under test does: tasks and futures hash by their number, so sets of them keep their
order, but sets of text are ordered by Python's own seed (PYTHONHASHSEED). A `Trace` tells whether two runs were the
same. There are no threads but simulated ones (`threads`) and no real I/O: asking for them raises.

A *process* (`spawn`) is what can crash: its main task, and every task, callback and timer that comes of it. Crashed, it
takes no further step; its tasks stay where they wait, and none of their `finally` blocks runs before the world ends.
What it had sent goes on: whoever simulates a server schedules in the server's own context (`outside`). A process can be
paused, and have a clock of its own that its timers go by (`process.py`).

    def test_leader_survives() -> None:
        async def world(loop: SimLoop) -> None:
            master = loop.spawn("master", lead(), clock=ProcessClock(loop, rate=1.01))
            await asyncio.sleep(3600)          # takes no time
            master.crash()

        simulate(world, seed=7)
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from functools import partial
from itertools import count
from random import Random
from threading import get_ident
from types import AsyncGeneratorType
from typing import Any, NoReturn, TypeVar, TypeVarTuple, cast
from weakref import ref

from stelae.sim.effects import SimCrash
from stelae.sim.process import ProcessClock, SimProcess, current_process, inside, outside, process_of
from stelae.sim.threads.thread import SimThread
from stelae.sim.trace import Trace

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

STEPS_MAX = 1_000_000

_NS_PER_S = 1_000_000_000
_REAL = (
    *("run_in_executor", "set_default_executor", "subprocess_exec", "subprocess_shell", "add_signal_handler"),
    *("getaddrinfo", "getnameinfo", "create_connection", "create_server", "create_datagram_endpoint", "sendfile"),
    *("create_unix_connection", "create_unix_server", "connect_accepted_socket", "connect_read_pipe"),
    *("connect_write_pipe", "add_reader", "add_writer", "remove_reader", "remove_writer", "sock_recv"),
    *("sock_recv_into", "sock_recvfrom", "sock_sendall", "sock_sendto", "sock_connect", "sock_accept"),
    *("sock_sendfile", "start_tls"),
)


class SimDeadlock(RuntimeError):
    """Nothing is ready, no timer runs, and the main task is not done."""


class SimOverrun(RuntimeError):
    """The run took more steps than allowed: something spins, or the bound is too low."""


class SimUnhandled(RuntimeError):
    """A task or callback failed and no one took its error, which is the cause of this one."""


class _SimTask(asyncio.Task[Any]):
    _log_destroy_pending: bool
    inner: Any

    def __init__(self, coro: Coroutine[Any, Any, Any], number: int, **options: Any) -> None:
        self._number = number  # before the rest: asyncio hashes a task while it makes it
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class _SimFuture(asyncio.Future[Any]):
    """Numbered when it is first put into a set, as few are."""

    _number = 0

    def __hash__(self) -> int:
        if not self._number:
            self._number = next(cast(SimLoop, self.get_loop())._numbers)
        return self._number


class SimLoop(asyncio.BaseEventLoop):
    """Made by `simulate`. `time()` is virtual, in seconds from 0, and counts whole nanoseconds; in a process that has a
    clock it is that clock's, and so are the times of timers that run there."""

    def __init__(self, seed: int, steps_max: int = STEPS_MAX, trace: Trace | None = None) -> None:
        super().__init__()
        self._random = Random(seed)  # noqa: S311
        self._steps_max = steps_max
        self._steps = 0
        self._now_ns = 0
        self._numbers = count(1)
        self._waiting: list[tuple[asyncio.Handle, SimProcess | None]] = []
        self._timers: list[tuple[int, int, asyncio.TimerHandle, SimProcess | None]] = []
        self._tasks: list[tuple[_SimTask, SimProcess | None]] = []
        self._tasks_kept_max = 64
        self._errors: list[BaseException] = []
        self._generators: list[ref[AsyncGeneratorType[Any, Any]]] = []
        self._trace = trace
        self._thread = get_ident()
        self.threads: dict[SimThread, None] = {}
        for what in _REAL:
            setattr(self, what, partial(_refuse, what))

    @property
    def steps(self) -> int:
        return self._steps

    @property
    def now_ns(self) -> int:
        """True time, which no process's clock bends."""
        return self._now_ns

    def time(self) -> float:
        return self._own_ns(current_process()) / _NS_PER_S

    def draw(self) -> float:
        """A number from 0 to 1, without 1, from the seed of this run: for what else the simulated world leaves to
        chance."""
        return self._random.random()

    def spawn(
        self,
        name: str,
        main: Coroutine[Any, Any, Any],
        *,
        crash_at: int | None = None,
        host: str | None = None,
        clock: ProcessClock | None = None,
    ) -> SimProcess:
        """Start a process. With `crash_at` it crashes instead of taking that step (the first one is 1): run it once to
        learn how many steps there are, then once more for each. Its host has its name, unless another is given; without
        a clock it has true time."""
        process = SimProcess(self, name, host or name, self.create_future(), crash_at, clock)
        task = self.create_task(main, name=name, context=inside(process))
        task.add_done_callback(process.end_with, context=outside())
        return process

    def create_future(self) -> asyncio.Future[Any]:
        return _SimFuture(loop=self)

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        self._check_thread()
        handle = asyncio.Handle(callback, args, self, context)
        self._waiting.append((handle, process_of(context)))
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        # A wait of less than a nanosecond takes one: no time at all would have whoever waits for a moment spin.
        delay_ns = _ns(delay) or int(delay > 0)
        when_ns = self._own_ns(process_of(context)) + delay_ns
        return self._call_at_ns(when_ns, callback, args, context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self._call_at_ns(_ns(when), callback, args, context)

    def create_task(
        self, coro: Any, *, name: object = None, context: Context | None = None, **_: Any
    ) -> asyncio.Task[Any]:
        process = process_of(context)
        number = next(self._numbers)
        guarded = coro if process is None else _ending_with(process, coro)
        named = name or f"{getattr(coro, '__qualname__', 'task')}-{number}"
        task = _SimTask(guarded, number, loop=self, name=str(named), context=context)
        task.inner = coro
        if len(self._tasks) >= self._tasks_kept_max:
            over = [task for task, _ in self._tasks if task.done() and not _untaken(task)]
            self._tasks = [(task, of) for task, of in self._tasks if not task.done() or _untaken(task)]
            for each in over:
                each.inner.close()  # one that was cancelled before its first step
            self._tasks_kept_max = max(64, 2 * len(self._tasks))
        self._tasks.append((task, process))
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception") or RuntimeError(context.get("message"))
        self._errors.append(error)

    def _call_at_ns(
        self, when_ns: int, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> asyncio.TimerHandle:
        self._check_thread()
        process = process_of(context)
        handle = asyncio.TimerHandle(when_ns / _NS_PER_S, callback, args, self, context)
        heapq.heappush(self._timers, (_true_ns(process, when_ns), next(self._numbers), handle, process))
        return handle

    def _own_ns(self, process: SimProcess | None) -> int:
        return self._now_ns if process is None or process.clock is None else process.clock.own_ns()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are skipped when their time comes, without moving the clock."""

    def retime(self, clock: ProcessClock) -> None:
        for place, (_, number, timer, process) in enumerate(self._timers):
            if process is not None and process.clock is clock:
                self._timers[place] = (_true_ns(process, _ns(timer.when())), number, timer, process)
        heapq.heapify(self._timers)

    def go_on(self, process: SimProcess, parked: list[asyncio.Handle]) -> None:
        self._waiting.extend((handle, process) for handle in parked)

    def _asyncgen_firstiter_hook(self, agen: AsyncGeneratorType[Any, Any]) -> None:
        """Kept in order, where asyncio has a set by address."""
        self._generators = [known for known in self._generators if known() is not None]
        self._generators.append(ref(agen))

    def _run_once(self) -> None:
        handle, process = self._next()
        if handle.cancelled() or (process is not None and not process.may_step(handle)):
            return
        self._steps += 1
        if self._trace is not None:
            self._trace.step(self._steps, process, handle, self._now_ns)
        if self._steps > self._steps_max:
            raise SimOverrun(f"more than {self._steps_max} steps by {self.time()} s; waiting:\n{self._where()}")
        handle._run()
        if self._errors:
            raise SimUnhandled(f"in a callback, at {self.time()} s") from self._errors.pop()

    def _next(self) -> tuple[asyncio.Handle, SimProcess | None]:
        """A drawn one of the ready callbacks; time moves on to the next timer if there is none."""
        if not self._waiting:
            while self._timers and self._timers[0][2].cancelled():
                heapq.heappop(self._timers)
            if not self._timers:
                raise SimDeadlock(f"no one can go on at {self.time()} s; waiting:\n{self._where()}")
            self._now_ns = max(self._now_ns, self._timers[0][0])
        while self._timers and self._timers[0][0] <= self._now_ns:
            _, _, timer, process = heapq.heappop(self._timers)
            self._waiting.append((timer, process))
        drawn = int(self.draw() * len(self._waiting))
        self._waiting[drawn], self._waiting[-1] = self._waiting[-1], self._waiting[drawn]
        return self._waiting.pop()

    def _where(self) -> str:
        lines = []
        for task, process in self._tasks:
            if not task.done():
                frame = task.get_stack(limit=1)
                place = f"{frame[0].f_code.co_filename}:{frame[0].f_lineno}" if frame else "not started"
                lines.append(
                    f"  {task.get_name()} at {place}{'' if process is None or process.alive else ' (crashed)'}"
                )
        return "\n".join(lines)

    def _finish(self) -> None:
        """End what still runs as asyncio.run does, then tell of errors that no one took."""
        self._end_threads()
        running = {task: of for task, of in self._tasks if not task.done() and (of is None or of.alive)}
        for _, process in self._tasks:
            if process is not None and process.is_paused:
                process.resume()
        for task in running:
            task.cancel()
        if running:
            self.run_until_complete(_all_done(running))
        # One that is running waits inside a crashed process, which takes no further step.
        generators = [generator for known in self._generators if (generator := known()) is not None]
        idle = [generator for generator in generators if not generator.ag_running]
        self.run_until_complete(_close_all(idle))
        for task, process in self._tasks:
            if task.done() and _untaken(task) and (process is None or process.alive):
                raise SimUnhandled(f"in task {task.get_name()}") from task.exception()

    def _end_threads(self) -> None:
        while self.threads:
            next(iter(self.threads)).unwind()

    def _drop(self) -> None:
        """The end of the world: what never finished is closed, wherever it stands, and says nothing."""
        told, sys.unraisablehook = sys.unraisablehook, _say_nothing
        try:
            self._close_all()
        finally:
            sys.unraisablehook = told

    def _close_all(self) -> None:
        self._end_threads()
        for task, _ in self._tasks:
            if not task.done():
                task._log_destroy_pending = False
                with suppress(BaseException):
                    task.get_coro().close()
            elif not task.cancelled():
                task.exception()
            with suppress(BaseException):
                task.inner.close()  # what never took its first step
        self.close()

    def _check_thread(self) -> None:
        if get_ident() != self._thread:
            raise RuntimeError("a thread reached into the simulation: it has none of its own, and no real I/O")


def simulate(
    main: Callable[[SimLoop], Coroutine[Any, Any, T]],
    seed: int,
    *,
    steps_max: int = STEPS_MAX,
    trace: Trace | None = None,
) -> T:
    """Run main(loop) to its end in virtual time; the same seed runs it the same way, and `trace` can tell if it did.

    Python's collector of cycles is off meanwhile: it would end abandoned generators at any moment, in any process."""
    loop = SimLoop(seed, steps_max, trace)
    collects = gc.isenabled()
    gc.disable()
    try:
        result = loop.run_until_complete(main(loop))
        loop._finish()
    finally:
        loop._drop()
        if collects:
            gc.enable()
    return result


def _refuse(what: str, *_: Any, **__: Any) -> NoReturn:
    raise RuntimeError(f"{what}: the simulation has no threads, processes or real I/O; use what `stelae.sim` offers")


def _say_nothing(_: object) -> None:
    """Of what a coroutine does that is closed where it waits: its process has long crashed."""


def _ns(seconds: float) -> int:
    return round(seconds * _NS_PER_S)


def _true_ns(process: SimProcess | None, when_ns: int) -> int:
    return when_ns if process is None or process.clock is None else process.clock.true_ns(when_ns)


def _untaken(task: asyncio.Task[Any]) -> bool:
    return task._log_traceback


async def _close_all(generators: list[AsyncGeneratorType[Any, Any]]) -> None:
    for generator in generators:
        await generator.aclose()


async def _all_done(tasks: dict[_SimTask, SimProcess | None]) -> None:
    """Those of a process that crashes while it is ended never are."""
    ended = asyncio.Event()
    for task, process in tasks.items():
        task.add_done_callback(lambda _: ended.set())
        if process is not None:
            process.watch(ended.set)
    while any(not task.done() and (process is None or process.alive) for task, process in tasks.items()):
        ended.clear()
        await ended.wait()


async def _ending_with(process: SimProcess, coro: Coroutine[Any, Any, T]) -> T:
    """A SimCrash in any task is the end of its process, within the step that raised it."""
    try:
        return await coro
    except SimCrash:
        process.crash()
        await asyncio.get_running_loop().create_future()
        raise
