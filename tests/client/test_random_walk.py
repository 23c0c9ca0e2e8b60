"""Random walks: groups of all kinds, policies, alterations, erasures, splits, snapshots and reopens, against a plain
model.

A seed is a walk: one that fails says which, and `Walk(seed).run()` does the same again.
"""

from __future__ import annotations

import pytest

from tests.client.walk import Walk
from tests.effort import tries

SEEDS = tries(50)
SHARES = 5


@pytest.mark.parametrize("share", range(SHARES))
def test_a_table_is_what_the_plain_model_says(share: int) -> None:
    for seed in range(share, SEEDS, SHARES):
        Walk(seed).run()
