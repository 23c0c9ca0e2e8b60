"""What is said of a change of tables that is made when something after it fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stelae.model.errors import DiskFailed, DiskFull, Unavailable, UnknownOutcome


@contextmanager
def made_already(what: str) -> Iterator[None]:
    """Around what the server does after the catalog has the change. Nobody may be told that nothing happened, and try
    again: the server follows before the next change of tables. A disk that is full or broken is told as it is: that is
    for somebody to mend."""
    try:
        yield
    except (DiskFull, DiskFailed):
        raise
    except Unavailable as error:
        raise UnknownOutcome(f"{what}, but the server has not followed yet: {error}") from error
