"""Futures of several records as one, and how they are waited for."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock
from typing import Any

from stelae.model.ids import Txn


def all_done(futures: Sequence[Future[Txn]], txn: Txn) -> Future[Txn]:
    """Done when all are, with that txn; as the first that fails, if one does."""
    if len(futures) == 1:
        return futures[0]
    done: Future[Txn] = Future()

    def finish(_: Future[None]) -> None:
        failed = next((error for each in futures if (error := each.exception()) is not None), None)
        if failed is None:
            done.set_result(txn)
        else:
            done.set_exception(failed)

    settled_all(futures).add_done_callback(finish)
    return done


def settled_all(futures: Sequence[Future[Any]]) -> Future[None]:
    """Done when all are, however each has ended."""
    settled: Future[None] = Future()
    left = [len(futures)]
    lock = Lock()

    def note(_: Future[Any]) -> None:
        with lock:
            left[0] -= 1
            is_last = not left[0]
        if is_last:
            settled.set_result(None)

    for each in list(futures):
        each.add_done_callback(note)
    return settled


def wait_for(futures: Sequence[Future[Any]], timeout_s: float | None) -> bool:
    """Until all are done, however each has ended; whether they are, in that time. Each is looked at in its turn:
    `concurrent.futures.wait` takes their locks in the order of their addresses, so no simulated run of it repeats."""
    if futures:
        with suppress(TimeoutError):
            settled_all(futures).result(timeout_s)
    return all(each.done() for each in futures)
