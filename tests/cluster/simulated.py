"""One run of the simulated cluster, by its seed."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

from stelae.model.errors import Corruption
from stelae.sim.nemesis import SAFE, draw_settings
from stelae.sim.rng import SimRng
from stelae.sim.world import WorldRun, run_world
from stelae.storage.replicas.replica import Replica
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


@contextmanager
def no_alarms() -> Iterator[None]:
    """What a replica refuses because it would break a rule is a failure, though nobody is told."""
    alarms: list[Corruption] = []
    with _heard(alarms, "cut"), _heard(alarms, "take"):
        yield
    assert not alarms, f"a replica was asked for what must not be: {alarms[0]}"


def _heard(alarms: list[Corruption], name: str) -> AbstractContextManager[object]:
    right = getattr(Replica, name)

    def hear(self: Replica, *args: Any) -> Any:
        try:
            return right(self, *args)
        except Corruption as error:
            alarms.append(error)
            raise

    return mock.patch.object(Replica, name, hear)


def run_cluster(
    seed: int,
    trace_lines_max: int = 0,
    *,
    replicas: int = 1,
    is_eager: bool = False,
    alters: bool = False,
    loads: bool = False,
    kinds: Sequence[str] = SAFE,
) -> WorldRun[History]:
    """Raises what is wrong, with the story and the command that repeats it."""
    cluster = Cluster(replicas, is_eager, alters, loads)
    with simulated_threads(SimRng(seed)), no_alarms():
        return run_world(
            lambda world: cluster.disturbed(world, kinds),
            seed,
            repeat=repeat(seed),
            settings=draw_settings(SimRng(seed)),
            steps_max=STEPS_MAX * replicas,
            trace_lines_max=trace_lines_max,
        )
