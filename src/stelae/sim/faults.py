"""The kinds of faults that a nemesis does, each a function that does one of it now, and says how it is taken back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from stelae.model.errors import DiskFailed
from stelae.ports.rng import Rng
from stelae.sim.effects import Pace
from stelae.sim.links import Delays
from stelae.sim.process import outside
from stelae.sim.world import SimWorld

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Hit:
    """A fault that was done. `touches`: the processes it concerns; none for what concerns everybody. Without `heal` it
    was over at once."""

    words: str
    touches: tuple[str, ...]
    heal: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """What a fault has to draw from: it may touch `names`, of which there is at least one."""

    world: SimWorld
    rng: Rng
    names: Sequence[str]
    lasting_s_max: float

    def pick(self, options: Sequence[T]) -> T:
        return options[self.rng.below(len(options))]

    def some(self, options: Sequence[T]) -> list[T]:
        """At least one of them, in a drawn order."""
        left, found = list(options), list[T]()
        for _ in range(1 + self.rng.below(len(left))):
            found.append(left.pop(self.rng.below(len(left))))
        return found

    @property
    def alive(self) -> list[str]:
        return [name for name in self.names if self.world.is_alive(name)]

    @property
    def hosts(self) -> list[str]:
        return list(dict.fromkeys(self.world.host(name) for name in self.names))

    def on_hosts(self, hosts: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in self.world.names if self.world.host(name) in hosts)

    def host_pair(self) -> tuple[str, str] | None:
        """One host that may be touched, and any other, in any order."""
        one = self.pick(self.hosts)
        others = [host for host in self.world.hosts if host != one]
        if not others:
            return None
        other = self.pick(others)
        return (one, other) if self.rng.below(2) else (other, one)


# -- processes


def _kill(fault: Fault) -> Hit | None:
    if not fault.alive:
        return None
    name = fault.pick(fault.alive)
    fault.world.keep_down(name)
    return Hit(f"{name} is killed", (name,), partial(fault.world.let_up, name))


def _lose_power(fault: Fault) -> Hit | None:
    hosts = [host for host in fault.hosts if any(fault.world.is_alive(name) for name in fault.on_hosts([host]))]
    if not hosts:
        return None
    host = fault.pick(hosts)
    fault.world.lose_power(host)
    return Hit(f"the host {host} lost power", fault.on_hosts([host]))


def _pause(fault: Fault) -> Hit | None:
    if not fault.alive:
        return None
    name = fault.pick(fault.alive)
    process = fault.world.start(name)
    process.pause()
    return Hit(f"{name} is stopped", (name,), process.resume)


def _crash_at_step(fault: Fault) -> Hit | None:
    if not fault.alive:
        return None
    name = fault.pick(fault.alive)
    process = fault.world.start(name)
    step = process.steps + 1 + fault.rng.below(200)
    process.crash_at(step)
    return Hit(f"{name} will crash before step {step}", (name,))


def _crash_in_effect(fault: Fault) -> Hit | None:
    if not fault.alive:
        return None
    name = fault.pick(fault.alive)
    effects = fault.world.effects(name)
    number = effects.count + 1 + fault.rng.below(30)
    effects.crash_at(number)
    return Hit(f"{name} will crash inside effect {number} on its disk or files", (name,))


# -- disks


def _wipe(fault: Fault) -> Hit:
    name = fault.pick(fault.names)
    fault.world.kill(name)
    fault.world.disk(name).wipe()
    return Hit(f"{name} is killed and gets an empty disk", (name,))


def _bit_flip(fault: Fault) -> Hit | None:
    name = fault.pick(fault.names)
    place = fault.world.disk(name).flip_bit()
    return None if place is None else Hit(f"a bit of the disk of {name} flips: {place}", (name,))


def _sync_fails(fault: Fault) -> Hit:
    name = fault.pick(fault.names)
    disk = fault.world.disk(name)
    if fault.rng.below(2):
        disk.fail("sync", DiskFailed, 1 + fault.rng.below(20))
        return Hit(f"one of the next syncs of {name} fails", (name,))
    disk.fail_on("sync", DiskFailed)
    return Hit(f"no sync of {name} succeeds", (name,), disk.mend)


def _disk_full(fault: Fault) -> Hit:
    name = fault.pick(fault.names)
    disk = fault.world.disk(name)
    disk.size_bytes_max = disk.used_bytes + fault.rng.below(2) * fault.rng.below(10_000)
    return Hit(f"the disk of {name} has {disk.size_bytes_max - disk.used_bytes} bytes left", (name,), disk.mend)


def _disk_hangs(fault: Fault) -> Hit:
    name = fault.pick(fault.names)
    pace = fault.world.disk(name).pace
    pace.hang()
    return Hit(f"the disk of {name} hangs", (name,), pace.free)


def _disk_slow(fault: Fault) -> Hit:
    name = fault.pick(fault.names)
    pace = fault.world.disk(name).pace
    pace.slow_s_max = 2 * fault.rng.fraction()
    return Hit(f"the disk of {name} is slow: up to {pace.slow_s_max:.2f} s", (name,), partial(_be_quick, pace))


def _be_quick(pace: Pace) -> None:
    pace.slow_s_max = 0.0


# -- the network


def _cut(fault: Fault) -> Hit | None:
    if (pair := fault.host_pair()) is None:
        return None
    links, (source, target) = fault.world.transport.links, pair
    links.cut(source, target)
    words = f"nothing gets from {source} to {target}"
    return Hit(words, fault.on_hosts(pair), partial(links.heal, source, target))


def _partition(fault: Fault) -> Hit | None:
    links = fault.world.transport.links
    some = fault.some(fault.hosts)
    others = [host for host in fault.world.hosts if host not in some]
    if not others:
        return None
    links.partition(some, others)
    words = f"{', '.join(some)} and {', '.join(others)} are cut off from each other"
    return Hit(words, fault.on_hosts(some), partial(links.join, some, others))


def _swizzle(fault: Fault) -> Hit:
    """Clog hosts one after another, then undo it in another order: some see a world that others do not, in all
    combinations. What is healed early is undone at once."""
    world, links = fault.world, fault.world.transport.links
    hosts, half_s = fault.some(fault.hosts), fault.lasting_s_max / 2
    clogged: dict[str, list[str]] = {}
    is_over = False

    def clog(host: str) -> None:
        if not is_over:
            clogged[host] = [other for other in world.hosts if other != host]
            links.partition([host], clogged[host])

    def unclog(host: str) -> None:
        if host in clogged:
            links.join([host], clogged.pop(host))

    def heal() -> None:
        nonlocal is_over
        is_over = True
        for host in list(clogged):
            unclog(host)

    context = outside()
    for host in hosts:
        world.loop.call_later(fault.rng.fraction() * half_s, clog, host, context=context)
        world.loop.call_later(half_s + fault.rng.fraction() * half_s, unclog, host, context=context)
    return Hit(f"{', '.join(hosts)} are clogged one after another", fault.on_hosts(hosts), heal)


def _slow_link(fault: Fault) -> Hit | None:
    if (pair := fault.host_pair()) is None:
        return None
    links, bytes_per_s = fault.world.transport.links, 1000.0 * 1000 ** fault.rng.fraction()
    links.slow(*pair, bytes_per_s)
    words = f"from {pair[0]} to {pair[1]} there are {bytes_per_s:.0f} bytes a second"
    return Hit(words, fault.on_hosts(pair), partial(links.slow, *pair, None))


def _lag(fault: Fault) -> Hit | None:
    if (pair := fault.host_pair()) is None:
        return None
    links, late_s = fault.world.transport.links, 3 * fault.rng.fraction()
    links.lag(*pair, Delays(late_s))
    words = f"from {pair[0]} to {pair[1]} it takes up to {late_s:.2f} s"
    return Hit(words, fault.on_hosts(pair), partial(links.lag, *pair, None))


def _break(fault: Fault) -> Hit | None:
    if (pair := fault.host_pair()) is None or not fault.world.transport.break_between(*pair):
        return None
    return Hit(f"the connections between {pair[0]} and {pair[1]} break", fault.on_hosts(pair))


def _half_open(fault: Fault) -> Hit | None:
    if (pair := fault.host_pair()) is None or not fault.world.transport.half_open(*pair):
        return None
    return Hit(f"{pair[0]} lost its connections to {pair[1]}, which does not know", fault.on_hosts(pair))


def _refuse(fault: Fault) -> Hit:
    host, links = fault.pick(fault.hosts), fault.world.transport.links
    links.refuse(host)
    return Hit(f"{host} refuses connections", fault.on_hosts([host]), partial(links.admit, host))


# -- the metastore, clocks, files


def _metastore_away(fault: Fault) -> Hit:
    server = fault.world.metastore
    server.go_away()
    return Hit("the metastore is away", (), server.come_back)


def _metastore_cut(fault: Fault) -> Hit:
    name, server = fault.pick(fault.names), fault.world.metastore
    server.partition(name)
    return Hit(f"{name} cannot reach the metastore", (name,), partial(server.heal, name))


def _metastore_restart(fault: Fault) -> Hit:
    fault.world.metastore.restart()
    return Hit("the metastore starts anew", ())


def _clock_step(fault: Fault) -> Hit:
    host, by_ms = fault.pick(fault.hosts), fault.rng.below(4001) - 2000
    fault.world.clock(host).step_wall_ms(by_ms)
    return Hit(f"the wall clock of {host} steps by {by_ms} ms", fault.on_hosts([host]))


def _clock_rate(fault: Fault) -> Hit:
    host, rate = fault.pick(fault.hosts), 0.95 + 0.1 * fault.rng.fraction()
    clock = fault.world.clock(host)
    before = clock.rate
    clock.set_rate(rate)
    words = f"the clock of {host} goes at {rate:.3f} of the true rate"
    return Hit(words, fault.on_hosts([host]), partial(clock.set_rate, before))


def _blobs_fail(fault: Fault) -> Hit:
    name = fault.pick(fault.names)
    store = fault.world.blobs_of(name)
    store.unavailable = fault.pick((0.05, 0.3, 1.0))
    return Hit(f"{store.unavailable:.0%} of the calls of {name} to the object store fail", (name,), store.mend)


def _blobs_slow(fault: Fault) -> Hit:
    name = fault.pick(fault.names)
    pace = fault.world.blobs_of(name).pace
    pace.slow_s_max = 5 * fault.rng.fraction()
    words = f"the object store is slow for {name}: up to {pace.slow_s_max:.2f} s"
    return Hit(words, (name,), partial(_be_quick, pace))


FAULTS: dict[str, Callable[[Fault], Hit | None]] = {
    "kill": _kill,
    "power": _lose_power,
    "pause": _pause,
    "crash_at_step": _crash_at_step,
    "crash_in_effect": _crash_in_effect,
    "wipe": _wipe,
    "bit_flip": _bit_flip,
    "sync_fails": _sync_fails,
    "disk_full": _disk_full,
    "disk_hangs": _disk_hangs,
    "disk_slow": _disk_slow,
    "cut": _cut,
    "partition": _partition,
    "swizzle": _swizzle,
    "slow_link": _slow_link,
    "lag": _lag,
    "break": _break,
    "half_open": _half_open,
    "refuse": _refuse,
    "metastore_away": _metastore_away,
    "metastore_cut": _metastore_cut,
    "metastore_restart": _metastore_restart,
    "clock_step": _clock_step,
    "clock_rate": _clock_rate,
    "blobs_fail": _blobs_fail,
    "blobs_slow": _blobs_slow,
}
