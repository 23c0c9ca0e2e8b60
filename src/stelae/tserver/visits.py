"""Who is inside a store: calls that closing waits for, and the refusal of all that come after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition

from stelae.model.errors import Closed, StelaeError, TabletAway
from stelae.model.ids import TableId
from stelae.service.tables import TableInfo


class Visits:
    """Safe for threads. `place`: which store it is, for messages. `info_of` raises NotFound for a table that was
    dropped."""

    def __init__(self, place: str, info_of: Callable[[TableId], TableInfo]) -> None:
        self._place = place
        self._info_of = info_of
        self._changed = Condition()
        self._inside = 0
        self._is_forked = False
        self.is_over = False
        """Whether nobody is let in any more."""

    def check(self) -> None:
        """Raise Closed if nobody is let in any more."""
        if self._is_forked:
            raise Closed(
                f"the store {self._place} was opened before this process was forked, and cannot be used here: open it "
                "again in this process, which attaches to the one that has it"
            )
        if self.is_over:
            raise Closed(f"the store {self._place} is closed")

    def info(self, table: TableId) -> TableInfo:
        """What is known of a table, for one who comes in: Closed, or NotFound once the table is dropped."""
        self.check()
        return self._info_of(table)

    @contextmanager
    def visit(self, table: TableId | None = None) -> Iterator[None]:
        """For calls that closing waits for. A tablet that went away meanwhile is explained by what became of its
        table."""
        with self._changed:
            self.check()
            self._inside += 1
        try:
            yield
        except TabletAway as error:
            raise (error if table is None else self.explained(table, error)) from None
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def explained(self, table: TableId, error: StelaeError) -> StelaeError:
        """Why a tablet is not here: the store is closed, or the table was dropped; or just that it is not here now."""
        try:
            self.info(table)
        except StelaeError as reason:
            return reason
        return error

    def end(self) -> None:
        """Let nobody in any more, and wait until those inside are done."""
        with self._changed:
            self.is_over = True
            self._changed.wait_for(lambda: not self._inside)

    def fork(self) -> None:
        """In the child of a fork: locks may be held for ever, so nothing may be touched any more."""
        self._is_forked = self.is_over = True
