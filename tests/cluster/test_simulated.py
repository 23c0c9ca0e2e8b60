"""A whole cluster in the simulated world: the master, the shard and the clients that users run, while all fails."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.cluster.simulated import run_cluster, silent_remains
from tests.sim.seeds import repeat, seeds

SEEDS = 200
SHARES = 8


def _share(number: int) -> list[int]:
    """So many seeds as are promised, in parts that can run side by side."""
    found = seeds(2 * SEEDS)
    return found if len(found) == 1 else found[number::SHARES]


@pytest.mark.parametrize("number", range(SHARES))
def test_everything_holds_whatever_is_disturbed_and_each_seed_runs_the_same_way_twice(number: int) -> None:
    outcomes: Counter[str] = Counter()
    with silent_remains():
        for seed in _share(number):
            first, second = run_cluster(seed), run_cluster(seed)
            assert first.trace == second.trace, f"seed {seed} ran in two ways; to repeat: {repeat(seed)}"
            outcomes.update(first.result.outcomes)
    assert outcomes["put ok"], outcomes
