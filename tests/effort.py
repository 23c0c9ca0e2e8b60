"""How hard to try, by profile: `make test` takes what fits in minutes, `make soak` what a machine can do in hours."""

from __future__ import annotations

import os

_FACTORS = {"dev": 0.2, "ci": 1, "soak": 50}


def tries(count: int) -> int:
    """So many in a plain run; fewer while writing code, many more in a soak."""
    return max(1, int(count * _FACTORS[os.environ.get("STELAE_PROFILE", "ci")]))
