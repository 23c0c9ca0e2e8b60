"""A whole simulated world: processes with what each of them needs, everything between them, and what happens to them.

    async def main(world: SimWorld) -> None:
        world.add("shard", lambda ports: run_shard(ports.disk, ports.metastore, ports.transport))
        world.start("shard")
        world.kill("shard")                  # it is started again after a while

    run = run_world(main, seed=7, repeat="STELAE_SEED=7 pytest tests/...")
    assert run.trace == run_world(main, seed=7, repeat="").trace

Whatever outlives a process is kept under its name: its disk, its host's clock, the effects it is counted by. A process
is started with the same name again and again; each start gets new clients, executors and randomness. Its main coroutine
is the process: when that returns, or raises a StelaeError, the process is over, as after `exit`, and its connections
end. Any other error fails the run.

When a run fails, its story and the command that repeats it stand under the error.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any, Generic, TypeVar

from stelae.model.errors import StelaeError
from stelae.ports.executor import Executor
from stelae.sim.blobs import SimBlobServer, SimBlobStore
from stelae.sim.disk import SimDisk
from stelae.sim.effects import Effects
from stelae.sim.executor import LoopExecutor
from stelae.sim.links import USUAL_DELAYS, Delays
from stelae.sim.loop import STEPS_MAX, SimLoop, simulate
from stelae.sim.metastore import NO_FAULTS, MetastoreFaults, SimMetastore, SimMetastoreServer
from stelae.sim.network import SILENCE_S, SimTransport
from stelae.sim.process import ProcessClock, SimProcess, current_process, outside
from stelae.sim.rng import SimRng
from stelae.sim.story import Story
from stelae.sim.trace import Trace

T = TypeVar("T")

QUEUED_MAX = 256


@dataclass(frozen=True, slots=True)
class WorldSettings:
    """How a world behaves while nobody disturbs it. `restart_s`: how long it takes, from and to, until a process that
    is over is started again."""

    delays: Delays = USUAL_DELAYS
    by_bytes: bool = False
    silence_s: tuple[float, float] | None = SILENCE_S
    metastore: MetastoreFaults = NO_FAULTS
    metastore_timeout_s: float = 1.0
    page_bytes: int = 4096
    clock_offset_ms_max: int = 0
    clock_rate_spread: float = 0.0
    restart_s: tuple[float, float] = (0.1, 3.0)


UNDISTURBED = WorldSettings()


@dataclass(frozen=True, slots=True)
class ProcessPorts:
    """What the world offers one process, from one start to its end. `log_jobs` wait for the disk, `jobs` for the object
    store, where those are slow or hang."""

    name: str
    host: str
    loop: SimLoop
    transport: SimTransport
    metastore: SimMetastore
    disk: SimDisk
    blobs: SimBlobStore
    clock: ProcessClock
    rng: SimRng
    log_jobs: Executor
    jobs: Executor


Program = Callable[[ProcessPorts], Coroutine[Any, Any, object]]


@dataclass(slots=True)
class _Seat:
    """What stays of a process between its lives. `is_down`: somebody wants it not to run for now."""

    name: str
    host: str
    program: Program
    restarts: bool
    effects: Effects
    disk: SimDisk
    blobs: SimBlobStore
    process: SimProcess | None = None
    is_down: bool = False
    lives: int = 0
    endings: list[str] = field(default_factory=list)


class SimWorld:
    """Made by `run_world`."""

    def __init__(self, loop: SimLoop, seed: int, settings: WorldSettings) -> None:
        self.loop = loop
        self.settings = settings
        self.story = Story(lambda: loop.now_ns / 1e9)
        self.transport = SimTransport(
            loop, delays=settings.delays, by_bytes=settings.by_bytes, silence_s=settings.silence_s
        )
        self.metastore = SimMetastoreServer(
            loop, self._rng_of(seed, "metastore"), settings.metastore, settings.metastore_timeout_s
        )
        self.blobs = SimBlobServer(self._rng_of(seed, "blobs"))
        self._seed = seed
        self._is_over = False
        self._seats: dict[str, _Seat] = {}
        self._clocks: dict[str, ProcessClock] = {}

    @property
    def names(self) -> list[str]:
        """Of all processes, dead or alive, in the order they were added."""
        return list(self._seats)

    @property
    def hosts(self) -> list[str]:
        return list(dict.fromkeys(seat.host for seat in self._seats.values()))

    def rng(self, purpose: str) -> SimRng:
        """Randomness of its own for each purpose, so that drawing more for one changes no other."""
        return self._rng_of(self._seed, purpose)

    def add(self, name: str, program: Program, *, host: str | None = None, restarts: bool = True) -> None:
        """A process that can be started. Those of one host share its clock and its power."""
        if name in self._seats:
            raise ValueError(f"there is a process {name} already")
        effects = Effects()
        disk = SimDisk(self.rng(f"disk of {name}"), self.settings.page_bytes, effects)
        home = host or name
        self._seats[name] = _Seat(name, home, program, restarts, effects, disk, self.blobs.client(effects))
        self.clock(home)

    def start(self, name: str) -> SimProcess:
        """Start it now. Starting what runs is no error."""
        seat = self._seats[name]
        if seat.process is not None and seat.process.alive:
            return seat.process
        seat.lives += 1
        seat.is_down = False
        self.transport.links.turn_on(seat.host)
        ports = self._ports(seat)
        process = self.loop.spawn(name, self._live(seat, ports), host=seat.host, clock=ports.clock)
        seat.process = process
        process.watch(partial(self._end, seat, process))
        return process

    def process(self, name: str) -> SimProcess | None:
        """Its last life, which may be over; None if it was never started."""
        return self._seats[name].process

    def is_alive(self, name: str) -> bool:
        process = self._seats[name].process
        return process is not None and process.alive

    def lives(self, name: str) -> int:
        return self._seats[name].lives

    def disk(self, name: str) -> SimDisk:
        return self._seats[name].disk

    def blobs_of(self, name: str) -> SimBlobStore:
        return self._seats[name].blobs

    def effects(self, name: str) -> Effects:
        return self._seats[name].effects

    def host(self, name: str) -> str:
        return self._seats[name].host

    def clock(self, host: str) -> ProcessClock:
        """The host's, which outlives its processes."""
        found = self._clocks.get(host)
        if found is None:
            rng, settings = self.rng(f"clock of {host}"), self.settings
            offset_ms = round((2 * rng.fraction() - 1) * settings.clock_offset_ms_max)
            rate = 1 + (2 * rng.fraction() - 1) * settings.clock_rate_spread
            found = self._clocks[host] = ProcessClock(self.loop, offset_ms, rate)
        return found

    def kill(self, name: str) -> None:
        """With kill -9. Killing what is dead is no error."""
        if (process := self._seats[name].process) is not None:
            process.crash()

    def lose_power(self, host: str) -> None:
        """Every process of the host is gone at once, and its disks lose what was not synced. Peers hear silence."""
        for seat in self._seats.values():
            if seat.host == host and seat.process is not None:
                seat.process.lose_power()

    def keep_down(self, name: str) -> None:
        """Kill it, and do not start it again until `let_up`."""
        self._seats[name].is_down = True
        self.kill(name)

    def let_up(self, name: str) -> None:
        self._seats[name].is_down = False
        self.start(name)

    def end(self) -> None:
        """No process is started again: those that run are ended with the world."""
        self._is_over = True

    def state(self) -> Iterable[tuple[str, bytes]]:
        """What outlives all processes, for the trace."""
        yield "metastore", b"%d" % self.metastore.revision
        yield "blobs", self.blobs.image()
        for seat in self._seats.values():
            yield f"disk of {seat.name}", seat.disk.image()

    async def _live(self, seat: _Seat, ports: ProcessPorts) -> None:
        try:
            await seat.program(ports)
            ending = "ended"
        except StelaeError as error:
            ending = f"ended with {type(error).__name__}: {error}"
        except Exception as error:
            self.loop.call_exception_handler({"exception": error})
            self.story.tell(f"{seat.name} failed with {type(error).__name__}: {error}")
            raise
        seat.endings.append(ending)
        process = current_process()
        if process is not None:
            process.crash()

    def _end(self, seat: _Seat, process: SimProcess) -> None:
        """What a system does for a process that is over, and its supervisor after that."""
        how = seat.endings.pop() if seat.endings else "lost power" if process.lost_power else "was killed"
        self.story.tell(f"{seat.name} {how}, at step {process.steps} of life {seat.lives}")
        if process.lost_power:
            seat.disk.crash()
        else:
            seat.disk.kill()
        seat.blobs.crash()
        if seat.restarts:
            shortest_s, longest_s = self.settings.restart_s
            after_s = shortest_s + self.loop.draw() * (longest_s - shortest_s)
            self.loop.call_later(after_s, self._start_again, seat, seat.lives, context=outside())

    def _start_again(self, seat: _Seat, life: int) -> None:
        if seat.lives == life and not seat.is_down and not self._is_over:
            self.story.tell(f"{seat.name} is started again")
            self.start(seat.name)

    def _ports(self, seat: _Seat) -> ProcessPorts:
        return ProcessPorts(
            name=seat.name,
            host=seat.host,
            loop=self.loop,
            transport=self.transport,
            metastore=self.metastore.client(seat.name),
            disk=seat.disk,
            blobs=seat.blobs,
            clock=self.clock(seat.host),
            rng=self.rng(f"life {seat.lives} of {seat.name}"),
            log_jobs=LoopExecutor(self.loop, QUEUED_MAX, paces=[seat.disk.pace]),
            jobs=LoopExecutor(self.loop, QUEUED_MAX, paces=[seat.blobs.pace]),
        )

    @staticmethod
    def _rng_of(seed: int, purpose: str) -> SimRng:
        return SimRng(int.from_bytes(blake2b(f"{seed} {purpose}".encode(), digest_size=8).digest(), "big"))


