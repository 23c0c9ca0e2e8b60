"""Where a store is kept that one process at a time owns, and how a process comes by it.

An owner needs none of what talks to other processes (`client.remote.store`), and this module imports none of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from stelae.model.errors import DeadlineExceeded, Unavailable
from stelae.service.backend import Backend
from stelae.service.deadlines import Deadline

_PAUSE_S = 0.02


class DistantStore(Backend, Protocol):
    """A store that other processes have."""

    @property
    def connections_made(self) -> int:
        """How many connections to it were ever open."""
        ...


B = TypeVar("B", bound=Backend)
B_co = TypeVar("B_co", bound=Backend, covariant=True)
S = TypeVar("S", bound=DistantStore)
S_co = TypeVar("S_co", bound=DistantStore, covariant=True)


class StorePlace(Protocol[B_co, S_co]):
    """Where a store is kept, of which one process at a time is the owner."""

    def own(self) -> B_co | None:
        """The store in this process, with all that others did to it before; None if another process has it."""
        ...

    def attach(self, deadline: Deadline) -> S_co:
        """A connection to the process that has the store: Unavailable if nobody answers there."""
        ...

    def away_words(self) -> str:
        """Which store it is, and that it cannot be had, for a message that goes on with the reason."""
        ...


def own_or_attach(place: StorePlace[B, S], deadline: Deadline, pause: Callable[[float], object]) -> B | S:
    """The store, one way or the other; while its owner is coming or going, again and again, until the deadline. What
    goes wrong with opening it here is raised as it is."""
    said: Unavailable | None = None
    while True:
        store = place.own()
        if store is not None:
            return store
        try:
            return place.attach(deadline)
        except Unavailable as error:
            said = _wait_to_attach(place, deadline, pause, said, error)


def attach_patiently(place: StorePlace[Backend, S], deadline: Deadline, pause: Callable[[float], object]) -> S:
    """As `own_or_attach`, of a store that this process never owns."""
    said: Unavailable | None = None
    while True:
        try:
            return place.attach(deadline)
        except Unavailable as error:
            said = _wait_to_attach(place, deadline, pause, said, error)


def _wait_to_attach(
    place: StorePlace[Backend, DistantStore],
    deadline: Deadline,
    pause: Callable[[float], object],
    said: Unavailable | None,
    error: Unavailable,
) -> Unavailable:
    """Before the next try; Unavailable if the time is up. What to tell in the end: `said` if that is known already and
    the error says no more than that the time is up."""
    if said is None or not isinstance(error, DeadlineExceeded):
        said = error
    if deadline.is_over:
        raise Unavailable(f"{place.away_words()}: {said}") from None
    pause(min(_PAUSE_S, deadline.left_s))
    return said
