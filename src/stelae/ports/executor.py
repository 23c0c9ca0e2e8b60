"""Work beside the caller: threads in the real world, a seeded schedule in the simulated one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Executor(Protocol):
    """Runs each accepted job once, in no promised order. A crash loses every job that has not finished.

    At most `queued_max` jobs wait; one more raises Overloaded and is not accepted. After `close`, submit raises
    Closed.
    """

    def submit(self, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]: ...

    def close(self) -> None:
        """Take no more jobs and wait for the accepted ones. Closing twice is no error."""
        ...
