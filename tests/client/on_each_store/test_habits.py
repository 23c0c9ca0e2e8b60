"""What people do by mistake, and what is said to them."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread, current_thread
from typing import Any

import numpy as np
import pytest

import stelae
from stelae.adapters.clock import SystemClock
from stelae.client.api.rows import Row
from stelae.model.hybrid import millis_of, pack
from tests.client.on_each_store.worlds import put_before
from tests.client.places import Place
from tests.effort import HANG_S


class RungByHand:
    """Alarms that a test rings."""

    def __init__(self) -> None:
        self.waiting: list[tuple[float, Callable[[], None]]] = []
        self.is_closed = False

    def call_later(self, seconds: float, job: Callable[[], None]) -> None:
        self.waiting.append((seconds, job))

    def ring(self) -> None:
        waiting, self.waiting = self.waiting, []
        for _, job in waiting:
            job()

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def alarms(db: stelae.Database) -> RungByHand:
    found = RungByHand()
    db._session.alarms = found
    return found


# -- ranges


@pytest.mark.parametrize(
    "bounds",
    [
        {},
        {"prefix": None},
        {"prefix": ""},
        {"prefix": ("",)},
        {"prefix": {"id": ""}},
        {"start": ""},
        {"start": None, "stop": None},
        {"start": "b", "prefix": ""},
    ],
)
@pytest.mark.parametrize("partition", ["range", "hash"])
def test_a_range_without_bounds_is_not_erased(db: stelae.Database, partition: str, bounds: dict[str, Any]) -> None:
    table = db.create_table("t", {"id": "string"}, [stelae.columns("g", {"v": "int64"})], partition=partition)
    table.put_many([{"id": "a"}, {"id": "b"}])
    with pytest.raises(stelae.InvalidArgument, match=r"db.truncate_table\('t'\)"):
        table.erase_range(**bounds)
    assert table.count() == 2
    assert table.erase_range("", "b") == 1
    assert table.erase_range("b") == 1


def test_an_empty_first_column_of_a_longer_key_is_a_bound(points: stelae.Table) -> None:
    points.put_many([{"place": "", "at": 1}, {"place": "x", "at": 1}])
    assert points.erase_range(prefix="") == 1
    assert [row["place"] for row in points.scan()] == ["x"]
    with pytest.raises(stelae.InvalidArgument, match="bound no range"):
        points.erase_range(start="")


# -- updates


def test_an_update_that_changes_its_copy_alone_is_told_so(users: stelae.Table) -> None:
    users.put({"id": "ann", "age": 1, "tags": ["x"]})

    def grow(row: Row | None) -> None:
        assert row is not None
        row["age"] += 1

    def tag(row: Row | None) -> None:
        assert row is not None
        row["tags"].append("y")

    def strip(row: Row | None) -> None:
        assert row is not None
        del row["tags"]

    for function, column in ((grow, "age"), (tag, "tags"), (strip, "tags")):
        with pytest.raises(stelae.InvalidArgument, match=f"changed '{column}' .* returned None.*return the columns"):
            users.update("ann", function)
    assert users.get("ann", ["age", "tags"]) == {"id": "ann", "age": 1, "tags": ["x"]}


def test_an_update_that_only_looks_is_no_mistake(users: stelae.Table) -> None:
    users.put({"id": "ann", "score": float("nan")})
    looked, found = users.update("ann", lambda _: None), users.get("ann")
    assert looked is not None
    assert found is not None
    assert repr(dict(looked)) == repr(dict(found))  # one NaN equals no other


# -- conditions


OF_THE_FUTURE = (stelae.InvalidArgument, stelae.ClockTooFarAhead)
"""In a cluster it may be another machine's clock that is wrong."""


def test_a_txn_of_the_future_is_no_condition(db: stelae.Database, users: stelae.Table) -> None:
    users.put({"id": "ann", "age": 1})
    future = pack(millis_of(db.now()) + 3_600_000)
    for since in (future, 2**62):
        with pytest.raises(OF_THE_FUTURE, match=f"if_unchanged_since={since} lies in the future, by "):
            users.put({"id": "ann", "age": 2}, if_unchanged_since=since)
    users.put({"id": "ann", "age": 3}, if_unchanged_since=db.now())
    assert len(users.history("ann")["age"]) == 2


