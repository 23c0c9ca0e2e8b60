"""Many works of one job, side by side on Spark, each result taken as soon as it is there.

A work is a value that is pickled to whoever does it, with a function of a module; tasks see files and nothing else of
the store. Small works go together, since each task of Python costs some 30 ms whatever it does.

Results come by an accumulator as each task ends, and all of them once more at the end of the job, so none is missed and
none counts twice. An error of ours that a task meets ends the job and is raised here as it was; Spark would only have
its text. While the job runs, the caller's thread waits: an interrupt there, or an error of whoever takes the results,
cancels the job, and it has ended when the error comes out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from stelae.adapters.executor import ThreadExecutor
from stelae.adapters.rng import SystemRng
from stelae.model.errors import Retryable, StelaeError
from stelae.service.reports import Progress
from stelae.spark.driver.failures import failure_of
from stelae.spark.driver.progress import Beat

TASK_BYTES_MAX = 64 * 2**20
TASK_BYTES_MIN = 2**20
_TASKS_PER_CORE = 4
_LOOK_EVERY_S = 0.1

_log = logging.getLogger("stelae")

W = TypeVar("W")
R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Outcome(Generic[R]):
    """Of the work with that number: what came of it, or the error that ended it."""

    number: int
    result: R | None
    error: StelaeError | None = None


class _Listed:
    """How an accumulator puts lists together."""

    def zero(self, value: list[Any]) -> list[Any]:  # noqa: ARG002
        return []

    def addInPlace(self, one: list[Any], other: list[Any]) -> list[Any]:  # noqa: N802 - Spark's name for it
        one.extend(other)
        return one


def run_tasks(
    spark: Any,
    what: str,
    works: Sequence[W],
    do: Callable[[W], R],
    take: Callable[[R], None],
    *,
    size_bytes: Callable[[W], int],
    beat: Beat | None = None,
) -> None:
    """`take` gets the result of each work, once, in the order they are done, on the caller's thread. Without Spark
    (None) the works are done in this process, one after the other."""
    if not works:
        return
    if spark is None:
        _run_here(works, do, take, beat)
        return
    context = spark.sparkContext
    arrived = context.accumulator([], _Listed())
    bins = packed(list(enumerate(works)), lambda work: size_bytes(work[1]), context.defaultParallelism)
    taken: set[int] = set()

    def hand_on(outcomes: Iterable[_Outcome[R]]) -> None:
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
            if outcome.number not in taken:
                taken.add(outcome.number)
                take(outcome.result)  # type: ignore[arg-type]

    def tick() -> None:
        hand_on(_drained(arrived.value))
        if beat is not None:
            beat()

    def job() -> list[_Outcome[R]]:
        found: list[_Outcome[R]] = (
            context.parallelize(bins, len(bins)).mapPartitions(partial(_do_works, do, arrived)).collect()
        )
        return found

    hand_on(run_watched(spark, what, job, tick))


def _run_here(works: Sequence[W], do: Callable[[W], R], take: Callable[[R], None], beat: Beat | None) -> None:
    """On a thread beside the caller's, who looks after what is held meanwhile."""
    with closing(ThreadExecutor(1, 0)) as pool:
        for work in works:
            running = pool.submit(do, work)
            while not wait([running], _LOOK_EVERY_S).done:
                if beat is not None:
                    beat()
            take(running.result())


def packed(works: Sequence[W], size_bytes: Callable[[W], int], cores: int) -> list[tuple[W, ...]]:
    """The works in bins of about equal size, a few for each core, none too large where that can be helped; the largest
    first."""
    total = sum(size_bytes(work) for work in works)
    full = max(TASK_BYTES_MIN, min(TASK_BYTES_MAX, total // max(1, cores * _TASKS_PER_CORE)))
    bins: list[tuple[W, ...]] = []
    filling: list[W] = []
    filled = 0
    for work in sorted(works, key=size_bytes, reverse=True):
        if filling and filled + size_bytes(work) > full:
            bins.append(tuple(filling))
            filling, filled = [], 0
        filling.append(work)
        filled += size_bytes(work)
    return [*bins, tuple(filling)] if filling else bins


def _do_works(do: Callable[[W], R], arrived: Any, bins: Iterator[Sequence[tuple[int, W]]]) -> Iterator[_Outcome[R]]:
    """Do the works of one task of Spark's, one after the other; each outcome is told to the driver when it is there."""
    for number, work in (each for works in bins for each in works):
        try:
            outcome = _Outcome(number, do(work))
        except Retryable:
            raise  # Spark tries the task again, as often as the session says
        except StelaeError as error:
            outcome = _Outcome(number, None, error)
        arrived.add([outcome])
        yield outcome


def _drained(waiting: list[T]) -> Iterator[T]:
    while waiting:
        yield waiting.pop(0)


def run_watched(spark: Any, what: str, job: Callable[[], T], tick: Callable[[], None], undoing: str = "") -> T:
    """The result of a job that runs on Spark in another thread, while `tick` is called on this one. Whatever ends the
    waiting cancels the job, also where it is between two jobs of Spark's. `undoing`: what an interrupt leads to, for
    whoever waits for it."""
    context = spark.sparkContext
    group = f"stelae-{SystemRng().token(8).hex()}"

    def run_in_group() -> T:
        context.setJobGroup(group, what, interruptOnCancel=True)
        return job()

    with closing(ThreadExecutor(1, 0)) as pool:
        running = pool.submit(run_in_group)
        try:
            while not wait([running], _LOOK_EVERY_S).done:
                tick()
            result = _result(running, what)
            tick()
            return result
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                _log.warning("%s: interrupted, ending its tasks%s", what, f"; {undoing}" if undoing else "")
            cancel_for_good(context, group)
            while not wait([running], _LOOK_EVERY_S).done:
                cancel_for_good(context, group)
            raise


def cancel_for_good(context: Any, group: str) -> None:
    """End what runs of a group, and whatever its thread begins from now on: an action of Spark's may be many jobs, one
    after the other, and there need not be one just now. Stages that write shuffles Spark begins all the same, so this
    is to be said again until the thread has ended."""
    context._jsc.sc().cancelJobGroupAndFutureJobs(group)


def _result(running: Future[T], what: str) -> T:
    try:
        return running.result()
    except StelaeError:
        raise
    except Exception as error:
        raise failure_of(what, error) from error


def run_action(
    spark: Any,
    what: str,
    action: Callable[[], T],
    progress: Progress | None,
    beat: Beat | None,
    undoing: str = "",
) -> T:
    """What Spark does by itself, such as writing a frame; progress counts its tasks. `undoing` as in `watched`."""
    tracker = spark.sparkContext.statusTracker()
    seen: dict[int, tuple[int, int]] = {}
    groups: list[str] = []
    last = (0, 0)

    def run_in_group() -> T:
        groups.append(spark.sparkContext.getLocalProperty("spark.jobGroup.id"))
        return action()

    def tick() -> None:
        nonlocal last
        for job in tracker.getJobIdsForGroup(groups[0]) if groups and progress is not None else ():
            info = tracker.getJobInfo(job)
            for stage in info.stageIds if info is not None else ():
                found = tracker.getStageInfo(stage)
                if found is not None and found.numActiveTasks + found.numCompletedTasks:  # others may never be needed
                    seen[stage] = (found.numCompletedTasks, found.numTasks)
        counted = sum(done for done, _ in seen.values()), sum(total for _, total in seen.values())
        if progress is not None and counted != last:
            progress(*counted)
            last = counted
        if beat is not None:
            beat()

    return run_watched(spark, what, run_in_group, tick, undoing)
