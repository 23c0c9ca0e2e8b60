"""What goes wrong with a whole shard, told as events: it is full, or the disk refuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stelae.model.errors import DiskFailed, DiskFull, Overloaded, PartialWrite
from stelae.model.events import DiskRefused, Listener, StoreFilled
from stelae.storage.shard import Shard


class Troubles:
    """Tells of full memory and refusing disks once for each time it begins. Safe for threads."""

    def __init__(self, shard: Shard, tell: Listener) -> None:
        self._shard = shard
        self._tell = tell
        self.is_full = False
        """Whether writers are turned away; whoever gets a write through says that it is not so any more."""

    def tell_refused(self, error: BaseException) -> None:
        """After a write that was refused. That the store is full is told once for each time it fills up."""
        cause = error.__cause__ if isinstance(error, PartialWrite) else error
        if isinstance(cause, Overloaded) and not self.is_full:
            self.is_full = True
            self._tell(StoreFilled(self._shard.unflushed_bytes()))
        self.tell_log_failures()

    def tell_log_failures(self) -> None:
        """What the disk has refused to take into the log since this was asked last."""
        refused = self._shard.refused
        while refused:
            self._tell(DiskRefused("the log", str(refused.pop(0))))

    @contextmanager
    def watch(self, during: str) -> Iterator[None]:
        """Tell if the disk refuses something meanwhile."""
        try:
            yield
        except (DiskFull, DiskFailed) as error:
            if not self._shard.refused:
                self._tell(DiskRefused(during, str(error)))
            raise
        finally:
            self.tell_log_failures()
