"""Numbers as sentences have them: one of a thing, or several."""

from __future__ import annotations


def counted(count: int, one: str, many: str | None = None) -> str:
    """1 row, 2 rows, 1,000 rows."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
