"""Pins that are asked for again wherever the store goes: none is left behind."""

from __future__ import annotations

from typing import Any

from stelae.client.remote.takeover import KeptPin
from stelae.model.ids import Txn


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