@dataclass(frozen=True, slots=True)
class WorldRun(Generic[T]):
    """`trace`: the hash of every step and of what is left; equal for two runs that went the same way."""

    result: T
    trace: str
    story: list[str]
    trace_lines: list[str]


def run_world(
    main: Callable[[SimWorld], Coroutine[Any, Any, T]],
    seed: int,
    *,
    repeat: str,
    settings: WorldSettings = UNDISTURBED,
    steps_max: int = STEPS_MAX,
    trace_lines_max: int = 0,
) -> WorldRun[T]:
    """Run main(world) to its end. `repeat`: the command that does it again, printed with the story if it fails."""
    worlds: list[SimWorld] = []
    trace = Trace(trace_lines_max)

    async def begin(loop: SimLoop) -> T:
        worlds.append(SimWorld(loop, seed, settings))
        try:
            return await main(worlds[0])
        finally:
            worlds[0].end()

    try:
        result = simulate(begin, seed, steps_max=steps_max, trace=trace)
    except BaseException as error:
        for world in worlds:
            world.story.tell(f"seed {seed} failed: {type(error).__name__}")
            error.add_note(world.story.text(repeat))
        raise
    for what, data in worlds[0].state():
        trace.add(what, data)
    return WorldRun(result, trace.digest, worlds[0].story.lines, list(trace.lines))
