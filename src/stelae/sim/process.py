"""What can crash, stop and go on as one: a process of the simulated world, its clock, and which code runs in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any, Protocol

_START_MS = 1_700_000_000_000
_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000
_MILLION = 1_000_000

_process_here: ContextVar[SimProcess | None] = ContextVar("stelae_sim_process", default=None)


class TrueTime(Protocol):
    """The loop, as clocks and processes see it."""

    @property
    def now_ns(self) -> int: ...

    def retime(self, clock: ProcessClock) -> None:
        """The clock goes at another rate from here on: move the timers that go by it."""
        ...

    def go_on(self, process: SimProcess, parked: list[asyncio.Handle]) -> None:
        """Make callbacks ready that were parked while the process was paused."""
        ...


class ProcessClock:
    """Time as one machine has it: its wall clock is off by some, and it goes a little too fast or too slow.

    A process that is spawned with it lives by it: `loop.time()`, sleeps, timeouts and timers in that process pass at
    its rate, in whole millionths. Setting the rate moves the timers that run, too. Several processes may share one.
    """

    def __init__(self, loop: TrueTime, offset_ms: int = 0, rate: float = 1.0) -> None:
        self._loop = loop
        self._offset_ms = offset_ms
        self._millionths = _millionths(rate)
        self._since_true_ns = 0
        self._since_own_ns = 0

    @property
    def rate(self) -> float:
        return self._millionths / _MILLION

    def wall_ms(self) -> int:
        return _START_MS + self._offset_ms + self.own_ns() // _NS_PER_MS

    def monotonic_s(self) -> float:
        return self.own_ns() / _NS_PER_S

    def own_ns(self) -> int:
        passed_ns = self._loop.now_ns - self._since_true_ns
        return self._since_own_ns + passed_ns * self._millionths // _MILLION

    def true_ns(self, own_ns: int) -> int:
        """The first moment of true time at which this clock shows that much."""
        return self._since_true_ns - (self._since_own_ns - own_ns) * _MILLION // self._millionths

    def step_wall_ms(self, by_ms: int) -> None:
        """Set the wall clock forward or back, as an operator or a time service does."""
        self._offset_ms += by_ms

    def set_rate(self, rate: float) -> None:
        """Go at another rate from now on; what has passed stays as it was."""
        millionths = _millionths(rate)
        self._since_own_ns = self.own_ns()
        self._since_true_ns = self._loop.now_ns
        self._millionths = millionths
        self._loop.retime(self)


class SimProcess:
    """A part of the world that dies, stops and goes on as one. Made by `SimLoop.spawn`. The network knows it by its
    `host`, which several may share."""

    def __init__(
        self,
        loop: TrueTime,
        name: str,
        host: str,
        ended: asyncio.Future[bool],
        crash_at: int | None = None,
        clock: ProcessClock | None = None,
    ) -> None:
        self.name = name
        self.host = host
        self.clock = clock
        self._loop = loop
        self._crash_at = crash_at
        self._ended = ended
        self._steps = 0
        self._dead = False
        self._lost_power = False
        self._paused = False
        self._parked: list[asyncio.Handle] = []
        self._watching: dict[Callable[[], None], None] = {}

    @property
    def alive(self) -> bool:
        return not self._dead

    @property
    def is_paused(self) -> bool:
        return self._paused

    @property
    def lost_power(self) -> bool:
        """It crashed with its machine, which could tell nobody."""
        return self._lost_power

    @property
    def steps(self) -> int:
        """How many steps it has taken: what `crash_at` counts."""
        return self._steps

    def crash_at(self, step: int | None) -> None:
        """Crash instead of taking that step, if it is still to come; None: of no step that was named before."""
        self._crash_at = step

    def crash(self) -> None:
        """No further step. Crashing what is dead or done is no error."""
        self._dead = True
        self._paused = False
        self._parked.clear()
        if not self._ended.done():
            self._ended.set_result(False)
        watching, self._watching = self._watching, {}
        for then in watching:
            then()

    def lose_power(self) -> None:
        """Crash as the whole machine does: nobody closes its connections, so its peers hear nothing."""
        self._lost_power = self._lost_power or not self._dead
        self.crash()

    def pause(self) -> None:
        """Take no step until `resume`, as after SIGSTOP. Its clock goes on, and so does what its system does for it:
        frames arrive, connections are taken up, until their bounds."""
        self._paused = not self._dead

    def resume(self) -> None:
        """Go on: what became ready meanwhile is ready now, in a drawn order, timers too."""
        parked, self._parked = self._parked, []
        self._paused = False
        self._loop.go_on(self, parked)

    def watch(self, then: Callable[[], None]) -> None:
        """Call `then` when the process crashes, or now if it has: what its system does for a process that dies."""
        if self._dead:
            then()
        else:
            self._watching[then] = None

    def unwatch(self, then: Callable[[], None]) -> None:
        self._watching.pop(then, None)

    async def ended(self) -> bool:
        """Wait for its main task; True if it returned, False if the process crashed. Raises what the task raised."""
        return await asyncio.shield(self._ended)

    def may_step(self, handle: asyncio.Handle) -> bool:
        """For the loop: count a step, unless the process is dead, dies of it, or is paused and parks the callback."""
        if self._dead:
            return False
        if self._paused:
            self._parked.append(handle)
            return False
        self._steps += 1
        if self._steps == self._crash_at:
            self.crash()
        return not self._dead

    def end_with(self, task: asyncio.Task[Any]) -> None:
        """For the loop: its main task is done."""
        if self._ended.done():
            return
        if task.cancelled():
            self._ended.cancel()
        elif error := task.exception():
            self._ended.set_exception(error)
        else:
            self._ended.set_result(True)


def outside() -> Context:
    """A context that belongs to no process: what is scheduled in it goes on when the process that asked has crashed."""
    return inside(None)


def inside(process: SimProcess | None) -> Context:
    """A context that belongs to the process. Code that blocks, and so runs the loop instead of being run by it, runs as
    the process with `inside(process).run(code)`: what it schedules and opens ends when the process crashes."""
    context = copy_context()
    context.run(_process_here.set, process)
    return context


def current_process() -> SimProcess | None:
    """The process that this code runs in; None outside of all."""
    return _process_here.get()


def process_of(context: Context | None) -> SimProcess | None:
    """The process that owns a context; without one, the process that this code runs in."""
    return _process_here.get() if context is None else context.get(_process_here)


def _millionths(rate: float) -> int:
    millionths = round(rate * _MILLION)
    if millionths < 1:
        raise ValueError(f"monotonic time does not go back, nor stand still: {rate=}")
    return millionths
