"""Turns: one at a time, in order, and nobody else waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event

import pytest

from stelae.model.declare import columns, declare
from stelae.model.ids import Row, TabletId, Txn
from stelae.model.mutation import Put
from stelae.storage import turns
from stelae.storage.tablet.config import TabletConfig
from stelae.storage.turns import Turn
from tests.clusters import until
from tests.storage.engine import Engine

WAIT_S = 60
"""Nothing is measured by it: only whoever waits for ever fails."""

FIRST = TabletId(1)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def wait_for_line(turn: Turn, waiting: int) -> None:
    """Until so many have the turn or wait for it."""
    until(lambda: len(turn._line) >= waiting)


def test_turns_are_given_in_order(threads: ThreadPoolExecutor) -> None:
    order: list[int] = []
    turn, ends = Turn(), [Event() for _ in range(3)]

    def take(number: int) -> None:
        with turn:
            order.append(number)
            ends[number].wait(WAIT_S)

    jobs: list[Future[None]] = []
    for number in range(3):
        jobs.append(threads.submit(take, number))
        wait_for_line(turn, number + 1)
    assert order == [0]
    assert not turn.take_if_free()
    for number in range(3):
        ends[number].set()
        jobs[number].result(WAIT_S)
        assert order[: number + 1] == list(range(number + 1))
    assert not turn._line
    assert turn.take_if_free()
    turn.give_back()
    assert not turn._line


def test_a_turn_is_given_back_whatever_happens() -> None:
    turn = Turn()
    with pytest.raises(ZeroDivisionError), turn:
        raise ZeroDivisionError
    assert not turn._line


def test_who_is_interrupted_while_it_waits_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Future[None]):
        def result(self, _: float | None = None) -> None:
            raise KeyboardInterrupt

    turn = Turn()
    with turn:
        monkeypatch.setattr(turns, "Future", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            turn.__enter__()
        monkeypatch.undo()
        assert len(turn._line) == 1
    assert not turn._line


def test_a_shard_goes_on_while_configs_are_saved(threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that saves waits for a network, say. Others write, flush, compact and collect, and who saves next saves what
    they did."""
    engine = Engine(declare({"id": "string"}, [columns("data", {"number": "int64"})]))
    number = engine.schema.column("number")[1].id

    def put(value: int) -> Txn:
        return engine.write([Put(Row(b"%d" % value), ((number, value),))])[-1][0]

    put(1)
    engine.flush(FIRST)
    save = engine.configs.save
    following: list[Future[None]] = []

    def work() -> None:
        put(2)
        engine.flush(FIRST)
        assert engine.compact(FIRST, whole_group=True)
        put(3)
        engine.collect_log()
        engine.upkeep.collect_files()
        following.append(threads.submit(engine.upkeep.save))
        wait_for_line(engine.upkeep._saving, 2)

    def save_slowly(configs: Sequence[TabletConfig], removed: Sequence[TabletId]) -> None:
        monkeypatch.setattr(engine.configs, "save", save)
        threads.submit(work).result(WAIT_S)
        assert not following[0].done()
        save(configs, removed)

    monkeypatch.setattr(engine.configs, "save", save_slowly)
    engine.upkeep.save()
    following[0].result(WAIT_S)
    assert not engine.upkeep._saving._line
    (config,) = engine.configs.load()
    assert len(config.files()) == 1
    engine.tidy()
    engine.restart("power")
    found = engine.scan(engine.shard.visible)
    assert {row: values["number"] for row, values in found.items()} == {b"1": 1, b"2": 2, b"3": 3}
