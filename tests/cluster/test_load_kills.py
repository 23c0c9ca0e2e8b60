"""Loads, overwrites and truncations of a table on several shards while a real process is killed with -9 at each of
their steps: all of it happens, or nothing, and nobody who reads ever sees a part."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self

import pytest

import stelae
from stelae.adapters.blobs.local import LocalBlobStore
from tests.cluster.driver import KEYS, backend_of, load
from tests.cluster.forked import DRIVER, ForkedCluster
from tests.cluster.traps import STEPS
from tests.clusters import free_port, until
from tests.effort import HANG_S, long_run
from tests.tserver.loading import written

SHARDS = 3
SEED = 1
FEW = {"master": 2, "driver": 2, "shard-1": 1}


def _chosen() -> set[tuple[str, str, str]]:
    """A few of all steps, of all who may die: others with another STELAE_SEED; a soak tries all."""
    seed, found = int(os.environ.get("STELAE_SEED", str(SEED))), set()
    for who, count in FEW.items():
        steps = [step for step in STEPS if step[0] == who]
        found |= {steps[(seed + number * len(steps) // count) % len(steps)] for number in range(count)}
    return found


def tried(step: tuple[str, str, str]) -> Any:
    return pytest.param(*step, id="-".join(step), marks=() if step in _chosen() else long_run)


class Watcher:
    """Reads all rows again and again, at a snapshot each time, and keeps what it has seen."""

    def __init__(self, address: str) -> None:
        self.seen: set[tuple[int, ...]] = set()
        self._is_over = Event()
        self._address = address
        self._failed: list[BaseException] = []
        self._thread = Thread(target=self._watch)

    def _watch(self) -> None:
        try:
            with stelae.connect(self._address, timeout_s=HANG_S) as db:
                table = db.table("t")
                while not self._is_over.is_set():
                    self.seen.add(values(table))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test fails with it
            self._failed.append(error)

    def __enter__(self) -> Self:
        self._thread.start()
        until(lambda: self.seen or self._failed)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        for error in self._failed:
            raise error


@contextmanager
def forked(root: Path, collect_every_s: float = 300.0) -> Iterator[ForkedCluster]:
    with ForkedCluster(root, f"127.0.0.1:{free_port()}", collect_every_s=collect_every_s) as cluster:
        cluster.begin("master")
        for number in range(SHARDS):
            cluster.begin(f"shard-{number}")
        yield cluster


def truncate(db: stelae.Database) -> None:
    while True:
        try:
            db.truncate_table("t")
            return
        except (stelae.Unavailable, stelae.UnknownOutcome):
            continue


def make_table(db: stelae.Database) -> stelae.Table:
    groups = [stelae.columns("data", {"a": "int64"})]
    table = db.create_table("t", {"id": "int64"}, groups, splits=[10, 20])
    assert len({each.server for each in table.tablets()}) == SHARDS
    return table


def values(table: stelae.Table) -> tuple[int, ...]:
    return tuple(row["a"] for row in table.scan())


@pytest.mark.parametrize(("who", "step", "when"), [tried(step) for step in STEPS if step[0] != "driver"])
def test_who_is_killed_in_a_change_of_many_tablets(tmp_path: Path, who: str, step: str, when: str) -> None:
    with forked(tmp_path) as cluster, stelae.connect(cluster.address, timeout_s=HANG_S) as db:
        table = make_table(db)
        load(db, tmp_path, 1)
        changes = [lambda: load(db, tmp_path, 2), lambda: load(db, tmp_path, 3, replaces=True)]
        if step != "begin_load":
            changes.append(lambda: truncate(db))
        with Watcher(cluster.address) as watcher:
            for change in changes:
                cluster.kill(who)
                cluster.begin(who, step, when)
                changing = Thread(target=change)
                changing.start()
                cluster.wait(who)
                cluster.begin(who)
                changing.join(HANG_S)
                assert not changing.is_alive()
        assert values(table) == ((3, 3, 3) if step == "begin_load" else ())
        assert watcher.seen <= {(), (1, 1, 1), (2, 2, 2), (3, 3, 3)}, "never a part"
        until(lambda: db.check().problems == ())


@pytest.mark.parametrize(("who", "step", "when"), [tried(step) for step in STEPS if step[0] == "driver"])
def test_a_driver_that_is_killed_in_its_load(tmp_path: Path, who: str, step: str, when: str) -> None:
    """The master goes on, and all of the load happens or nothing; the next load works, and the same one again."""
    with forked(tmp_path) as cluster, stelae.connect(cluster.address, timeout_s=HANG_S) as db:
        table = make_table(db)
        load(db, tmp_path, 1)
        with Watcher(cluster.address) as watcher:
            for value, kind in ((2, "adds"), (3, "replaces")):
                cluster.kill("master")
                cluster.begin("master", step, when, str(tmp_path / DRIVER))
                cluster.begin(who, str(value), kind)
                cluster.wait(who)
                load(db, tmp_path, value + 10)
                load(db, tmp_path, value, replaces=kind == "replaces")
                assert values(table) in {(value,) * SHARDS, (value + 10,) * SHARDS}
        whole = {(value,) * SHARDS for value in (1, 2, 3, 12, 13)}
        assert watcher.seen <= whole, "never a part"
        until(lambda: db.check().problems == ())


def test_a_driver_that_dies_holds_up_nobody(tmp_path: Path) -> None:
    """Its files are written, and perhaps prepared; nobody comes for it again."""
    with forked(tmp_path) as cluster, stelae.connect(cluster.address, timeout_s=HANG_S) as db:
        table = make_table(db)
        load(db, tmp_path, 1)
        store, blobs = backend_of(db), LocalBlobStore(tmp_path / "store")
        left = store.begin_load(store.find("t").id, "of one who dies")
        for key in KEYS:
            written(blobs, left, f"{key:02x}", {key: 7})
        assert values(table) == (1, 1, 1)
        load(db, tmp_path, 2)
        assert values(table) == (2, 2, 2)
        truncate(db)
        again = store.begin_load(store.find("t").id, "of one who dies")
        with pytest.raises(stelae.Conflict, match="was given up"):
            store.commit_load(left.ticket, [])
        store.release(again.ticket)
        assert values(table) == ()
