"""A shard or a master that is stopped (SIGSTOP): whatever is asked ends when the caller's time does."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

import stelae
from stelae.adapters.liveness import ProcessMark, send_signal
from tests.clusters import RealCluster, connected, mark_of, real_cluster
from tests.effort import HANG_S

CALL_S = 2.0
LATE_S = 10.0
"""Calls end within `CALL_S`, give or take what a busy machine takes. Whoever waits for something else than the caller's
deadline waits longer than this: a master gives up a silent shard after 15 s, a shard its master after 60."""

KEY, SPLITS = {"k": "string"}, ["g", "n", "t"]
Call = Callable[[stelae.Database, str], object]

CHANGES: Mapping[str, Call] = {
    "alter": lambda db, name: db.alter_table(name, add={"p": {"w": "int64"}}),
    "drop": lambda db, name: db.drop_table(name),
    "truncate": lambda db, name: db.truncate_table(name),
    "split": lambda db, name: db.table(name).split(),
    "split at a row": lambda db, name: db.table(name).split("a"),
    "zone": lambda db, name: db.create_zone(name),
}
"""What is asked of the master, of a table of its own each."""

ROWS: Mapping[str, Call] = {
    "put": lambda db, name: [db.table(name).put({"k": key, "v": 2}) for key in ("a", "z")],
    "put_many": lambda db, name: db.table(name).put_many([{"k": key, "v": 2} for key in ("a", "z")]),
    "erase_range": lambda db, name: db.table(name).erase_range("a", "zz"),
    "increment": lambda db, name: [db.table(name).increment(key, {"v": 1}) for key in ("a", "z")],
    "get": lambda db, name: [db.table(name).get(key) for key in ("a", "z")],
    "get_many": lambda db, name: db.table(name).get_many(["a", "z"]),
    "history": lambda db, name: [db.table(name).history(key) for key in ("a", "z")],
    "count": lambda db, name: db.table(name).count(),
    "scan": lambda db, name: db.table(name).scan().to_arrow(),
    "snapshot": lambda db, name: db.snapshot().close(),
    "now": lambda db, name: db.now(),
    "flush": lambda db, name: db.table(name).flush(),
    "compact": lambda db, name: db.table(name).compact(),
    "erase now": lambda db, name: db.table(name).compact(erase_now=True),
    "stats": lambda db, name: db.table(name).stats(),
    "tablets": lambda db, name: db.table(name).tablets(),
    "metrics": lambda db, name: db.metrics(),
    "check": lambda db, name: db.check(),
}
"""What is asked of both shards."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with real_cluster(tmp_path_factory.mktemp("stopped") / "c") as cluster:
        cluster.up("--shards", "2")
        yield cluster


def make_tables(cluster: RealCluster, calls: Mapping[str, Call], prefix: str) -> dict[str, str]:
    """One for each call, with rows on both shards."""
    names = {call: f"{prefix}{number}" for number, call in enumerate(calls)}
    with cluster.connect() as db:
        for name in names.values():
            table = db.create_table(name, KEY, [stelae.columns("p", {"v": "int64"})], splits=SPLITS)
            table.put_many([{"k": key, "v": 1} for key in ("a", "b", "c", "x", "y", "z")])
    return names


@contextmanager
def stopped(process: ProcessMark) -> Iterator[None]:
    send_signal(process, signal.SIGSTOP)
    try:
        yield
    finally:
        send_signal(process, signal.SIGCONT)


def end_of(call: Call, db: stelae.Database, name: str) -> tuple[float, stelae.StelaeError | None]:
    """How long it took, and what it raised."""
    begun_s = time.monotonic()
    error: stelae.StelaeError | None = None
    try:
        call(db, name)
    except stelae.StelaeError as raised:
        error = raised
    return time.monotonic() - begun_s, error


def ends_of(cluster: RealCluster, calls: Mapping[str, Call], names: Mapping[str, str], process: ProcessMark) -> Any:
    """Of all calls at once, while a process is stopped. Tables are looked up before."""
    with connected(cluster.address, CALL_S) as db, ThreadPoolExecutor(len(calls)) as threads:
        for name in names.values():
            db.table(name).get("a")
            db.table(name).get("z")
        with stopped(process):
            begun = {each: threads.submit(end_of, call, db, names[each]) for each, call in calls.items()}
            ends = {each: future.result(HANG_S) for each, future in begun.items()}
    late = {each: end for each, end in ends.items() if end[0] > LATE_S}
    assert not late
    return {each: error for each, (_, error) in ends.items()}


def second_shard(cluster: RealCluster) -> ProcessMark:
    (node,) = cluster.status()["nodes"]
    return mark_of(node["shards"][1]["pid"])


def test_a_shard_that_is_stopped_holds_nobody_up_beyond_the_time_given(cluster: RealCluster) -> None:
    calls = {**CHANGES, **ROWS}
    names = make_tables(cluster, calls, "s")
    errors = ends_of(cluster, calls, names, second_shard(cluster))
    assert errors.pop("zone") is None, "no shard has a part in it"
    assert errors.pop("drop") is None, "it is gone by name, and the shard hears of it later"
    error = errors.pop("split at a row")  # the other shard has that row: it is split, unless the machine is very busy
    assert error is None or isinstance(error, stelae.Unavailable | stelae.UnknownOutcome)
    assert isinstance(errors["alter"], stelae.UnknownOutcome), "the catalog has it"
    assert isinstance(errors["truncate"], stelae.Unavailable), "it was given up"
    for each in ("metrics", "check"):  # the other shard answers, unless the machine is very busy
        error = errors.pop(each)
        assert error is None or isinstance(error, stelae.Unavailable), (each, error)
    for each, error in errors.items():
        assert isinstance(error, stelae.Unavailable | stelae.UnknownOutcome | stelae.PartialWrite), (each, error)
    with cluster.connect() as db:  # all goes on when the shard does
        assert db.table(names["alter"]).get("z") == {"k": "z", "v": 1, "w": None}
        assert db.table(names["truncate"]).count() == 6
        assert names["drop"] not in db.tables()
        assert db.check().problems == ()


def test_a_master_that_is_stopped_holds_nobody_up_beyond_the_time_given(cluster: RealCluster) -> None:
    calls = {**CHANGES, "check": ROWS["check"], "erase now": ROWS["erase now"], "now": ROWS["now"]}
    names = make_tables(cluster, calls, "m")
    (master,) = cluster.status()["masters"]
    errors = ends_of(cluster, calls, names, mark_of(master["pid"]))
    for each, error in errors.items():
        assert isinstance(error, stelae.Unavailable | stelae.UnknownOutcome), (each, error)
    with cluster.connect() as db:
        assert db.check().problems == ()


def test_changes_that_wait_for_a_stopped_shard_hold_up_no_other(cluster: RealCluster) -> None:
    alter, waiting = CHANGES["alter"], 8
    names = make_tables(cluster, {str(number): alter for number in range(waiting)}, "w")
    with connected(cluster.address, HANG_S) as db, ThreadPoolExecutor(waiting) as threads:
        tables = [db.table(name) for name in names.values()]
        first = max(table.schema.version for table in tables)
        with stopped(second_shard(cluster)):
            begun = [threads.submit(end_of, alter, db, name) for name in names.values()]
            while not all(table.schema.version > first for table in tables):
                continue  # the catalog has it, and the shard is waited for
            db.create_zone("beside")
            assert not any(each.done() for each in begun)
        for future in begun:
            future.result(HANG_S)
        assert db.check().problems == ()
