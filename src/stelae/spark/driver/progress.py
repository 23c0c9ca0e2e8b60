"""How a job goes on while it runs: whoever asked is told, and the tickets it works under stay alive.

A ticket is renewed long before it ends, however slow the work is. If it is gone all the same (the store was away for
too long), the job is of no use any more and ends with what the store said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from stelae.adapters.clock import SystemClock
from stelae.model.errors import StelaeError
from stelae.service.jobs import TTL_S_DEFAULT
from stelae.service.reports import Progress

_RENEWALS_PER_LIFE = 4

Beat = Callable[[], None]
"""Called every now and then while a job runs."""


class Ticketing(Protocol):
    """What is needed of a store's backend."""

    def renew(self, ticket: str, ttl_s: float = ...) -> None: ...

    def release(self, ticket: str) -> None: ...


class _Ticketed(Protocol):
    @property
    def ticket(self) -> str: ...


T = TypeVar("T", bound=_Ticketed)


class Advance:
    """How much is done of how much, in whatever unit the work is counted in."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0
        self.add(0)

    def add(self, amount: int) -> None:
        self._done += amount
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)


class Renewal:
    """Keeps tickets alive, if it is called often enough."""

    def __init__(self, backend: Ticketing, tickets: Iterable[str], ttl_s: float = TTL_S_DEFAULT) -> None:
        self._backend = backend
        self._tickets = tuple(tickets)
        self._ttl_s = ttl_s
        self._clock = SystemClock()
        self._renewed_s = self._clock.monotonic_s()

    def __call__(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._renewed_s < self._ttl_s / _RENEWALS_PER_LIFE:
            return
        for ticket in self._tickets:
            self._backend.renew(ticket, self._ttl_s)
        self._renewed_s = now_s


@contextmanager
def released_on_error(backend: Ticketing, given: T) -> Iterator[T]:
    """A ticket that is let go of if something goes wrong, which is not hidden by an error of that."""
    try:
        yield given
    except BaseException as error:
        try:
            backend.release(given.ticket)
        except StelaeError as second:
            error.add_note(f"{given.ticket} was not let go, and expires by itself: {second}")
        raise


@contextmanager
def released(backend: Ticketing, given: T) -> Iterator[T]:
    """A ticket that is let go of at the end."""
    with released_on_error(backend, given):
        yield given
    backend.release(given.ticket)


@dataclass(frozen=True, slots=True)
class Summary:
    """What a job came to, as people read it: a title, and one fact a line under it."""

    title: str
    facts: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        width = max((len(name) for name, _ in self.facts), default=0)
        return "\n".join([self.title, *(f"  {name:<{width}}  {value}" for name, value in self.facts)])


def shown_seconds(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"
