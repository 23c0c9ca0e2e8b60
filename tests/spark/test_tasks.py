"""Works on Spark: each is done once, errors come out as they were, and an interrupt ends the job."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.model.errors import Corruption, JobFailed, NotFound, StelaeError, Unavailable
from stelae.spark.driver import tasks
from stelae.spark.driver.failures import may_pass
from stelae.spark.driver.progress import Advance, Renewal, Summary, released
from stelae.spark.driver.tasks import (
    TASK_BYTES_MAX,
    TASK_BYTES_MIN,
    cancel_for_good,
    packed,
    run_action,
    run_tasks,
)
from tests.effort import examples


@settings(max_examples=examples(50))
@given(st.lists(st.integers(0, 4 * TASK_BYTES_MAX), max_size=60), st.integers(1, 16))
def test_works_are_packed(sizes: list[int], cores: int) -> None:
    works = list(enumerate(sizes))
    bins = packed(works, lambda work: work[1], cores)
    assert sorted(work for some in bins for work in some) == works
    assert all(bins)
    for some in bins:
        assert len(some) == 1 or sum(size for _, size in some) <= TASK_BYTES_MAX
    loads = [sum(size for _, size in some) for some in bins]
    assert not any(one + next_one <= TASK_BYTES_MIN for one, next_one in pairwise(loads))


def double(number: int) -> int:
    return 2 * number


def nothing(_: int) -> None:
    return


def fail_at(bad: int, error: Exception, number: int) -> int:
    if number == bad:
        raise error
    return number


def test_each_result_comes_once(spark: Any) -> None:
    taken: list[int] = []
    beats: list[None] = []
    run_tasks(
        spark,
        "double",
        range(12),
        double,
        taken.append,
        size_bytes=lambda _: TASK_BYTES_MIN,
        beat=lambda: beats.append(None),
    )
    assert sorted(taken) == [2 * number for number in range(12)]
    assert beats
    run_tasks(spark, "nothing", [], double, taken.append, size_bytes=lambda _: 1)
    assert len(taken) == 12


def test_an_error_of_ours_comes_out_as_it_was(spark: Any) -> None:
    do = partial(fail_at, 3, Corruption("is damaged", "a.parquet", 7))
    with pytest.raises(Corruption, match=r"a\.parquet at byte 7: is damaged") as raised:
        run_tasks(spark, "fail", range(5), do, nothing, size_bytes=lambda _: 1)
    assert raised.value.offset == 7


@pytest.mark.parametrize(
    "error, kind",
    [
        (ZeroDivisionError("by nought"), JobFailed),
        (OverflowError("date value out of range"), JobFailed),
        (OSError("the network is away"), Unavailable),
        (Unavailable("the disk is away"), Unavailable),
    ],
    ids=str,
)
def test_other_errors_are_told_in_a_line(spark: Any, error: Exception, kind: type[StelaeError]) -> None:
    """What would be raised again is not to be repeated."""
    with pytest.raises(StelaeError, match=f"fail: the Spark job failed: .*{error}") as raised:
        run_tasks(spark, "fail", range(5), partial(fail_at, 3, error), nothing, size_bytes=lambda _: 1)
    assert type(raised.value) is kind
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "sql", ["SELECT nothing FROM nowhere", "SELEC 1", "SELECT raise_error('broken')", "SELECT CAST('x' AS INT)"]
)
def test_what_spark_refuses_it_refuses_again(spark: Any, sql: str) -> None:
    with pytest.raises(JobFailed, match="ask: the Spark job failed"):
        run_action(spark, "ask", lambda: spark.sql(sql).collect(), None, None)


@pytest.mark.parametrize(
    "told, passes",
    [
        ("Traceback (most recent call last):\n  at x\nOverflowError: too large", False),
        ("Traceback (most recent call last):\n  at x\nstelae.DiskFull: no room", True),
        ("Traceback (most recent call last):\n  at x\nstelae.Corruption: x", False),
        ("Traceback (most recent call last):\n  at x\nConnectionResetError: gone", True),
        ("Traceback (most recent call last):\n  at x\nbotocore.exceptions.EndpointConnectionError: x", True),
        ("Traceback (most recent call last):\n  at x\npyarrow.lib.ArrowInvalid: x", False),
        ("Job aborted: ExecutorLostFailure (executor 1 exited)", True),
    ],
)
def test_what_may_pass(told: str, passes: bool) -> None:
    assert may_pass(RuntimeError(told)) is passes


def wait_then_write(directory: str, number: int) -> int:
    """Long enough to be cancelled before it is done, also where that takes its time."""
    Event().wait(120)
    Path(directory, f"{number}.done").touch()
    return number


def test_an_interrupt_ends_the_job(spark: Any, tmp_path: Path) -> None:
    def interrupt() -> None:
        if spark.sparkContext.statusTracker().getActiveJobsIds():
            raise KeyboardInterrupt

    do = partial(wait_then_write, str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        run_tasks(spark, "stop", range(2), do, nothing, size_bytes=lambda _: TASK_BYTES_MIN, beat=interrupt)
    assert not spark.sparkContext.statusTracker().getActiveJobsIds()
    assert not list(tmp_path.glob("*.done"))


def waiting(directory: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Long enough to be cancelled before it is done."""
    Event().wait(120)
    Path(directory, "done").touch()
    yield from batches


