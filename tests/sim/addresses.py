"""Another order of addresses: sets of the product's objects are gone through in another order, as in another run.

Objects that do not say how they are hashed are hashed by where they lie in memory, which no two runs have in common.
Mostly it makes no difference, so two runs that were equal say little; here every such hash is another one for each
`salt`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_MIXED = 0x9E3779B97F4A7C15


@contextmanager
def salted_addresses(salt: int) -> Iterator[int]:
    """For all classes of the product that are known by now, and Python's futures. Gives how many these are. What is in
    a set that outlives this is not found in it."""

    def salted(self: object) -> int:
        return (id(self) * (2 * salt + 1) * _MIXED >> 7) % 2**60

    found = list(dict.fromkeys(_by_address()))
    for each in found:
        each.__hash__ = salted
    try:
        yield len(found)
    finally:
        for each in found:
            del each.__hash__


def _by_address() -> Iterator[Any]:
    by_address: Any = object.__hash__
    for name, module in list(sys.modules.items()):
        if name.startswith("stelae.") or name == "concurrent.futures._base":
            for each in list(vars(module).values()):
                if isinstance(each, type) and each.__module__ == name and each.__hash__ is by_address:
                    yield each
