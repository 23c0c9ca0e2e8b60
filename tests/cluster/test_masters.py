"""Two masters as real processes: the one that leads is killed, and stopped and woken; tables are made all the while."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import pytest

import stelae
from stelae.adapters.blobs.local import LocalBlobStore
from stelae.adapters.liveness import send_signal, wait_for_end
from stelae.launch.access import Access
from stelae.launch.attached import CLOCK
from stelae.launch.looking import ClusterMasters
from stelae.launch.machine.plan import known_plan
from stelae.launch.metastores import metastore_place, open_metastore
from stelae.ports.metastore import Revision
from stelae.registry.catalog.update_log import UPDATE_PREFIX
from stelae.registry.incarnations import SHARDS_PREFIX
from stelae.registry.leases.held import RENEWALS
from stelae.registry.leases.shard import is_lease, shard_lease_of
from stelae.registry.masters.guard import GUARD_KEY, guard_of
from stelae.registry.masters.lease import LEASE_KEY
from stelae.registry.tablet_records import TABLETS_PREFIX
from stelae.service.deadlines import Deadline
from stelae.service.operations import METRICS
from tests.cluster.driver import backend_of
from tests.cluster.test_replicas import COUNTER, Writer, check_rows
from tests.cluster.traps import TABLE_STEPS, WHENS, set_later, trapped_environment
from tests.clusters import RealCluster, connected, mark_of, real_cluster, refusal, run_stelae, until
from tests.effort import HANG_S, is_soak
from tests.tserver.loading import written

CALL_S = 15.0
"""Whoever has asked a master that is stopped then waits so long for its answer."""
GROUPS = [stelae.columns("g", {"v": "int64"})]
PAUSE_S = 0.2
"""After each thing that is done beside, all the time: the machine has something else to do, too."""
NODES, SHARDS = (3, 2) if is_soak() else (2, 1)
SPLITS = ("c", "m", "p")
LOADED, LOADED_KEYS = "loaded", (1, 11, 21, 31)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RealCluster]:
    with real_cluster(tmp_path / "c") as cluster:
        cluster.up("--masters", "2", "--metastore", "etcd")
        yield cluster


def leading(cluster: RealCluster) -> Any:
    """The one master that leads, as it is shown; None if none does now."""
    found = [each for each in cluster.status()["masters"] if each["leading"]]
    assert len(found) <= 1
    return found[0] if found else None


class Maker:
    """Loads into a table on many shards, makes and alters others, and drops every other one of these, while it is
    `working`; keeps what was acknowledged, and the names of tables of which it was not told what became of them."""

    def __init__(self, cluster: RealCluster) -> None:
        self.made: list[str] = []
        self.dropped: list[str] = []
        self.unknown: list[str] = []
        self.loaded = 0
        self._number = 0
        self._is_stopped = Event()
        self._running: Future[None] | None = None
        self._store = LocalBlobStore(cluster.directory / "store")
        self._address = cluster.status()["connect"]

    @contextmanager
    def working(self) -> Iterator[None]:
        self._is_stopped.clear()
        with ThreadPoolExecutor(1) as threads:
            self._running = threads.submit(self._run)
            try:
                yield
            finally:
                self._is_stopped.set()
            self._running.result(HANG_S)

    def _run(self) -> None:
        with connected(self._address, CALL_S) as db:
            while not self._is_stopped.wait(PAUSE_S):
                self._number += 1
                self._load(db, self._number)
                try:
                    self._make(db, f"t{self._number}", self._number)
                except (stelae.UnknownOutcome, stelae.Unavailable):
                    self.unknown.append(f"t{self._number}")

    def _load(self, db: stelae.Database, number: int) -> None:
        """As a driver does it that tries again until it is told that its job is done."""
        while True:
            try:
                backend = backend_of(db)
                ticket = backend.begin_load(backend.find(LOADED).id, f"load {number}")
                if ticket.committed is None:
                    files = [written(self._store, ticket, f"{key:02x}", {key: number}) for key in LOADED_KEYS]
                    backend.commit_load(ticket.ticket, files, replaces=True)
                found = [row["a"] for row in db.table(LOADED).scan()]
                break
            except (stelae.Unavailable, stelae.UnknownOutcome, stelae.Conflict):
                continue
        assert found == [number] * len(LOADED_KEYS), "a load is there whole, or not at all"
        self.loaded = number

    def _make(self, db: stelae.Database, name: str, number: int) -> None:
        db.create_table(name, {"k": "string"}, GROUPS, splits=list(SPLITS)).put({"k": "a", "v": number})
        db.alter_table(name, add={"g": {"w": "int64"}})
        if number % 2:
            db.drop_table(name)
            self.dropped.append(name)
        else:
            self.made.append(name)

    def wait_for_more(self, count: int) -> None:
        assert self._running is not None
        running, wanted = self._running, len(self.made) + len(self.dropped) + count
        until(lambda: len(self.made) + len(self.dropped) >= wanted or running.done())

    def check(self, db: stelae.Database) -> None:
        """What was acknowledged is so; of what nobody was told of each step has happened whole, or not at all."""
        there = set(db.tables()) - {LOADED, "t"}
        assert set(self.made) <= there <= {*self.made, *self.unknown}
        for name in there:
            table = db.table(name)
            assert len(table.tablets()) == len(SPLITS) + 1
            if name in self.made:
                assert table.get("a") == {"k": "a", "v": int(name[1:]), "w": None}
            for value, key in enumerate("adnz"):
                table.put({"k": key, "v": value})
                assert table.get(key, columns=["v"]) == {"k": key, "v": value}
        assert [row["a"] for row in db.table(LOADED).scan()] == [self.loaded] * len(LOADED_KEYS)


class Kept(msgspec.Struct, frozen=True):
    """What is written in the metastore at a revision: which master leads, and since when; when it renewed its lease;
    how often each shard has renewed its own; and all there is of tables and tablets."""

    revision: Revision
    leader: str
    guard: int
    led_since: Revision
    renewed_at: Revision
    renewals: dict[str, int]
    tables: dict[str, bytes]


def read_kept(cluster: RealCluster, at: Revision | None = None) -> Kept:
    """Now, or as it was then."""

    async def read() -> Kept:
        place = metastore_place(known_plan(cluster.directory).metastore)
        async with open_metastore(place, read_only=True) as store:
            shards = await store.range(SHARDS_PREFIX, revision=at)
            then = shards.revision if at is None else at
            lease, guard = await store.get(LEASE_KEY, then), await store.get(GUARD_KEY, then)
            assert lease is not None
            assert guard is not None
            tables = [await store.range(prefix, revision=then) for prefix in (TABLETS_PREFIX, UPDATE_PREFIX)]
            return Kept(
                then,
                guard_of(guard).master,
                guard_of(guard).number,
                guard.mod_revision,
                lease.mod_revision,
                {each.key: shard_lease_of(each).renewals for each in shards.entries if is_lease(each.key)},
                {each.key: each.value for some in tables for each in some.entries},
            )

    return asyncio.run(read())


def check_took_over_in_time(cluster: RealCluster, before: Kept) -> None:
    """After one change of guards the other master leads. Between the last renewal of the one before and that, no shard
    has renewed its lease more often than it does in the time of two leases: so it can be told on a busy machine."""
    now = read_kept(cluster)
    assert (now.leader != before.leader, now.guard) == (True, before.guard + 1)
    then = read_kept(cluster, now.led_since)
    last = read_kept(cluster, read_kept(cluster, Revision(now.led_since - 1)).renewed_at)
    assert last.leader == before.leader
    renewed = [count - last.renewals[key] for key, count in then.renewals.items()]
    print(f"{now.leader} leads; since {before.leader} renewed its lease, shards have renewed theirs {renewed} times")
    assert len(renewed) == NODES * SHARDS
    assert all(0 <= count <= 2 * RENEWALS + 1 for count in renewed), renewed


def other_leads(cluster: RealCluster, before: Kept) -> bool:
    return (leading(cluster) or {}).get("name") not in (None, before.leader)


def kill_leader(cluster: RealCluster, traps: Path, maker: Maker, step: str, when: str) -> None:
    """With -9, in that step. The other one leads, and brings to its end what was begun; the first one comes back."""
    with maker.working():
        maker.wait_for_more(1)
        before, mark = read_kept(cluster), mark_of(leading(cluster)["pid"])
        assert until(set_later(traps, step, when, signal.SIGKILL)) == mark.pid
        assert wait_for_end(mark, HANG_S)
        until(lambda: other_leads(cluster, before))
        check_took_over_in_time(cluster, before)
        maker.wait_for_more(2)
        cluster.up()
        maker.wait_for_more(1)


def stop_leader(cluster: RealCluster, db: stelae.Database, traps: Path, maker: Maker, step: str, when: str) -> None:
    """As by SIGSTOP, in that step, until the other one leads and everything is in order. Then it wakes in the midst of
    what it was doing: it finds that it leads no more, and when it has ended nothing of tables or tablets, and of who
    leads, is other than it was."""
    before, mark, address = read_kept(cluster), mark_of(leading(cluster)["pid"]), leading(cluster)["address"]
    try:
        with maker.working():
            maker.wait_for_more(1)
            assert until(set_later(traps, step, when, signal.SIGSTOP)) == mark.pid
            until(lambda: other_leads(cluster, before))
            check_took_over_in_time(cluster, before)
            maker.wait_for_more(2)
        until(lambda: not db.check().problems)
        asleep = read_kept(cluster)
    finally:
        send_signal(mark, signal.SIGCONT)
    until(lambda: not leads(address))
    send_signal(mark, signal.SIGTERM)  # what it is at is done or refused before it ends
    assert wait_for_end(mark, HANG_S)
    awake = read_kept(cluster)
    assert (awake.leader, awake.guard, awake.tables) == (asleep.leader, asleep.guard, asleep.tables)
    cluster.up()


def leads(address: str) -> bool:
    """As the master itself says."""
    masters = ClusterMasters(address, Access(), "", HANG_S)
    return bool(masters._ask([address], Deadline(CLOCK, HANG_S), METRICS)["leading"])


STEPS = [(step, when) for steps in TABLE_STEPS.values() for step in steps for when in WHENS]
FEW = {signal.SIGKILL: [("_make", "after")], signal.SIGSTOP: [("ask", "before")]}
"""In a plain run: a table is made, and no shard was asked for its tablets; it is altered, and no shard was told."""


def test_the_leading_master_is_killed_or_stopped_in_the_midst_of_changes(tmp_path: Path) -> None:
    traps = tmp_path / "traps"
    with real_cluster(tmp_path / "c", trapped_environment(traps)) as cluster:
        size = ("--masters", "2", "--nodes", str(NODES), "--shards", str(SHARDS))
        status = cluster.up(*size, "--metastore", "etcd")
        assert [each["leading"] for each in status["masters"]] == [True, False]
        assert status["connect"] == ",".join(each["address"] for each in status["masters"])
        with stelae.connect(status["connect"], timeout_s=HANG_S) as db:
            table = db.create_table("t", {"k": "int64"}, GROUPS, splits=[-999_990, 0, 600, 1_010, 1_020])
            loaded = db.create_table(LOADED, {"id": "int64"}, [stelae.columns("g", {"a": "int64"})], splits=[5, 15, 25])
            assert len({each.server for each in table.tablets()}) == NODES * SHARDS
            assert len({each.server for each in loaded.tablets()}) == min(NODES * SHARDS, len(LOADED_KEYS))
            maker, writers = Maker(cluster), [Writer(cluster, 1_000, COUNTER, pause_s=PAUSE_S)]
            writers.append(Writer(cluster, -1_000_000, pause_s=PAUSE_S))
            for step, when in STEPS if is_soak() else FEW[signal.SIGKILL]:
                kill_leader(cluster, traps, maker, step, when)
            for step, when in STEPS if is_soak() else FEW[signal.SIGSTOP]:
                stop_leader(cluster, db, traps, maker, step, when)
            with maker.working():
                maker.wait_for_more(1)
            for writer in writers:
                writer.wait_for(5)
                writer.end()
            maker.check(db)
            check_rows(table, writers[0])
            assert {row["k"] for row in table.scan(stelae.col("k") < 0)} == set(writers[1].acknowledged)
            until(lambda: not db.check().problems)


def test_one_that_is_stopped_holds_up_nobody_once_the_other_leads(cluster: RealCluster) -> None:
    """Neither programs that it is named first to, nor those that asked it last, nor those who look at the cluster."""
    first, second = (each["address"] for each in cluster.status()["masters"])
    named = f"{first},{second}"
    with stelae.connect(named, timeout_s=HANG_S) as db:
        for name in ("opened", "unopened"):
            db.create_table(name, {"k": "string"}, GROUPS)
    with stelae.connect(named, timeout_s=HANG_S) as old:
        opened = old.table("opened")  # from the master that leads; nobody was asked where its rows are
        stopped = mark_of(leading(cluster)["pid"])
        send_signal(stopped, signal.SIGSTOP)
        try:
            until(lambda: (leading(cluster) or {}).get("name") == "master-2")
            opened.put({"k": "a", "v": 1})
            old.table("unopened").put({"k": "a", "v": 2})
            with stelae.connect(named, timeout_s=HANG_S) as new:
                assert new.table("opened").get("a") == {"k": "a", "v": 1}
                new.create_table("made", {"k": "string"}, GROUPS)
            listed = run_stelae("table", "list", "--json", "--cluster", named).stdout.splitlines()
            assert [json.loads(each)["name"] for each in listed] == ["made", "opened", "unopened"]
            shown = json.loads(run_stelae("cluster", "show", "--cluster", named, "--json").stdout)
            assert (shown["asked"], shown["leader"]) == ("master-2", "master-2")
        finally:
            send_signal(stopped, signal.SIGCONT)


def test_one_that_is_asked_to_stop_is_followed_at_once_and_more_may_be_added(cluster: RealCluster) -> None:
    with stelae.connect(cluster.status()["connect"], timeout_s=HANG_S) as db:
        first = mark_of(leading(cluster)["pid"])
        send_signal(first, signal.SIGTERM)
        until(lambda: (leading(cluster) or {}).get("name") == "master-2")
        db.create_table("t", {"k": "string"}, GROUPS).put({"k": "a", "v": 1})
        grown = cluster.up("--masters", "3")
        assert [each["leading"] for each in grown["masters"]] == [False, True, False]
        assert all(each["alive"] for each in grown["masters"])
        assert db.table("t").get("a") == {"k": "a", "v": 1}
    assert "the cluster has 3, and they stay" in refusal("up", "--dir", cluster.directory, "--masters", "2", "--detach")
    assert "1 to 7" in refusal("up", "--dir", cluster.directory, "--masters", "0", "--detach")
