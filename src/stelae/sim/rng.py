"""Random draws that repeat: the `Rng` of a simulated world."""

from __future__ import annotations

from random import Random


class SimRng:
    """The same seed and the same calls give the same draws, on every machine. Never fit for real identifiers."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)  # noqa: S311

    def token(self, size_bytes: int) -> bytes:
        return self._random.randbytes(size_bytes)

    def below(self, bound: int) -> int:
        return self._random.randrange(bound)

    def fraction(self) -> float:
        return self._random.random()
