"""Pins that are asked for again wherever the store goes: none is left behind."""

from __future__ import annotations

from typing import Any

import pytest

from stelae.client.calls.retries import Patience
from stelae.client.calls.session import Session
from stelae.client.remote.takeover import KeptPin
from stelae.model.errors import DeadlineExceeded
from stelae.model.ids import Txn
from stelae.service.backend import Backend, Pin
from stelae.service.deadlines import Deadline
from stelae.sim.clock import SimClock
from stelae.sim.rng import SimRng
from tests.client.remote.shared_store import SharedStore
from tests.client.remote.test_takeover import find_k5, make_table


class FakePin:
    def __init__(self) -> None:
        self.txn = Txn(7)
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_a_pin_that_is_closed_while_it_is_asked_for_again_is_closed_there_too() -> None:
    first, second = FakePin(), FakePin()
    kept = KeptPin(first)

    class Store:
        def pin(self, at: Txn, **_: Any) -> FakePin:
            assert at == 7
            kept.close()
            return second

    store: Any = Store()
    kept.pin_again(store, None)
    assert (first.is_closed, second.is_closed) == (True, True)


def test_a_pin_is_held_where_it_was_asked_for_last() -> None:
    first, second = FakePin(), FakePin()
    kept = KeptPin(first)

    class Store:
        def pin(self, _: Txn, **__: Any) -> FakePin:
            return second

    store: Any = Store()
    kept.pin_again(store, None)
    assert not second.is_closed
    kept.close()
    kept.pin_again(store, None)
    assert (second.is_closed, kept._pin) == (True, None)


def test_a_pin_is_asked_for_again_if_the_store_went_elsewhere_before_it_was_kept() -> None:
    """The owner answers and dies, and another thread of the program takes the store over before the pin is kept."""
    world = SharedStore(1)
    owner, program = world.start(), world.start()
    try:
        owner.run(make_table, owner.open())
        db = program.open()
        table = program.run(db.table, "t")
        program.run(table.put, {"k": "k1", "v": 1})
        attached = program.attached
        assert attached is not None
        keep = attached.keep

        def keep_late(pin: Pin, store: Backend, deadline: Deadline | None) -> Pin:
            world.kill(owner)
            assert program.run(find_k5, db) is None
            assert attached.store.is_local
            return keep(pin, store, deadline)

        attached.keep = keep_late  # type: ignore[method-assign]
        snapshot = program.run(db.snapshot)
        program.run(table.put, {"k": "k1", "v": 2})
        program.run(lambda: table.compact(erase_now=True))
        assert program.run(lambda: table.get("k1", at=snapshot)) == {"k": "k1", "v": 1}
    finally:
        world.end()


def test_a_pin_that_cannot_be_kept_is_closed() -> None:
    pin = FakePin()

    class Store:
        is_local, place = False, "a store"

        def pin(self, *_: Any, **__: Any) -> FakePin:
            return pin

    class Finder:
        def keep(self, *_: Any) -> Pin:
            raise DeadlineExceeded("the store is being taken over")

    store: Any = Store()
    finder: Any = Finder()
    with pytest.raises(DeadlineExceeded):
        Session(store, Patience(SimClock(), SimRng(1), 0.0), finder).pin(None)
    assert pin.is_closed
