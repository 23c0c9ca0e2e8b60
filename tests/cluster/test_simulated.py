"""A whole cluster in the simulated world: the master, the shard and the clients that users run, while all fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest

from stelae.ports.metastore import Change, Compare, DeletePrefix
from stelae.sim.metastore import SimMetastore
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


REPLICATED_SEEDS = 12
REPLICATED_SHARES = 3


@pytest.mark.parametrize("number", range(REPLICATED_SHARES))
def test_tables_with_three_replicas_bear_the_same_and_a_lost_disk(number: int) -> None:
    outcomes: Counter[str] = Counter()
    found = seeds(REPLICATED_SEEDS * 2)
    with silent_remains():
        for seed in found if len(found) == 1 else found[number::REPLICATED_SHARES]:
            first, second = (run_cluster(seed, replicas=3, loads=seed % 3 == 0) for _ in range(2))
            assert first.trace == second.trace, f"seed {seed} ran in two ways; to repeat: {repeat(seed)}"
            outcomes.update(first.result.outcomes)
    assert outcomes["put ok"], outcomes


LOAD_SEEDS = 2


def test_loads_overwrites_and_truncations_are_whole_whatever_is_disturbed() -> None:
    """Read at all kinds of snapshots, while tablets are split, files are collected and everybody dies."""
    with silent_remains():
        for seed in seeds(2 * LOAD_SEEDS):
            run_cluster(seed, loads=True)


def test_whoever_writes_compares_what_says_that_it_may() -> None:
    """Of the catalog's keys those need no compare that only their writer reads, or that another key reveals."""
    blind: Counter[str] = Counter()
    compared: Counter[str] = Counter()
    txn = SimMetastore.txn

    def note(store: SimMetastore, compares: Sequence[Compare], changes: Sequence[Change]) -> Any:
        for change in changes:
            key = change.prefix if isinstance(change, DeletePrefix) else change.key
            (compared if compares else blind)[key.partition("/")[0]] += 1
        return txn(store, compares, changes)

    with silent_remains(), mock.patch.object(SimMetastore, "txn", note):
        for seed in range(4):
            run_cluster(seed)
    assert set(blind) <= {"catalog"}, blind
    assert {"master", "shards", "tablets", "local", "ids", "store"} <= set(compared), compared
