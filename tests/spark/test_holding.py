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
from stelae.spark.reading.referents import Referents

_RENEWAL = 200


class _Backend:
    place = "nowhere"
    is_local = True
    is_closed = False

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
        assert not self.is_closed
        self.released.append(ticket)
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self.is_closed = True


def _database(backend: _Backend) -> Database:
    store: Any = backend
    return Database(Session(store, Patience(SystemClock(), SystemRng(), timeout_s=0)))


def _hold(backend: _Backend, ticket: str = "t1", db: Database | None = None, plan: Plan | None = None) -> Hold:
    context = SimpleNamespace(_jsc=object())
    referents = Referents([SimpleNamespace(get=plan.get)] if plan else None)
    return Hold(ticket, "table 't' at 5", db or _database(backend), context, referents)


class Plan:
    """That is there until it is forgotten."""

    is_forgotten = False

    def get(self) -> object:
        return None if self.is_forgotten else self


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


def test_let_go_before_the_database_is_closed(holder: Holder) -> None:
    backend, other = _Backend(), _Backend()
    db, kept = _database(backend), _hold(other, "t3")
    for hold in (_hold(backend, "t1", db), _hold(backend, "t2", db), kept):
        holder.keep(hold)
    db.close()
    db.close()
    assert backend.released == ["t1", "t2"]
    assert backend.is_closed
    assert other.released == []
    assert holder.holds() == {kept}


def test_a_database_is_closed_though_holds_cannot_be_let_go(holder: Holder) -> None:
    backend = _Backend(Unavailable("busy"))
    hold = _hold(backend)
    holder.keep(hold)
    hold.db.close()
    assert backend.is_closed
    assert hold.db.closed


def test_of_many_those_are_let_go_that_no_plan_refers_to(holder: Holder) -> None:
    holder, backend = type(holder)(holds_max=4), _Backend()
    db, plans = _database(backend), [Plan() for _ in range(16)]
    for number in range(4):
        plans[number].is_forgotten = True
        holder.keep(_hold(backend, f"t{number}", db, plans[number]))
    assert backend.released == []  # they are few
    holder.keep(_hold(backend, "t4", db, plans[4]))
    assert backend.released == ["t0"]
    for number in range(5, 16):
        holder.keep(_hold(backend, f"t{number}", db, plans[number]))
    assert backend.released == ["t0", "t1", "t2", "t3"]
    assert len(holder.holds()) == 12  # somebody may run each of them
    holder.keep(_hold(backend, "unknown", db))
    for plan in plans:
        plan.is_forgotten = True
    for number in range(16, 16 + 4):
        holder.keep(_hold(backend, f"t{number}", db, Plan()))
    assert len(holder.holds()) <= 8
    assert "unknown" not in backend.released
