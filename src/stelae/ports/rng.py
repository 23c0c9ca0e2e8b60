"""Randomness, so that a simulation can repeat it."""

from __future__ import annotations

from typing import Protocol


class Rng(Protocol):
    """Independent draws. Real ones are fit for identifiers that must never meet; simulated ones repeat by seed."""

    def token(self, size_bytes: int) -> bytes: ...

    def below(self, bound: int) -> int:
        """A whole number in [0, bound)."""
        ...

    def fraction(self) -> float:
        """A number in [0, 1)."""
        ...
