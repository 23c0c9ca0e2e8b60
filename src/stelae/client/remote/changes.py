"""Whether a store of another process may still be used here, and the changes that are under way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, Event

from stelae.model.errors import Closed


class ChangesUnderWay:
    """Safe for threads. `ended` is set once the store is being closed."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._change = Condition()
        self._count = 0
        self.ended = Event()
        self.abandoned: str | None = None
        """Why nothing here may be touched any more: in a forked child."""

    def check(self) -> None:
        if self.abandoned is not None:
            raise Closed(self.abandoned)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """A change under way, which closing waits for."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def begin(self) -> None:
        self.check()
        with self._change:
            if self.ended.is_set():
                raise Closed(f"{self._place}: the store was closed here; open it again")
            self._count += 1

    def end(self) -> None:
        with self._change:
            self._count -= 1
            self._change.notify_all()

    def close(self) -> None:
        """No further change begins; those under way are waited for."""
        with self._change:
            self.ended.set()
            self._change.wait_for(lambda: not self._count)
