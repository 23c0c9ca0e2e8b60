"""Snapshots that another process holds for this one: none is lost because of another, and none is held for nobody."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any, NoReturn
from weakref import finalize

import pytest
from msgspec.structs import replace

from stelae.adapters.clock import SystemClock
from stelae.client.remote.lines import Line
from stelae.client.remote.pins import RemotePin
from stelae.model.errors import Closed, ConnectionLost, DeadlineExceeded, ProtocolError, StelaeError
from stelae.model.ids import Txn
from stelae.ports.transport import RequestId
from stelae.service.bodies import Codec
from stelae.service.deadlines import Deadline
from stelae.service.operations import PIN
from stelae.sim.clock import SimClock
from tests.client.fake_backend import FakeBackend, StoreWorld, served, until
from tests.effort import tries

CLOCK = SystemClock()
GUARD_S = 120


def later() -> Deadline:
    return Deadline(CLOCK, GUARD_S)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[StoreWorld]:
    with served(tmp_path, FakeBackend(answers={"now": Txn(1), "pin": lambda at: at or Txn(9)})) as world:
        yield world


def held(world: StoreWorld) -> list[Txn]:
    with world.backend.lock:
        return sorted(pin.txn for pin in world.backend.pins)


class Gate:
    """The owner answers a pin of one snapshot only when it is opened."""

    def __init__(self, world: StoreWorld, slow: Txn) -> None:
        self.go, self.began = Event(), Event()
        self._slow = slow
        world.backend.answers["pin"] = self._pin

    def _pin(self, at: Txn | None) -> Txn:
        if at == self._slow:
            self.began.set()
            self.go.wait()
        return at or Txn(9)


def test_a_pin_that_comes_too_late_is_freed_and_the_others_stay(world: StoreWorld) -> None:
    gate = Gate(world, Txn(5))
    remote = world.attach()
    first = remote.pin(Txn(3), deadline=later())
    with pytest.raises(DeadlineExceeded):
        remote.pin(Txn(5), deadline=Deadline(CLOCK, 0.05))
    assert first.is_held
    second = remote.pin(Txn(7), deadline=later())
    assert held(world) == [3, 7]
    gate.go.set()
    until(lambda: held(world) == [3, 5, 7], world.loop)
    until(lambda: first.is_held and held(world) == [3, 7], world.loop)
    second.close()
    first.close()
    # An owner that was late is not waited for: it frees them when it comes to it. If its last answer was not here when
    # the connection was given back, that is not used again.
    until(lambda: held(world) == [], world.loop)
    assert remote.connections <= 1
    assert remote.pin(Txn(8), deadline=later()).txn == 8
    assert held(world) == [8]


def test_who_waits_for_others_gives_up_at_its_deadline(world: StoreWorld) -> None:
    """One asks, and has all the time; nobody else can until it is answered."""
    gate = Gate(world, Txn(5))
    remote = world.attach()
    asked = world.threads.submit(remote.pin, Txn(5), deadline=later())
    gate.began.wait()
    try:
        with pytest.raises(DeadlineExceeded, match="others that wait"):
            remote.pin(Txn(3), deadline=Deadline(CLOCK, 0.05))
    finally:
        gate.go.set()
    assert asked.result(GUARD_S).txn == 5
    assert held(world) == [5]


def test_who_closes_a_pin_does_not_wait_for_who_asks_for_one(world: StoreWorld) -> None:
    gate = Gate(world, Txn(5))
    remote = world.attach()
    first = remote.pin(Txn(3))
    asked = world.threads.submit(remote.pin, Txn(5), deadline=later())
    gate.began.wait()
    try:
        assert first.is_held
        first.close()
        assert not asked.done()
    finally:
        gate.go.set()
    assert asked.result(GUARD_S).txn == 5
    until(lambda: held(world) == [5], world.loop)


@pytest.mark.parametrize("is_late", [False, True])
def test_what_an_answer_pinned_that_cannot_be_read_is_freed_by_the_end_of_the_line(
    is_late: bool, world: StoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(world, Txn(5))
    if not is_late:
        gate.go.set()
    remote = world.attach()
    first = remote.pin(Txn(3), deadline=later())

    def fail(_: object) -> NoReturn:
        raise ProtocolError("a pin: this cannot be read")

    garbled = replace(PIN, result=Codec(PIN.result.encode, fail))
    monkeypatch.setattr("stelae.client.remote.pins.PIN", garbled)
    with pytest.raises(DeadlineExceeded if is_late else ProtocolError):
        remote.pin(Txn(5), deadline=Deadline(CLOCK, 0.05) if is_late else later())
    gate.go.set()
    until(lambda: not first.is_held and held(world) == [], world.loop)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_pin_may_be_collected_while_another_is_asked_for(
    when: str, world: StoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector runs anywhere: here in the middle of a request, on the line of both."""
    remote = world.attach()
    forgotten = [remote.pin(Txn(n)) for n in (3, 4)]
    kept = remote.pin(Txn(6))
    ask = Line.ask

    def collect(line: Line, operation: Any, *args: Any, **kwargs: Any) -> RequestId:
        if operation is PIN and when == "before":
            close_all(forgotten)
        request = ask(line, operation, *args, **kwargs)
        if operation is PIN and when == "after":
            close_all(forgotten)
        return request

    monkeypatch.setattr(Line, "ask", collect)
    pin = remote.pin(Txn(5))
    assert pin.txn == 5
    assert pin.is_held
    assert kept.is_held
    until(lambda: held(world) == [5, 6], world.loop)


