"""What goes wrong with a whole shard: it is full, or the disk refuses. Told as events, and to writers in plain words.

A disk that refuses does so again and again: that is told once, until what it refused goes through. When the disk is
full, what was put aside is deleted first (`storage.files.trash`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from stelae.model.errors import DiskFailed, DiskFull, Overloaded, PartialWrite, StelaeError
from stelae.model.events import DiskRefused, Listener, StoreFilled
from stelae.model.ids import Txn
from stelae.storage.shard import Shard

FLUSH = "a flush"
_LOG = "the log"


class Troubles:
    """Tells of full memory and refusing disks once for each time it begins. Safe for threads. `make_room` frees room on
    the disk, and says how many bytes."""

    def __init__(self, shard: Shard, tell: Listener, make_room: Callable[[], int]) -> None:
        self._shard = shard
        self._tell = tell
        self._make_room = make_room
        self.is_full = False
        """Whether writers are turned away; whoever gets a write through says that it is not so any more."""
        self.is_log_refused = False
        """Whether the disk refused what was written last. As above."""
        self._refused: dict[str, DiskFull | DiskFailed] = {}
        """By what was being done: what the disk said to it last, until it goes through."""

    def tell_refused(self, error: StelaeError) -> StelaeError:
        """After a write that was refused: what its writer is told. Memory that is full because the disk takes no files
        is the disk's refusal; a disk that has room again, because something was deleted, is Overloaded: try again."""
        cause = error.__cause__ if isinstance(error, PartialWrite) else error
        if isinstance(cause, Overloaded) and not self.is_full:
            self.is_full = True
            self._tell(StoreFilled(self._shard.unflushed_bytes()))
        self.tell_log_failures()
        blocked = self._refused.get(FLUSH)
        if isinstance(error, Overloaded) and blocked is not None:
            return type(blocked)(f"memory is full of rows that cannot be written to files: {blocked}")
        if isinstance(error, DiskFull) and self._make_room():
            return Overloaded(f"{error}; what was put aside on it was deleted now, so there is some room: try again")
        return error

    def refuse(self, error: BaseException) -> Future[Txn]:
        """The same for one that waits for a future."""
        future: Future[Txn] = Future()
        future.set_exception(self.tell_refused(error) if isinstance(error, StelaeError) else error)
        return future

    def tell_log_failures(self) -> None:
        """What the disk has refused to take into the log since this was asked last."""
        refused = self._shard.refused
        while refused:
            error = refused.pop(0)
            if not self.is_log_refused:
                self.is_log_refused = True
                self._tell(DiskRefused(_LOG, str(error)))

    @contextmanager
    def watch(self, during: str) -> Iterator[None]:
        """Tell if the disk refuses something meanwhile."""
        try:
            yield
        except (DiskFull, DiskFailed) as error:
            if not self._shard.refused and during not in self._refused:
                self._tell(DiskRefused(during, str(error)))
            if isinstance(error, DiskFull) and self._make_room():
                self._refused.pop(during, None)  # it is tried again, with the room there is now
            else:
                self._refused[during] = error
            raise
        else:
            self._refused.pop(during, None)
        finally:
            self.tell_log_failures()