def test_a_read_far_ahead_is_refused_at_once(db: stelae.Database, users: stelae.Table) -> None:
    users.put({"id": "ann", "age": 1})
    with pytest.raises(OF_THE_FUTURE, match="in the future: what is written until then is not known yet"):
        users.get("ann", at=pack(millis_of(db.now()) + 3_600_000))


def test_a_txn_of_the_near_future_is_none_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wall_ms, stopped = SystemClock.wall_ms, list[int]()
    monkeypatch.setattr(SystemClock, "wall_ms", lambda clock: stopped[0] if stopped else wall_ms(clock))
    with stelae.open(tmp_path / "store") as db:
        table = db.create_table("t", {"id": "string"}, [stelae.columns("g", {"v": "int64"})])
        table.put({"id": "a", "v": 1})
        stopped.append(millis_of(db.now()))  # or the future would come while the test is slow
        with pytest.raises(stelae.InvalidArgument, match="lies in the future, by "):
            table.put({"id": "a", "v": 2}, if_unchanged_since=pack(stopped[0] + 500))
        stopped.clear()
        assert len(table.history("a")["v"]) == 1


def test_what_a_row_was_read_at_is_never_of_the_future(users: stelae.Table) -> None:
    users.put({"id": "ann", "age": 0})
    for age in range(1, 200):
        row = users.get("ann")
        assert row is not None
        users.put({"id": "ann", "age": age}, if_unchanged_since=row.txn)


def test_a_txn_of_the_future_is_none_in_a_loop_either(place: Place) -> None:
    async def run() -> None:
        async with place.open_async() as db:
            table = await db.create_table("t", {"id": "string"}, [stelae.columns("g", {"v": "int64"})])
            with pytest.raises(OF_THE_FUTURE, match="in the future"):
                await table.put({"id": "a"}, if_unchanged_since=2**62)
            assert await table.count() == 0

    asyncio.run(run())


# -- batches


def test_a_batch_is_written_when_its_time_has_come(users: stelae.Table, alarms: RungByHand) -> None:
    batch = users.batch(seconds_max=1e-9)
    batch.put({"id": "ann"})
    assert users.exists("ann")  # due at once, by the next call
    patient = users.batch(seconds_max=1e-6)
    assert alarms.waiting == []
    slow = users.batch(seconds_max=3_600)
    slow.put({"id": "bob"})
    slow.put({"id": "cay"})
    ((seconds, _),) = alarms.waiting  # one, however much is said
    assert 3_500 < seconds <= 3_600
    alarms.ring()
    assert not users.exists("bob")  # not due yet: it is set again
    ((seconds, _),) = alarms.waiting
    assert seconds <= 3_600
    patient.close()
    slow.close()
    assert users.count() == 3


