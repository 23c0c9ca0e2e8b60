"""Loads, overwrites and truncations of a table on several shards while a real process is killed with -9 at each of
their steps: all of it happens, or nothing, and nobody who reads ever sees a part."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self

import pytest

import stelae
from stelae.adapters.blobs.local import LocalBlobStore
from stelae.service.backend import Backend
from tests.cluster.forked import ForkedCluster
from tests.cluster.traps import STEPS
from tests.clusters import free_port, until
from tests.effort import HANG_S, long_run
from tests.tserver.loading import written

SHARDS = 3
KEYS = (1, 11, 21)
FEW = (("master", "_decide", "after"), ("shard-1", "_prepare", "after"))
"""What a plain run tries; a soak tries all."""


def tried(step: tuple[str, str, str]) -> Any:
    return pytest.param(*step, id="-".join(step), marks=() if step in FEW else long_run)


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
                    self.seen.add(tuple(row["a"] for row in table.scan()))
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
def forked(root: Path) -> Iterator[ForkedCluster]:
    with ForkedCluster(root, f"127.0.0.1:{free_port()}") as cluster:
        cluster.begin("master")
        for number in range(SHARDS):
            cluster.begin(f"shard-{number}")
        yield cluster


def backend_of(db: stelae.Database) -> Backend:
    return db._session.backend


def load(db: stelae.Database, root: Path, value: int, *, replaces: bool = False) -> None:
    """As a driver does it that tries again until it is told that its job is done."""
    store, blobs, job = backend_of(db), LocalBlobStore(root / "store"), f"load {value}"
    while True:
        try:
            ticket = store.begin_load(store.find("t").id, job)
            if ticket.committed is not None:
                return
            files = [written(blobs, ticket, f"{key:02x}", {key: value}) for key in KEYS]
            store.commit_load(ticket.ticket, files, replaces=replaces)
        except (stelae.Unavailable, stelae.UnknownOutcome, stelae.Conflict):
            continue


def truncate(db: stelae.Database) -> None:
    while True:
        try:
            db.truncate_table("t")
            return
        except (stelae.Unavailable, stelae.UnknownOutcome):
            continue


@pytest.mark.parametrize(("who", "step", "when"), [tried(step) for step in STEPS])
def test_who_is_killed_in_a_change_of_many_tablets(tmp_path: Path, who: str, step: str, when: str) -> None:
    with forked(tmp_path) as cluster, stelae.connect(cluster.address, timeout_s=HANG_S) as db:
        groups = [stelae.columns("data", {"a": "int64"})]
        table = db.create_table("t", {"id": "int64"}, groups, splits=[10, 20])
        assert len({each.server for each in table.tablets()}) == SHARDS
        load(db, tmp_path, 1)
        with Watcher(cluster.address) as watcher:
            for change in (lambda: load(db, tmp_path, 2), lambda: load(db, tmp_path, 3, replaces=True), None):
                cluster.kill(who)
                cluster.begin(who, step, when)
                changing = Thread(target=change or (lambda: truncate(db)))
                changing.start()
                cluster.wait(who)
                cluster.begin(who)
                changing.join(HANG_S)
                assert not changing.is_alive()
        assert [row["a"] for row in table.scan()] == []
        assert watcher.seen <= {(), (1, 1, 1), (2, 2, 2), (3, 3, 3)}, "never a part"
        until(lambda: db.check().problems == ())


def test_a_driver_that_dies_holds_up_nobody(tmp_path: Path) -> None:
    """Its files are written, and perhaps prepared; nobody comes for it again."""
    with forked(tmp_path) as cluster, stelae.connect(cluster.address, timeout_s=HANG_S) as db:
        groups = [stelae.columns("data", {"a": "int64"})]
        table = db.create_table("t", {"id": "int64"}, groups, splits=[10, 20])
        load(db, tmp_path, 1)
        store, blobs = backend_of(db), LocalBlobStore(tmp_path / "store")
        left = store.begin_load(store.find("t").id, "of one who dies")
        for key in KEYS:
            written(blobs, left, f"{key:02x}", {key: 7})
        assert [row["a"] for row in table.scan()] == [1, 1, 1]
        load(db, tmp_path, 2)
        assert [row["a"] for row in table.scan()] == [2, 2, 2]
        truncate(db)
        again = store.begin_load(store.find("t").id, "of one who dies")
        with pytest.raises(stelae.Conflict, match="was given up"):
            store.commit_load(left.ticket, [])
        store.release(again.ticket)
        assert [row["a"] for row in table.scan()] == []
