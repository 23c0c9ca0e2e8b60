"""Work that one does at a time, and that may take as long as a disk or a network takes: who does it has the *turn*.

A lock is held for a moment, to look at what is in memory or to change it. While configs are saved, files are written or
the metastore is asked nobody holds one: whoever wants to do the same waits for its turn, by a future of its own, and
everybody else goes on.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from threading import Lock


class Turn:
    """A context manager: inside of it one thread has the turn. Turns are given in the order in which they were asked
    for. Never asked for by a thread that has it, nor on an event loop, nor under a lock."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._line: deque[Future[None]] = deque()
        """Who has the turn, and behind it who waits."""

    def __enter__(self) -> None:
        mine: Future[None] = Future()
        try:
            with self._lock:
                self._line.append(mine)
                is_first = len(self._line) == 1
            if not is_first:
                mine.result()
        except BaseException:
            self._leave(mine)
            raise

    def __exit__(self, *_: object) -> None:
        self._leave(self._line[0])

    def take_if_free(self) -> bool:
        """Take the turn unless somebody has it; whether it was taken. `give_back` follows."""
        with self._lock:
            if self._line:
                return False
            self._line.append(Future())
            return True

    def give_back(self) -> None:
        self._leave(self._line[0])

    def _leave(self, mine: Future[None]) -> None:
        with self._lock:
            if mine not in self._line:
                return
            had_turn = self._line[0] is mine
            self._line.remove(mine)
            following = self._line[0] if had_turn and self._line else None
        if following is not None:
            following.set_result(None)
