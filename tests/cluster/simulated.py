"""One run of the simulated cluster, by its seed."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from stelae.sim.nemesis import SAFE, draw_settings
from stelae.sim.rng import SimRng
from stelae.sim.world import WorldRun, run_world
from tests.cluster.history import History
from tests.cluster.processes import simulated_threads
from tests.cluster.workload import Cluster
from tests.sim.seeds import repeat

STEPS_MAX = 100_000
"""Ten times what a run takes."""


@contextmanager
def silent_remains() -> Iterator[None]:
    """What is left of crashed processes is collected as garbage, here or at the end of this, and says nothing: no
    `finally` of it counts, as the simulation itself has it when a world ends."""
    told, sys.unraisablehook = sys.unraisablehook, _say_nothing
    try:
        yield
    finally:
        gc.collect()
        sys.unraisablehook = told


def _say_nothing(_: object) -> None:
    """Of what a coroutine raises that is closed where it waits."""


def run_cluster(
    seed: int,
    trace_lines_max: int = 0,
    *,
    replicas: int = 1,
    is_eager: bool = False,
    alters: bool = False,
    kinds: Sequence[str] = SAFE,
) -> WorldRun[History]:
    """Raises what is wrong, with the story and the command that repeats it."""
    cluster = Cluster(replicas, is_eager, alters)
    with simulated_threads(SimRng(seed)):
        return run_world(
            lambda world: cluster.disturbed(world, kinds),
            seed,
            repeat=repeat(seed),
            settings=draw_settings(SimRng(seed)),
            steps_max=STEPS_MAX * replicas,
            trace_lines_max=trace_lines_max,
        )