def test_an_alarm_writes_what_is_due(users: stelae.Table, alarms: RungByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = users.batch(seconds_max=60)
    batch.put({"id": "ann"})
    clock = batch._gathering._clock
    monkeypatch.setattr(batch._gathering, "_clock", _Ahead(clock, 61))
    alarms.ring()
    assert users.exists("ann")
    assert alarms.waiting == []
    batch.close()


class _Ahead:
    def __init__(self, clock: Any, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds

    def monotonic_s(self) -> float:
        return float(self._clock.monotonic_s() + self._seconds)


@pytest.mark.usefixtures("unnumbered")
def test_what_an_alarm_could_not_write_is_kept(
    db: stelae.Database, users: stelae.Table, alarms: RungByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = users.batch(seconds_max=60)
    batch.put({"id": "ann"})
    monkeypatch.setattr(batch._gathering, "_clock", _Ahead(batch._gathering._clock, 61))
    failing = put_before(db)
    failing.plans["write"] = [stelae.Closed("for a test"), stelae.UnknownOutcome("nobody knows")]
    alarms.ring()
    ((seconds, _),) = alarms.waiting  # nothing happened: it is tried again
    assert seconds == 60
    alarms.ring()
    assert alarms.waiting == []
    with pytest.raises(stelae.UnknownOutcome, match="nobody knows"):
        batch.put({"id": "bob"})
    batch.close()
    assert users.exists("ann")


@pytest.mark.usefixtures("unnumbered")
def test_an_alarm_does_not_write_what_may_have_happened(
    db: stelae.Database, users: stelae.Table, alarms: RungByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is told that nobody knows decides what to do: it may be there, and others may have changed it since."""
    batch = users.batch(seconds_max=60)
    batch.put({"id": "ann"})
    failing = put_before(db)
    failing.plans["write"] = [stelae.UnknownOutcome("nobody knows")]
    with pytest.raises(stelae.UnknownOutcome):
        batch.flush()
    batch.put({"id": "bob"})
    monkeypatch.setattr(batch._gathering, "_clock", _Ahead(batch._gathering._clock, 61))
    alarms.ring()
    assert users.count() == 0
    batch.close()
    assert users.count() == 2


class _AlarmNext:
    """A lock that a thread waits for: it has its turn as soon as the lock is free."""

    def __init__(self, job: Callable[[], None]) -> None:
        self._lock = Lock()
        self._thread = Thread(target=job, daemon=True)

    def begin_to_wait(self) -> None:
        self._thread.start()

    def acquire(self, blocking: bool = True) -> bool:
        return self._lock.acquire(blocking)

    def release(self) -> None:
        self._lock.release()
        if self._thread.is_alive() and self._thread is not current_thread():
            self._thread.join(HANG_S)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def test_an_alarm_does_not_write_what_the_end_of_a_batch_could_not(
    db: stelae.Database, users: stelae.Table, alarms: RungByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while the `with` is left, and has its turn when the caller is told that nothing happened."""
    failing = put_before(db)
    batch = users.batch(seconds_max=60)
    batch.put({"id": "ann"})
    monkeypatch.setattr(batch._gathering, "_clock", _Ahead(batch._gathering._clock, 61))
    lock: Any = _AlarmNext(alarms.ring)
    batch._lock = lock

    def fail(*_: Any, **__: Any) -> None:
        del failing.__dict__["write"]  # the next one would succeed
        lock.begin_to_wait()
        raise stelae.Closed("for a test")

    failing.__dict__["write"] = fail
    with pytest.raises(stelae.Closed, match="for a test"), batch:
        pass
    assert users.count() == 0


def test_an_alarm_of_a_loop_does_not_write_what_may_have_happened(place: Place) -> None:
    async def run() -> None:
        async with place.open_async() as db:
            table = await db.create_table("t", {"id": "string"}, [stelae.columns("g", {"v": "int64"})])
            batch = table.batch(seconds_max=60)
            await batch.put({"id": "ann"})
            flush = batch._gathering.flush

            def fail() -> Any:
                yield from ()
                raise stelae.UnknownOutcome("nobody knows")

            batch._gathering.flush = fail  # type: ignore[method-assign]
            with pytest.raises(stelae.UnknownOutcome):
                await batch.flush()
            batch._gathering.flush = flush  # type: ignore[method-assign]
            later: Any = _Ahead(batch._gathering._clock, 61)
            batch._gathering._clock = later
            await batch._flush_due()
            assert await table.count() == 0
            await batch.close()
            assert await table.count() == 1

    asyncio.run(run())


def test_a_batch_writes_by_itself(users: stelae.Table) -> None:
    """With the real thread: nothing is called after the put."""
    batch = users.batch(seconds_max=0.01)
    batch.put({"id": "ann"})
    with users.batch(seconds_max=0.01) as other:
        other.put({"id": "bob"})
        while not (users.exists("ann") and users.exists("bob")):
            pass
    batch.close()


def test_a_batch_of_a_loop_writes_by_itself(place: Place) -> None:
    async def run() -> None:
        async with place.open_async() as db:
            table = await db.create_table("t", {"id": "string"}, [stelae.columns("g", {"v": "int64"})])
            batch = table.batch(seconds_max=0.01)
            await batch.put({"id": "ann"})
            while not await table.exists("ann"):
                await asyncio.sleep(0)
            await batch.close()

    asyncio.run(run())


def test_a_forgotten_batch_warns(users: stelae.Table) -> None:
    def forget() -> None:
        batch = users.batch(seconds_max=3_600)
        batch.put({"id": "ann"})
        batch.erase("bob")
        del batch
        gc.collect()

    with pytest.warns(RuntimeWarning, match="batch of table 'users' was forgotten with 2 changes .* not written"):
        forget()
    assert not users.exists("ann")


def test_a_batch_that_ended_does_not_warn(users: stelae.Table) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with users.batch() as batch:
            batch.put({"id": "ann"})
        with suppress(ZeroDivisionError), users.batch() as spoilt:
            spoilt.put({"id": "bob"})
            raise ZeroDivisionError
        written = users.batch()
        written.put({"id": "cay"})
        written.flush()
        del batch, spoilt, written
        gc.collect()
    assert [row["id"] for row in users.scan()] == ["ann", "cay"]


def test_alarms_end_with_the_database(place: Place) -> None:
    db = place.open()
    found = db._session.alarms = RungByHand()
    db.close()
    assert found.is_closed


# -- handles of another process


def test_a_handle_is_not_pickled_and_says_what_to_do(db: stelae.Database, users: stelae.Table) -> None:
    with db.snapshot() as snapshot, users.scan() as scan:
        for handle, name in ((db, "Database"), (users, "Table"), (snapshot, "Snapshot"), (scan, "Scan")):
            for send in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(stelae.InvalidArgument, match=rf"a stelae\.{name} cannot be .*stelae.open\(path\)"):
                    send(handle)


def test_what_describes_a_table_is_pickled(db: stelae.Database, users: stelae.Table) -> None:
    users.put({"id": "ann"})
    for said in (users.schema, users._info, users.stats(), users.tablets(), db.describe("users"), db.zones()):
        assert pickle.loads(pickle.dumps(said)) == said
    schema = pickle.loads(pickle.dumps(users.schema))
    assert schema.codec.encode(("ann",)) == users.schema.codec.encode(("ann",))


def test_what_was_read_is_pickled(users: stelae.Table) -> None:
    users.put({"id": "ann", "age": 3})
    row, history = users.get("ann"), users.history("ann")
    assert row is not None
    again = pickle.loads(pickle.dumps((row, history)))
    assert again == (row, history)
    assert (type(again[0]), again[0].txn) == (stelae.Row, row.txn)


# -- much at once


def test_long_arrays_are_checked_in_vectors(db: stelae.Database) -> None:
    columns = {"ints": "array<int64>", "floats": "array<float64>", "small": "array<float32>", "texts": "array<string>"}
    table = db.create_table("t", {"id": "string"}, [stelae.columns("g", columns)])

    def calls(count: int) -> int:
        numbers = np.arange(count)
        row = {
            "id": "a",
            "ints": numbers,
            "floats": numbers / 7,
            "small": (numbers / 7).tolist(),
            "texts": ["x"] * count,
        }
        counted = Counter[str]()

        def count_call(_: object, event: str, __: object) -> None:
            counted[event] += 1

        sys.setprofile(count_call)
        try:
            table.put(row)
            table.put_many([row, {**row, "id": "b"}])
        finally:
            sys.setprofile(None)
        found = table.get("b")
        assert found is not None
        assert found["floats"] == (numbers / 7).tolist()
        return counted["call"]

    calls(2_000)
    assert calls(40_000) < calls(20_000) * 1.2


# -- tracebacks


@pytest.mark.parametrize(
    "call",
    [
        lambda users: users.put({"id": "a", "nmae": "x"}),
        lambda users: users.put_many([{"id": "a", "nmae": "x"}]),
        lambda users: users.get("a", columns=["nmae"]),
        lambda users: users.scan(stelae.col("nmae") == "x"),
        lambda users: users.count("nmae = 'x'"),
        lambda users: users.update("a", lambda _: {"nmae": "x"}),
    ],
)
def test_a_typo_is_a_short_story(users: stelae.Table, call: Callable[[stelae.Table], object]) -> None:
    with pytest.raises(stelae.InvalidArgument, match="no column 'nmae'; did you mean 'name'") as caught:
        call(users)
    frames = [each for each in traceback.extract_tb(caught.value.__traceback__) if "stelae" in each.filename]
    assert len([each for each in frames if "/client/" in each.filename and "/tests/" not in each.filename]) <= 3
