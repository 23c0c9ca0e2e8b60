"""Loads and truncations of a table on several shards, as programs ask for them: real processes, as threads of one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import stelae
from stelae.adapters.blobs.local import LocalBlobStore
from stelae.launch.processes import ShardOptions, ShardProcess
from stelae.model.ids import Txn
from stelae.service.backend import Backend
from tests.cluster_of_threads import NODE, Cluster
from tests.tserver.loading import written

SHARDS = 3
CUTS = (10, 20)
KEYS = (1, 5, 11, 15, 21, 25)


class Shards:
    """A cluster whose table `t` has a tablet on each of several shards."""

    def __init__(self, root: Path, ends: ExitStack) -> None:
        self.cluster = ends.enter_context(Cluster(root))
        self._ends = ends
        self.shards = {number: self.begin(number) for number in range(1, SHARDS)}
        self.db = ends.enter_context(stelae.connect(self.cluster.address))
        groups = [stelae.columns("data", {"a": "int64"})]
        self.table = self.db.create_table("t", key={"id": "int64"}, groups=groups, splits=list(CUTS))

    def begin(self, number: int) -> ShardProcess:
        cluster = self.cluster
        place = cluster.root / "node-1" / f"shard-{number}"
        shard = ShardProcess(
            ShardOptions("node-1", place, cluster.metastore, str(cluster.store), node=NODE, number=number)
        )
        self._ends.callback(shard.close)
        return shard

    @property
    def store(self) -> Backend:
        return self.db._session.backend

    def load(self, job: str, value: int, **options: Any) -> Txn:
        ticket = self.store.begin_load(self.store.find("t").id, job)
        if ticket.committed is not None:
            return ticket.committed
        blobs = LocalBlobStore(self.cluster.store)
        files = [written(blobs, ticket, f"{at:02x}", {key: value}) for at, key in enumerate(KEYS)]
        return self.store.commit_load(ticket.ticket, files, **options)

    def values(self, at: Txn | None = None) -> list[tuple[int, int]]:
        return [(row["id"], row["a"]) for row in self.table.scan(at=at)]


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[Shards]:
    with ExitStack() as ends:
        yield Shards(tmp_path, ends)


def all_with(value: int) -> list[tuple[int, int]]:
    return [(key, value) for key in KEYS]


def test_a_load_is_on_all_shards_at_one_txn_and_once(shards: Shards) -> None:
    places = {each.server for each in shards.cluster.master.master._terms.master().maps.all()}  # type: ignore[union-attr]
    assert len(places) == SHARDS, "a tablet on each"
    shards.table.put({"id": 3, "a": 7})
    first = shards.load("nightly", 1)
    assert shards.values() == sorted([*all_with(1), (3, 7)])
    assert shards.values(Txn(first - 1)) == [(3, 7)]
    assert shards.load("nightly", 2) == first, "the job is done"
    second = shards.load("again", 2, replaces=True)
    assert shards.values() == all_with(2)
    assert shards.values(Txn(second - 1)) == sorted([*all_with(1), (3, 7)])
    third = shards.db.truncate_table("t")
    assert shards.values() == []
    assert shards.values(Txn(third - 1)) == all_with(2)
    assert shards.db.check().problems == ()


def test_what_a_ticket_is_told(shards: Shards) -> None:
    store, table = shards.store, shards.store.find("t").id
    ticket = store.begin_load(table, "job")
    store.renew(ticket.ticket, 60.0)
    store.release(ticket.ticket)
    store.release(ticket.ticket)
    with pytest.raises(stelae.NotFound, match="is not under way any more"):
        store.renew(ticket.ticket)
    with pytest.raises(stelae.Conflict, match="was given up"):
        store.commit_load(ticket.ticket, [])
    with pytest.raises(stelae.InvalidArgument, match="a job is named by"):
        store.begin_load(table, "")
    other = store.begin_load(table, "job")
    blobs = LocalBlobStore(shards.cluster.store)
    (file,) = [written(blobs, ticket, "00", {1: 1})]
    with pytest.raises(stelae.InvalidArgument, match="is not of this job"):
        store.commit_load(other.ticket, [file])
    with pytest.raises(stelae.Conflict, match="was given up"):
        store.commit_load(other.ticket, [])
    assert shards.values() == []


def test_a_shard_and_the_master_that_begin_again_have_what_was_loaded(shards: Shards) -> None:
    shards.load("nightly", 1)
    shards.cluster.end_master()
    shards.shards[1].shard.abandon()
    shards.shards[1].close()
    shards.begin(1)
    shards.cluster.begin_master()
    assert shards.values() == all_with(1)
    assert shards.load("next", 2)
    assert shards.values() == all_with(2)
