"""The operating system's randomness."""

from __future__ import annotations

import secrets

_FRACTION_BITS = 53  # all that a float in [0, 1) can tell apart evenly


class SystemRng:
    """Independent draws from the system's source, also in a forked child: no state is copied with the process."""

    def token(self, size_bytes: int) -> bytes:
        return secrets.token_bytes(size_bytes)

    def below(self, bound: int) -> int:
        return secrets.randbelow(bound)

    def fraction(self) -> float:
        return secrets.randbits(_FRACTION_BITS) / (1 << _FRACTION_BITS)
