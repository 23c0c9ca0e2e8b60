"""A whole cluster in the simulated world: the master, the shard and the clients that users run, while all fails."""

from __future__ import annotations

from collections import Counter

from stelae.sim.nemesis import SAFE, draw_settings
from stelae.sim.rng import SimRng
from stelae.sim.world import WorldRun, run_world
from tests.cluster.history import History
from tests.cluster.processes import simulated_threads
from tests.cluster.workload import Cluster
from tests.sim.seeds import repeat, seeds

SEEDS = 200
STEPS_MAX = 100_000
"""Ten times what a run takes."""


def run_cluster(seed: int, kinds: tuple[str, ...] = SAFE) -> WorldRun[History]:
    cluster = Cluster()
    with simulated_threads():
        return run_world(
            lambda world: cluster.disturbed(world, kinds),
            seed,
            repeat=repeat(seed),
            settings=draw_settings(SimRng(seed)),
            steps_max=STEPS_MAX,
        )


def test_everything_holds_whatever_is_disturbed() -> None:
    outcomes: Counter[str] = Counter()
    for seed in seeds(2 * SEEDS):
        outcomes.update(run_cluster(seed).result.outcomes)
    assert outcomes
