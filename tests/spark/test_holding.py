"""Holds are renewed while somebody may need them, and let go of after that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stelae.adapters.clock import SystemClock
from stelae.adapters.rng import SystemRng
from stelae.client.api.database import Database
from stelae.client.calls.retries import Patience
from stelae.client.calls.session import Session
from stelae.model.errors import Closed, NotFound, StelaeError, Unavailable
from stelae.spark.reading.holding import Hold, Holder

_RENEWAL = 20


class _Backend:
    place = "nowhere"
    is_local = True

    def __init__(self, error: StelaeError | None = None) -> None:
        self.renewed: list[str] = []
        self.released: list[str] = []
        self.error = error

    def renew(self, ticket: str, ttl_s: float, **_: Any) -> None:
        assert ttl_s > 0
        self.renewed.append(ticket)
        if self.error is not None:
            raise self.error

    def release(self, ticket: str, **_: Any) -> None:
        self.released.append(ticket)
        if self.error is not None:
            raise self.error


def _hold(backend: _Backend, ticket: str = "t1") -> Hold:
    store: Any = backend
    session = Session(store, Patience(SystemClock(), SystemRng(), timeout_s=0))
    db = Database(session)
    return Hold(ticket, "table 't' at 5", db, SimpleNamespace(_jsc=object()))


@pytest.fixture
def holder(monkeypatch: pytest.MonkeyPatch) -> Holder:
    """Whose thread does nothing: the tests take its steps."""
    thread = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr("stelae.spark.reading.holding.StepThread", lambda *_: thread)
    return Holder()


def test_renewed_in_time(holder: Holder) -> None:
    backend = _Backend()
    holder.keep(_hold(backend))
    for _ in range(3 * _RENEWAL):
        assert not holder.look()
    assert backend.renewed == ["t1"] * 3
    assert backend.released == []


def test_let_go_when_the_context_has_stopped(holder: Holder) -> None:
    backend = _Backend()
    first, second = _hold(backend), _hold(backend, "t2")
    holder.keep(first)
    holder.keep(second)
    first.context._jsc = None
    holder.look()
    assert backend.released == ["t1"]
    assert holder.holds() == {second}


@pytest.mark.parametrize(
    "error, is_kept", [(NotFound("gone"), False), (Closed("closed"), False), (Unavailable("busy"), True)], ids=str
)
def test_what_cannot_be_renewed(holder: Holder, error: StelaeError, is_kept: bool) -> None:
    hold = _hold(_Backend(error))
    holder.keep(hold)
    for _ in range(_RENEWAL):
        holder.look()
    assert holder.holds() == ({hold} if is_kept else frozenset())


def test_all_let_go_at_the_end(holder: Holder) -> None:
    backend, closed = _Backend(), _Backend(Closed("closed"))
    holder.keep(_hold(backend))
    holder.keep(_hold(closed, "t2"))
    holder.close()
    holder.close()
    assert backend.released == ["t1"]
    assert holder.holds() == frozenset()