@pytest.mark.parametrize("shuffles", [False, True])
def test_an_interrupt_between_two_jobs(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, shuffles: bool
) -> None:
    """An action may be many jobs: none goes on after the interrupt, though none ran when it came."""
    between, cancelled, second = Event(), Event(), list[object]()
    slow = spark.range(0, 2, 1, 2).mapInArrow(partial(waiting, str(tmp_path)), "id long")
    frame = slow.repartition(2) if shuffles else slow

    def action() -> None:
        spark.range(1).count()
        between.set()
        cancelled.wait()
        try:
            second.append(frame.count())
        except Exception as error:
            second.append(error)
            raise

    def interrupt() -> None:
        if between.is_set():
            raise KeyboardInterrupt

    def cancel(context: Any, group: str) -> None:
        cancel_for_good(context, group)
        cancelled.set()

    monkeypatch.setattr(tasks, "cancel_for_good", cancel)
    with pytest.raises(KeyboardInterrupt):
        run_action(spark, "load t", action, None, interrupt, "nothing is loaded")
    assert [isinstance(each, Exception) for each in second] == [True]
    assert not list(tmp_path.iterdir())
    assert "load t: interrupted, ending its tasks; nothing is loaded" in caplog.text


def test_an_action_tells_its_tasks(spark: Any) -> None:
    told: list[tuple[int, int]] = []
    found = run_action(
        spark, "count", lambda: spark.range(0, 100, 1, 4).count(), lambda *each: told.append(each), beat=None
    )
    assert found == 100
    assert told[-1][0] == told[-1][1] >= 4


class Backend:
    def __init__(self) -> None:
        self.renewed: list[str] = []
        self.released: list[str] = []
        self.error: Exception | None = None

    def renew(self, ticket: str, ttl_s: float = 0.0) -> None:
        assert ttl_s > 0
        self.renewed.append(ticket)

    def release(self, ticket: str) -> None:
        self.released.append(ticket)
        if self.error is not None:
            raise self.error


class Given:
    ticket = "t"


def test_tickets_are_renewed_in_time() -> None:
    backend = Backend()
    Renewal(backend, ["a", "b"], ttl_s=1e6)()
    assert backend.renewed == []
    Renewal(backend, ["a", "b"], ttl_s=1e-9)()
    assert backend.renewed == ["a", "b"]


def test_tickets_are_let_go() -> None:
    backend = Backend()
    with released(backend, Given()) as given_out:
        assert given_out.ticket == "t"
        assert backend.released == []
    assert backend.released == ["t"]
    backend.error = NotFound("gone")
    with pytest.raises(ValueError, match="first") as raised, released(backend, Given()):
        raise ValueError("first")
    assert "t was not let go, and expires by itself: gone" in raised.value.__notes__


def test_progress_and_summary() -> None:
    told: list[tuple[int, int]] = []
    advance = Advance(lambda *each: told.append(each), 10)
    advance.add(4)
    advance.add(9)
    assert told == [(0, 10), (4, 10), (10, 10)]
    assert str(Summary("done", (("a", "1"), ("long", "2")))) == "done\n  a     1\n  long  2"
