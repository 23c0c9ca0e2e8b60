"""How hard to try, by profile: `make test` takes what fits in minutes, `make soak` what a machine can do in hours."""

from __future__ import annotations

import os

import pytest

_FACTORS = {"dev": 0.2, "ci": 0.5, "soak": 50}
_FEW = 20

HANG_S = 300.0
"""Longer than anything takes that does not hang, on the busiest machine: how long tests wait for what must come."""


def tries(count: int) -> int:
    """In a plain run half of so many, unless they are few; fewer while writing code, many more in a soak. Where a
    number of runs is promised, twice that number is asked for."""
    profile = os.environ.get("STELAE_PROFILE", "ci")
    if profile == "ci" and count <= _FEW:
        return count
    least = _FEW if profile == "ci" else 1
    return max(least, int(count * _FACTORS[profile]))


def examples(count: int) -> int:
    """Of a property: in a plain run a quarter of so many, unless they are few. They are the same ones every time, so
    new cases are found by a soak alone."""
    if os.environ.get("STELAE_PROFILE", "ci") != "ci" or count <= _FEW:
        return tries(count)
    return max(_FEW, count // 4)


def is_soak() -> bool:
    return os.environ.get("STELAE_PROFILE") == "soak"


long_run = pytest.mark.skipif(not is_soak(), reason="takes long: make soak runs it")
"""For what is worth minutes, beside a quicker test of the same."""
