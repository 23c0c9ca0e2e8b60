"""Calls as generators of steps: what is asked of a store, one thing after another, by nobody in particular.

A call that takes more than one request (read, then write; again on conflict) is written once, as a generator that
yields steps and is sent their results, or thrown their errors. `Session.run` carries it out on the caller's thread,
`AsyncSession.run` in an event loop; neither knows what the call is about.

Whoever carries a step out repeats it after a Retryable error, until the call's deadline, but for the errors that the
step `handles`: those mean that something must be made anew, which only the call can do. A call that has to begin again
by itself yields `Again`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, ClassVar, TypeAlias, TypeVar

import msgspec

from stelae.model.errors import StaleSchema, StelaeError
from stelae.model.ids import Row, TableId, Txn
from stelae.model.predicate.selectors import Selectors
from stelae.service.backend import Backend
from stelae.service.blocks import OrderedBlock
from stelae.service.deadlines import Deadline

_Kinds: TypeAlias = tuple[type[StelaeError], ...]


class Read(msgspec.Struct, frozen=True):
    """The snapshot a row was read at, and its newest values, or None. `at` None: now, by the clock too, which max-age
    goes by."""

    table: TableId
    row: Row
    columns: Selectors
    at: Txn | None
    handles: ClassVar[_Kinds] = ()

    def carry_out(self, backend: Backend, deadline: Deadline) -> Any:
        return backend.newest(self.table, self.row, self.columns, self.at, deadline=deadline)


class Write(msgspec.Struct):
    """The txn of what is then durable. Whoever carries it out may number the blocks (`lanes`)."""

    table: TableId
    blocks: Sequence[OrderedBlock]
    max_txn: Txn | None = None
    must_show: bool = False
    handles: ClassVar[_Kinds] = (StaleSchema,)

    def carry_out(self, backend: Backend, deadline: Deadline) -> Any:
        return backend.write(self.table, self.blocks, self.max_txn, must_show=self.must_show, deadline=deadline)


class Ask(msgspec.Struct, frozen=True):
    """Anything else: a function of the store and the deadline, which may wait until then."""

    job: Callable[[Backend, Deadline], Any]
    handles: ClassVar[_Kinds] = ()

    def carry_out(self, backend: Backend, deadline: Deadline) -> Any:
        return self.job(backend, deadline)


class Make(msgspec.Struct, frozen=True):
    """Something that asks nothing of the store, and takes the processor a while: an event loop has a thread do it."""

    job: Callable[[], Any]
    handles: ClassVar[_Kinds] = ()

    def carry_out(self, backend: Backend, deadline: Deadline) -> Any:  # noqa: ARG002 - as of all steps
        return self.job()


class Claim(msgspec.Struct, frozen=True):
    """The call writes this row, and reads something before: writes of the row that were begun before it come first, and
    those that are begun later wait until it is over. `row` None: some rows of the table, which the call will know when
    it writes. On a caller's thread nothing is to be done: the next call begins when this one has ended."""

    table: TableId
    row: Row | None = None
    handles: ClassVar[_Kinds] = ()

    def carry_out(self, backend: Backend, deadline: Deadline) -> Any:
        """Do nothing: on a caller's thread the next call begins when this one has ended."""


class Again(msgspec.Struct, frozen=True):
    """The call begins again because of an error, a little later; once the deadline has passed, the error is raised."""

    error: StelaeError


Step: TypeAlias = Read | Write | Ask | Make | Claim | Again
T = TypeVar("T")
Steps: TypeAlias = Generator[Step, Any, T]


def ask(job: Callable[[Backend, Deadline], T]) -> Steps[T]:
    """A call that is one request of the store, and gives its answer."""
    found: T = yield Ask(job)
    return found


def ask_now(table: TableId) -> Ask:
    """The newest snapshot of a table."""
    return Ask(lambda backend, until: backend.now(table, deadline=until))
