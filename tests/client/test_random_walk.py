"""Random walks: groups of all kinds, policies, alterations, erasures, splits, snapshots and reopens, against a plain
model.

A seed is a walk: one that fails says which, and `Walk(seed).run()` does the same again. `STELAE_SEED=0:1000` walks a
thousand of them.

What the walks find, tried by faults put into the store on purpose, with seeds from 0 on:
- `update` and `increment` that write behind a version of the future: at seed 3;
- a `truncate_table` that later reads do not heed: at seed 8;
- ages that are not those at `row.txn` in a read of the newest: at seed 12;
- a declared family that is judged by its group's policy alone, not by its past under a wildcard: at seed 62;
- a compaction that leaves one version less than `max-history=K` says: at seed 67.
Of real ones they found that a wildcard in the place of another took over its cells, and that a family which was
declared as its wildcard went had no past.
"""

from __future__ import annotations

import pytest

from tests.client.walk import Walk
from tests.sim.seeds import seeds

SEEDS = seeds(100)
SHARES = 5


@pytest.mark.parametrize("share", range(SHARES))
def test_a_table_is_what_the_plain_model_says(share: int) -> None:
    for seed in SEEDS[share::SHARES]:
        Walk(seed).run()


def test_a_seed_is_always_the_same_walk() -> None:
    first, again = Walk(7, steps=12), Walk(7, steps=12)
    first.run()
    again.run()
    assert first.told == again.told


def test_a_failure_says_its_seed_and_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    walk = Walk(7, steps=3)

    def fail() -> None:
        raise AssertionError("planned")

    monkeypatch.setattr(walk.looks, "look", fail)
    with pytest.raises(AssertionError, match="planned") as failed:
        walk.run()
    assert "Walk(7, 3).run()" in failed.value.__notes__[0]
    assert any("step 0" in note for note in failed.value.__notes__)