def close_all(pins: list[RemotePin]) -> None:
    while pins:
        pins.pop().close()


def test_pins_are_freed_by_whichever_thread_collects_them(world: StoreWorld) -> None:
    remote = world.attach()
    kept = remote.pin(Txn(1_000))

    class Holder:
        def __init__(self, pin: RemotePin) -> None:
            self.me = self  # only the collector frees it
            finalize(self, pin.close).atexit = False

    def work(number: int) -> None:
        for at in range(tries(40)):
            Holder(remote.pin(Txn(1 + number * 100 + at % 90), deadline=later()))
            if at % 7 == 0:
                gc.collect()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    gc.collect()
    until(lambda: kept.is_held and held(world) == [1_000], world.loop)
    kept.close()
    assert held(world) == []


def test_a_pin_is_not_held_any_more_when_its_owner_is_gone(world: StoreWorld) -> None:
    gate = Gate(world, Txn(5))
    remote = world.attach()
    pin = remote.pin(Txn(3))
    with pytest.raises(DeadlineExceeded):
        remote.pin(Txn(5), deadline=Deadline(CLOCK, 0.05))
    until(lambda: pin.is_held, world.loop)
    gate.go.set()
    world.stop()
    assert not pin.is_held
    with pytest.raises(ConnectionLost):
        remote.pin(Txn(4))
    pin.close()
    assert held(world) == []


def test_after_a_restart_pins_are_asked_for_anew(tmp_path: Path) -> None:
    backend = FakeBackend(answers={"pin": lambda at: at})
    with served(tmp_path, backend) as world:
        remote = world.attach()
        old = remote.pin(Txn(3))
        world.stop()
        with served(tmp_path, backend):
            assert not old.is_held
            new = remote.pin(Txn(4))
            assert new.is_held
            assert not old.is_held
            old.close()
            assert {pin.txn for pin in backend.pins} == {4}
            new.close()
            assert not backend.pins


def test_an_owner_that_does_not_answer_does_not_hold_up_who_closes(world: StoreWorld) -> None:
    """It is asked, and forgotten: the answers that come later are nobody's."""
    go, stuck = Event(), Event()

    def be_stuck() -> None:
        stuck.set()
        go.wait()

    remote = world.attach()
    pins = [remote.pin(Txn(n)) for n in range(1, 6)]
    world.loop.loop.call_soon_threadsafe(be_stuck)
    stuck.wait()
    for pin in pins[1:]:
        pin.close()
    assert pins[0].is_held
    go.set()
    until(lambda: held(world) == [1], world.loop)
    assert pins[0].is_held
    assert remote.pin(Txn(8)).txn == 8


def test_what_is_late_is_told_apart_from_what_is_asked(world: StoreWorld) -> None:
    """Late answers of both kinds come before the one that is waited for."""
    gate = Gate(world, Txn(5))
    remote = world.attach()
    kept = remote.pin(Txn(3))
    for _ in range(3):
        with pytest.raises(DeadlineExceeded):
            remote.pin(Txn(5), deadline=Deadline(CLOCK, 0.02))
    gate.go.set()
    until(lambda: held(world) == [3, 5, 5, 5], world.loop)
    pin = remote.pin(Txn(4))
    assert pin.txn == 4
    until(lambda: kept.is_held and held(world) == [3, 4], world.loop)


def test_a_store_that_was_closed_pins_nothing(world: StoreWorld) -> None:
    remote = world.attach()
    pin = remote.pin(Txn(3))
    remote.close()
    assert not pin.is_held
    with pytest.raises(Closed):
        remote.pin(Txn(4))
    pin.close()


def test_in_a_forked_child_nothing_of_the_parents_is_touched(world: StoreWorld) -> None:
    """Locks may be held there for ever; here they are held by this thread, which would wait for itself."""
    remote = world.attach()
    pin, scan_line = remote.pin(Txn(3)), remote.lines.take(later())
    remote.abandon("forked")
    with remote._pins._lock, ThreadPoolExecutor(1) as pool:
        remote.lines._change.acquire()
        try:
            pool.submit(pin.close).result(GUARD_S)
            pool.submit(remote.lines.give, scan_line).result(GUARD_S)
            calls: list[Callable[[], Any]] = [remote.pin, remote.now]
            for call in calls:
                with pytest.raises(Closed, match="forked"):
                    pool.submit(call).result(GUARD_S)
            pool.submit(remote.close).result(GUARD_S)
        finally:
            remote.lines._change.release()
    assert held(world) == [3]
    remote.lines.close()


def test_a_deadline_that_is_over_leaves_the_line(world: StoreWorld) -> None:
    clock = SimClock()
    remote = world.attach()
    pin = remote.pin(Txn(3))
    over = Deadline(clock, 1)
    clock.advance(2)
    with pytest.raises(StelaeError):
        remote.pin(Txn(4), deadline=over)
    assert pin.is_held
    assert held(world) == [3]
