"""Calls as generators of steps: what is asked of a backend, one thing after another, by nobody in particular.

A call that takes more than one request (read, then write; again on conflict) is written once, as a generator that
yields steps and is sent their results, or thrown their errors. `Session.run` carries it out on the caller's thread,
`aio_session` in an event loop; neither knows what the call is about.

A step says after which errors it may simply be repeated: then the error meant that nothing happened.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, TypeVar

from stelae.model.errors import Overloaded, Retryable, StelaeError, TabletAway
from stelae.model.ids import Row, TableId, Txn
from stelae.model.predicate.selectors import Selectors
from stelae.service.backend import Backend
from stelae.service.blocks import OrderedBlock

_Kinds: TypeAlias = tuple[type[StelaeError], ...]

ALWAYS: _Kinds = (Retryable,)
IF_NOTHING_HAPPENED: _Kinds = (Overloaded, TabletAway)


@dataclass(frozen=True, slots=True)
class Read:
    """The newest values of a row, or None. `at` None: now, by the clock too, which max-age goes by."""

    table: TableId
    row: Row
    columns: Selectors
    at: Txn | None
    again: ClassVar[_Kinds] = ALWAYS

    def carry_out(self, backend: Backend) -> Any:
        return backend.newest(self.table, self.row, self.columns, self.at)


@dataclass(frozen=True, slots=True)
class Write:
    """The txn of what is then durable."""

    table: TableId
    blocks: Sequence[OrderedBlock]
    max_txn: Txn | None = None
    again: ClassVar[_Kinds] = IF_NOTHING_HAPPENED

    def carry_out(self, backend: Backend) -> Any:
        return backend.write(self.table, self.blocks, self.max_txn)


@dataclass(frozen=True, slots=True)
class Ask:
    """Anything else: a function of the backend, which may wait."""

    job: Callable[[Backend], Any]
    again: _Kinds = ALWAYS

    def carry_out(self, backend: Backend) -> Any:
        return self.job(backend)


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing, for so long."""

    seconds: float
    again: ClassVar[_Kinds] = ()


Step: TypeAlias = Read | Write | Ask | Pause
T = TypeVar("T")
Steps: TypeAlias = Generator[Step, Any, T]


def asked(job: Callable[[Backend], T]) -> Steps[T]:
    """One request, which may be repeated."""
    found: T = yield Ask(job)
    return found


def asked_once(job: Callable[[Backend], T]) -> Steps[T]:
    """One request that changes something: it is repeated only if nothing happened."""
    found: T = yield Ask(job, IF_NOTHING_HAPPENED)
    return found
