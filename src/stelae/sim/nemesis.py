"""Who disturbs a simulated world: draws faults, does them, takes them back, and tells the story.

    nemesis = Nemesis(world, draw_swarm(world.rng("swarm"), SAFE))
    world.loop.create_task(nemesis.run())
    ...
    nemesis.end()                        # everything is healed: now all must go well
    nemesis.end(core=["master", "s1"])   # or: only these; the rest stays broken for good

Each seed is a *swarm*: some kinds of faults are switched on and the others off, and every setting is drawn, so that one
run has nothing but clock trouble on a slow network, and another all disks failing at once. Faults are bounded in number
and in time. What a fault is stands in `faults.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from stelae.ports.rng import Rng
from stelae.sim.faults import FAULTS, Fault, Hit
from stelae.sim.links import Delays
from stelae.sim.metastore import MetastoreFaults
from stelae.sim.process import outside
from stelae.sim.world import SimWorld, WorldSettings

LOSSES = frozenset({"wipe", "bit_flip"})
"""What destroys bytes that were synced: only where others have them, too."""
SAFE = tuple(kind for kind in FAULTS if kind not in LOSSES)
"""What a store must bear though it has every byte once."""

FAULTS_MAX = 30


@dataclass(frozen=True, slots=True)
class Swarm:
    """What one seed's nemesis does: so many faults, of these kinds, so far apart and so long, at most."""

    kinds: tuple[str, ...]
    count: int
    gap_s_max: float
    lasting_s_max: float


def draw_swarm(rng: Rng, kinds: Iterable[str], faults_max: int = FAULTS_MAX) -> Swarm:
    """Each kind on or off, at least one on; the numbers drawn, small ones as often as large ones."""
    known = list(kinds)
    for kind in known:
        if kind not in FAULTS:
            raise ValueError(f"no kind of fault is called {kind}; there are {', '.join(FAULTS)}")
    share = rng.fraction()
    on = [kind for kind in known if rng.fraction() < share] or [known[rng.below(len(known))]]
    return Swarm(tuple(on), 1 + rng.below(faults_max), _scaled(rng, 0.05, 5.0), _scaled(rng, 0.05, 30.0))


def draw_settings(rng: Rng) -> WorldSettings:
    """A world that is more or less bad all the time, each part of it by itself."""

    def rate(most: float) -> float:
        return rng.fraction() * most if rng.below(2) else 0.0

    restart_s = _scaled(rng, 0.1, 5.0)
    return WorldSettings(
        delays=Delays(_scaled(rng, 0.0005, 0.05), tail=rate(0.1), tail_s_max=_scaled(rng, 0.1, 5.0)),
        by_bytes=rng.below(2) == 1,
        metastore=MetastoreFaults(_scaled(rng, 0.001, 0.1), rate(0.05), rate(0.05), rate(0.05), rate(0.05), rate(0.1)),
        page_bytes=(64, 256, 4096)[rng.below(3)],
        clock_offset_ms_max=rng.below(2) * rng.below(500),
        clock_rate_spread=rate(0.05),
        restart_s=(restart_s / 10, restart_s),
    )


class Nemesis:
    """Disturbs one world. `aims_at`: the processes it may touch, with their hosts and disks; all that there are, if not
    given."""

    def __init__(self, world: SimWorld, swarm: Swarm, aims_at: Collection[str] | None = None) -> None:
        self._world = world
        self._swarm = swarm
        self._aims_at = aims_at
        self._rng = world.rng("nemesis")
        self._open: dict[Hit, None] = {}
        self._is_over = False
        self.done = 0

    async def run(self) -> None:
        """Do all faults of the swarm, one after another; those that last overlap."""
        world = self._world
        world.story.tell(f"the nemesis does {self._swarm.count} faults of: {', '.join(self._swarm.kinds)}")
        for _ in range(self._swarm.count):
            await asyncio.sleep(self._rng.fraction() * self._swarm.gap_s_max)
            if self._is_over:
                return
            self.strike(self._swarm.kinds[self._rng.below(len(self._swarm.kinds))])
        await asyncio.sleep(self._swarm.lasting_s_max)

    def strike(self, kind: str) -> Hit | None:
        """Do one fault of the kind now, and take it back in a while; None if there is nothing to do it to."""
        world = self._world
        names = [name for name in world.names if self._aims_at is None or name in self._aims_at]
        hit = FAULTS[kind](Fault(world, self._rng, names, self._swarm.lasting_s_max)) if names else None
        if hit is None:
            return None
        self.done += 1
        world.story.tell(hit.words)
        if hit.heal is not None:
            self._open[hit] = None
            lasting_s = self._rng.fraction() * self._swarm.lasting_s_max
            world.loop.call_later(lasting_s, self._heal, hit, context=outside())
        return hit

    def end(self, core: Collection[str] | None = None) -> None:
        """No more faults. Heal all, or all that touch the core, whose processes run from here on; then break what is
        not of the core for good: each other process is dead, or stopped, or left as it is."""
        self._is_over = True
        for hit in list(self._open):
            if core is None or not hit.touches or not set(hit.touches).isdisjoint(core):
                self._heal(hit)
            else:
                del self._open[hit]
        for name in self._world.names:
            if core is None or name in core:
                self._make_well(name)
            else:
                self._abandon(name)

    def _heal(self, hit: Hit) -> None:
        if hit in self._open and hit.heal is not None:
            del self._open[hit]
            hit.heal()
            self._world.story.tell(f"over: {hit.words}")

    def _make_well(self, name: str) -> None:
        world = self._world
        world.disk(name).mend()
        world.blobs_of(name).mend()
        world.metastore.heal(name)
        world.effects(name).crash_at(None)
        process = world.process(name)
        if process is None:
            return
        process.crash_at(None)
        if process.is_paused:
            process.resume()
        if not process.alive:
            world.let_up(name)

    def _abandon(self, name: str) -> None:
        process = self._world.process(name)
        match self._rng.below(3):
            case 0:
                self._world.story.tell(f"{name} is dead for good")
                self._world.keep_down(name)
            case 1 if process is not None and process.alive:
                self._world.story.tell(f"{name} is stopped for good")
                process.pause()
            case _:
                self._world.story.tell(f"{name} is left as it is")


def _scaled(rng: Rng, least: float, most: float) -> float:
    """As likely between 0.1 and 1 as between 1 and 10."""
    return float(least * (most / least) ** rng.fraction())
