"""Words that many messages have: how many of a thing, and how to install what is missing."""

from __future__ import annotations


def counted(count: int, one: str, many: str | None = None) -> str:
    """1 row, 2 rows, 1,000 rows."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def how_to_install(extra: str) -> str:
    """For an extra of pyproject.toml. There is no release yet that pip would find by its name."""
    return f"in a clone of the repository: pip install '.[{extra}]'"
