"""Which seeds a test runs, and the command that runs one of them again."""

from __future__ import annotations

import os

from tests.effort import tries


def seeds(count: int) -> list[int]:
    """So many, by profile; with STELAE_SEED only that one, or those from one up to another: `200:1200`."""
    only = os.environ.get("STELAE_SEED")
    if only is None:
        return list(range(tries(count)))
    first, _, stop = only.partition(":")
    return list(range(int(first), int(stop) if stop else int(first) + 1))


def repeat(seed: int) -> str:
    """Of the test that runs now."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]
    return f"STELAE_SEED={seed} make test ARGS='{test}'"
