"""The simulated cluster finds bugs: each that is planted makes it fail within the number of seeds on record."""

from __future__ import annotations

import pytest

from stelae.sim.loop import SimDeadlock, SimOverrun, SimUnhandled
from tests.cluster.planted import PLANTED, Planted
from tests.cluster.planted_control import PLANTED_IN_CONTROL, PlantedForTest
from tests.cluster.planted_once import PLANTED_IN_FILES, PLANTED_IN_ONCE
from tests.cluster.planted_replicas import PLANTED_IN_REPLICAS
from tests.cluster.planted_shards import PLANTED_IN_SHARDS
from tests.cluster.simulated import run_cluster, silent_remains
from tests.effort import long_run

ALL = [*PLANTED, *PLANTED_IN_SHARDS, *PLANTED_IN_ONCE, *PLANTED_IN_FILES, *PLANTED_IN_REPLICAS]
FOUND = (AssertionError, SimDeadlock, SimOverrun, SimUnhandled)
"""What is wrong with a history or a thread; who cannot go on, or goes round in circles; an error that nobody took."""

SEEDS_MAX = 60
"""Bugs that take more seeds are looked for in a soak alone: where code was changed the search begins anew, and takes
minutes."""


def first_found(planted: Planted, seeds: range) -> int | None:
    replicas = 3 if planted in PLANTED_IN_REPLICAS else 1
    is_eager = planted in PLANTED_IN_FILES
    with silent_remains(), planted.patch():
        for seed in seeds:
            try:
                run_cluster(seed, replicas=replicas, is_eager=is_eager)
            except FOUND:
                return seed
    return None


@pytest.mark.parametrize(
    "planted",
    [each for each in ALL if each.seeds_max <= SEEDS_MAX],
    ids=lambda planted: planted.name,
)
def test_a_planted_bug_is_found(planted: Planted) -> None:
    """From the seed on that found it first: code that was changed since draws other numbers, so a few more are tried,
    up to the bound."""
    found = first_found(planted, range(planted.seed, planted.seeds_max))
    assert found is not None, f"{planted.words}: not found by seeds {planted.seed} to {planted.seeds_max}"


@long_run
@pytest.mark.parametrize("planted", ALL, ids=lambda planted: planted.name)
def test_a_planted_bug_is_found_by_the_first_seeds(planted: Planted) -> None:
    assert first_found(planted, range(planted.seeds_max)) is not None, planted.words


@pytest.mark.parametrize("planted", PLANTED_IN_CONTROL, ids=lambda planted: planted.name)
def test_a_planted_bug_is_found_by_a_plain_test(planted: PlantedForTest) -> None:
    planted.test()
    with planted.patch(), pytest.raises((AssertionError, pytest.fail.Exception)):
        planted.test()
