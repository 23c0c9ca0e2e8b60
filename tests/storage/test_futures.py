"""Futures that are waited for together: in the order given, and no longer than asked."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from stelae.storage.log.futures import wait_for


class _Noted:
    """The lock of a future, which notes when it is taken."""

    def __init__(self, future: Future[int], taken: list[Future[int]]) -> None:
        self._future = future
        self._right: Any = future._condition
        self._taken = taken

    def __enter__(self) -> None:
        self._taken.append(self._future)
        self._right.acquire()

    def __exit__(self, *_: object) -> None:
        self._right.release()

    def acquire(self) -> None:
        self.__enter__()

    def release(self) -> None:
        self.__exit__()

    def notify_all(self) -> None:
        self._right.notify_all()


def test_locks_are_taken_in_the_order_given_and_not_by_address() -> None:
    """In the simulation whoever takes a lock may let others go first: by address it would run in another way each
    time."""
    futures: list[Future[int]] = [Future() for _ in range(8)]
    for given in (sorted(futures, key=id), sorted(futures, key=id, reverse=True)):
        taken: list[Future[int]] = []
        for each in futures:
            each._condition = _Noted(each, taken)  # type: ignore[assignment]
        assert not wait_for(given, 0.0)
        assert list(dict.fromkeys(taken)) == given


def test_it_ends_when_all_are_done_however_each_has_ended() -> None:
    done, failed, cancelled, late = (Future[int]() for _ in range(4))
    done.set_result(1)
    failed.set_exception(ValueError())
    cancelled.cancel()
    assert wait_for([], None)
    assert wait_for([done, failed, cancelled], None)
    assert not wait_for([done, late], 0.0)
    late.set_exception(TimeoutError())
    assert wait_for([done, late], None)
