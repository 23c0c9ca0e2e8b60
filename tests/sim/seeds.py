"""Which seeds a test runs, and the command that runs one of them again."""

from __future__ import annotations

import os

from tests.effort import tries


def seeds(count: int) -> list[int]:
    """So many, by profile; with STELAE_SEED only that one."""
    only = os.environ.get("STELAE_SEED")
    return list(range(tries(count))) if only is None else [int(only)]


def repeat(seed: int) -> str:
    """Of the test that runs now."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]
    return f"STELAE_SEED={seed} make test ARGS='{test}'"
