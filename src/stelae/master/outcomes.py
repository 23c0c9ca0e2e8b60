"""What is told of a change that is made, while the server that has to follow it is away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stelae.model.errors import Unavailable, UnknownOutcome


@contextmanager
def made_already(words: str) -> Iterator[None]:
    """What is done here comes after the catalog has the change: Unavailable would say that nothing happened, and who is
    told that asks for it again, and finds that it is there. What is left is done before the next change."""
    try:
        yield
    except Unavailable as error:
        raise UnknownOutcome(f"{words}: {error}") from error
