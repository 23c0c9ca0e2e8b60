"""Errors that say all there is to say: which column, which key, what is near it. How the store came to know is of no
use to whoever made the mistake, so their tracebacks end where the public call begins."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from stelae.model.errors import AlreadyExists, InvalidArgument, InvalidSchema, NotFound

P = ParamSpec("P")
T = TypeVar("T")

MISTAKES = (AlreadyExists, InvalidArgument, InvalidSchema, NotFound)


def told_briefly(function: Callable[P, T]) -> Callable[P, T]:
    """The function, whose mistakes do not show what is below it."""

    @wraps(function)
    def told(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except MISTAKES as error:
            raise error.with_traceback(None)  # noqa: B904 - it is the same error

    return told
