"""A master and a shard as processes of a cluster: how they begin and end beside each other, and what is refused."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from msgspec.structs import replace

import stelae
from stelae.launch.metastores import metastore_place, open_metastore
from stelae.launch.processes import MasterOptions, MasterProcess, ShardOptions, ShardProcess
from stelae.registry.shard_records import read_log_mark
from tests.cluster_of_threads import NODE, Cluster
from tests.effort import HANG_S

SOON_S = 0.3
GROUPS = [stelae.columns("g", {"v": "int64"})]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster") as running:
        yield running


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[Cluster]:
    """One of which nothing has begun."""
    with Cluster(tmp_path / "cluster", begun=False) as made:
        yield made


@pytest.fixture
def db(cluster: Cluster) -> Iterator[stelae.Database]:
    with stelae.connect(cluster.address, timeout_s=HANG_S) as connected:
        yield connected


@pytest.fixture
def table(db: stelae.Database) -> stelae.Table:
    made = db.create_table("t", {"k": "string"}, GROUPS, splits=["m"])
    made.put_many([{"k": key, "v": number} for number, key in enumerate("abxyz")])
    return made


def in_a_hurry(db: stelae.Database) -> stelae.Database:
    db._session.patience = replace(db._session.patience, timeout_s=SOON_S)
    return db


def test_a_master_that_stands_by_says_who_leads_and_follows_it(cluster: Cluster, db: stelae.Database) -> None:
    db.create_table("t", {"k": "string"}, GROUPS)
    second = MasterProcess(
        MasterOptions("master-2", cluster.root / "master-2", cluster.metastore, str(cluster.store), "127.0.0.1:0")
    )
    try:
        assert second.master.guard is None
        with pytest.raises(stelae.Unavailable, match="master master-2 stands by: master-1 led last"):
            second.master.names()
        with stelae.connect(second.address, timeout_s=HANG_S) as other:
            other.create_table("u", {"k": "string"}, GROUPS).put({"k": "a", "v": 1})
            cluster.end_master()
            other.alter_table("u", add={"g": {"w": "int64"}})
            assert guard_of(second) == 2
            other.create_table("w", {"k": "string"}, GROUPS).put({"k": "a", "v": 1})
            assert other.tables() == ["t", "u", "w"]
    finally:
        second.close()


# -- beginning and ending


@pytest.mark.parametrize("first", ["master", "shard"])
def test_they_begin_in_either_order(stopped: Cluster, first: str) -> None:
    begin: dict[str, Callable[[], object]] = {"master": stopped.begin_master, "shard": stopped.begin_shard}
    begin.pop(first)()
    begin.popitem()[1]()
    with stelae.connect(stopped.address, timeout_s=HANG_S) as db:
        made = db.create_table("t", {"k": "string"}, GROUPS)
        made.put({"k": "a", "v": 1})
        assert made.get("a") == {"k": "a", "v": 1}


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_a_shard_begins_again_beside_its_master(cluster: Cluster, table: stelae.Table, how: str) -> None:
    table.put({"k": "b", "v": 7})
    assert cluster.shard is not None
    before = cluster.shard.life
    cluster.end_shard() if how == "closed" else cluster.abandon_shard()
    after = cluster.begin_shard().life
    assert (after.incarnation, after.log) == (before.incarnation + 1, before.log)
    assert [row["v"] for row in table.scan()] == [0, 7, 2, 3, 4]
    table.split("c")
    assert len(table.tablets()) == 3


def test_a_shard_that_another_process_became_does_not_say_that_the_log_ended(
    cluster: Cluster, table: stelae.Table
) -> None:
    """Its directory was copied, and started elsewhere: both have the same log, and the second goes on with it."""
    first = cluster.shard
    assert first is not None
    shutil.copytree(cluster.root / "node-1" / "shard-0", cluster.root / "node-1" / "copied", ignore=_no_owner)
    assert cluster.begin_shard("copied").life.incarnation == first.life.incarnation + 1
    first.close()
    assert not log_is_said_to_have_ended(cluster)
    table.put({"k": "b", "v": 8})
    cluster.abandon_shard()
    cluster.begin_shard("copied")
    assert [row["v"] for row in table.scan()] == [0, 8, 2, 3, 4]


def log_is_said_to_have_ended(cluster: Cluster) -> bool:
    async def look() -> bool:
        async with open_metastore(metastore_place(cluster.metastore), read_only=True) as store:
            return await read_log_mark(store) is not None

    return asyncio.run(look())


def _no_owner(_: str, names: list[str]) -> list[str]:
    return [name for name in names if name == "owner"]


def test_a_client_waits_for_a_shard_that_begins_again(cluster: Cluster, table: stelae.Table) -> None:
    cluster.end_shard()
    with ThreadPoolExecutor(3) as pool:
        calls: list[Future[Any]] = [
            pool.submit(table.get, "a"),
            pool.submit(table.put, {"k": "a", "v": 9}),
            pool.submit(table.count),
        ]
        cluster.begin_shard()
        for call in calls:
            call.result(HANG_S)
    assert table.get("a") == {"k": "a", "v": 9}


def guard_of(process: MasterProcess) -> int:
    guard = process.master.guard
    assert guard is not None
    return guard.number


def test_rows_are_served_while_no_master_is_there(cluster: Cluster, db: stelae.Database, table: stelae.Table) -> None:
    assert cluster.master is not None
    before = guard_of(cluster.master)
    cluster.end_master()
    table.put({"k": "a", "v": 5})
    assert table.get("a") == {"k": "a", "v": 5}
    assert table.count() == 5
    assert guard_of(cluster.begin_master()) == before + 1
    db.alter_table("t", add={"g": {"w": "int64"}})
    table.put({"k": "a", "w": 6})
    assert table.get("a") == {"k": "a", "v": 5, "w": 6}


def test_all_of_it_begins_again(cluster: Cluster, table: stelae.Table) -> None:
    cluster.close()
    cluster.begin_shard()
    cluster.begin_master()
    assert table.count() == 5
    with stelae.connect(cluster.address, timeout_s=HANG_S) as db:
        assert db.tables() == ["t"]
        assert db.check().problems == ()


# -- tables


def test_tables_change(db: stelae.Database, table: stelae.Table) -> None:
    db.alter_table("t", add={"g": {"w": "string"}}, rename="u")
    table.put({"k": "a", "w": "x"})
    assert table.get("a") == {"k": "a", "v": 0, "w": "x"}
    table.split("c")
    assert [tablet.start for tablet in table.tablets()] == [b"", b"c", b"m"]
    assert {tablet.server for tablet in table.tablets()} == {"node-1/0"}
    backend: Any = db._session.backend
    backend.join(backend.find("u").id, b"c")
    assert len(table.tablets()) == 2
    db.drop_table("u")
    with pytest.raises(stelae.NotFound, match="dropped"):
        table.get("a")
    db.recall_table("u", "t")
    assert db.table("t").count() == 5
    db.truncate_table("t")
    assert db.table("t").count() == 0


def test_a_table_is_made_once_though_its_shard_begins_later(
    cluster: Cluster, db: stelae.Database, table: stelae.Table
) -> None:
    """The catalog has it at once; whoever asked for it is not told that it is there already."""
    cluster.end_shard()
    with ThreadPoolExecutor(1) as pool:
        making = pool.submit(db.create_table, "u", {"k": "string"}, GROUPS)
        while "u" not in db.tables():
            assert not making.done()
        cluster.begin_shard()
        making.result(HANG_S).put({"k": "a"})
    assert db.tables() == ["t", "u"]


# -- checks and numbers


def test_a_check_while_tables_change(cluster: Cluster, db: stelae.Database, table: stelae.Table) -> None:
    ended = Event()

    def change() -> None:
        try:
            for number in range(6):
                name = f"more{number}"
                db.create_table(name, {"k": "string"}, GROUPS, splits=["m"]).put({"k": "a"})
                db.table(name).split("c")
                db.drop_table(name)
        finally:
            ended.set()

    with ThreadPoolExecutor(1) as pool, stelae.connect(cluster.address, timeout_s=HANG_S) as looking:
        changing = pool.submit(change)
        while not ended.is_set():
            assert looking.check().problems == ()
        changing.result()
    assert db.check().counts["tables"] == 1


def test_numbers(db: stelae.Database, table: stelae.Table) -> None:
    before = db.metrics()
    assert before["tables"] == 1
    db.create_table("u", {"k": "string"}, GROUPS, splits=["a", "b"])
    after = db.metrics()
    assert (after["tables"], after["tablets"]) == (2, before["tablets"] + 3)
    table.flush()
    assert table.stats().file_bytes > 0


# -- who is not there


def test_what_is_erased_for_good_is_in_no_file(cluster: Cluster, db: stelae.Database) -> None:
    """Shards delete nothing by themselves; their master does, in this call."""
    table = db.create_table("secrets", {"k": "string"}, [stelae.columns("g", {"v": "string"}, compression="none")])
    table.put_many([{"k": key, "v": f"kept-{key}" if key < "x" else f"treasure-{key}"} for key in "abxyz"])
    table.flush()
    table.erase_range(start="x")
    assert _found(cluster.root, b"treasure-")
    table.compact(erase_now=True)
    assert _found(cluster.root, b"treasure-") == []
    assert _found(cluster.root, b"kept-")
    assert [row["v"] for row in table.scan()] == ["kept-a", "kept-b"]
    assert db.check().problems == ()


def _found(root: Path, what: bytes) -> list[str]:
    """The files below that contain it."""
    return [file.name for file in root.rglob("*") if file.is_file() and what in file.read_bytes()]


def test_a_master_without_a_shard_says_so(stopped: Cluster) -> None:
    stopped.begin_master()
    with pytest.raises(stelae.Unavailable, match="no shard of the cluster has been started yet"):
        stelae.connect(stopped.address, timeout_s=SOON_S)


def test_nobody_is_there(stopped: Cluster) -> None:
    stopped.begin_master()
    stopped.end_master()
    with pytest.raises(stelae.Unavailable, match=r"cannot be reached: .*nobody listens there"):
        stelae.connect(stopped.address, timeout_s=SOON_S)


CALLS: dict[str, Callable[[stelae.Database, stelae.Table], object]] = {
    "get": lambda _, table: table.get("a"),
    "put": lambda _, table: table.put({"k": "a", "v": 2}),
    "scan": lambda _, table: list(table.scan()),
    "get_many": lambda _, table: table.get_many(["a", "x"]),
    "snapshot": lambda db, _: db.snapshot(),
    "flush": lambda _, table: table.flush(),
    "split": lambda _, table: table.split("c"),
    "check": lambda db, _: db.check(),
    "metrics": lambda db, _: db.metrics(),
}


@pytest.mark.parametrize("gone", ["shard", "both"])
def test_who_is_gone_is_named_within_the_deadline(
    cluster: Cluster, db: stelae.Database, table: stelae.Table, gone: str
) -> None:
    cluster.end_shard()
    if gone == "both":
        cluster.end_master()
    in_a_hurry(db)
    for name, call in CALLS.items():
        # What a master was asked to change when the time was nearly up may yet happen, and then nothing else is said.
        told = (stelae.Unavailable, stelae.UnknownOutcome) if name == "split" else stelae.Unavailable
        with pytest.raises(
            told, match=r"nobody listens there|it does not answer|waiting for it took|may or may not have happened"
        ):
            call(db, table)
    cluster.begin_shard()
    if gone == "both":
        cluster.begin_master()
    db._session.patience = replace(db._session.patience, timeout_s=HANG_S)
    assert table.get("a") == {"k": "a", "v": 0}


# -- who may not be there


def test_a_shard_is_not_served_from_another_log(cluster: Cluster, table: stelae.Table) -> None:
    """As after a disk was swapped: the rows that are in the log would be gone."""
    cluster.end_shard()
    with pytest.raises(stelae.Corruption, match=r"keeps its log .* in another directory .* Nothing was changed"):
        cluster.begin_shard("another")
    cluster.begin_shard()
    assert table.count() == 5


def test_a_shard_that_has_nothing_alone_may_lose_its_log(cluster: Cluster) -> None:
    """What it kept of the log that is gone is forgotten once; after that it is a shard like any other."""
    assert cluster.shard is not None
    first = cluster.shard.life
    cluster.end_shard()
    second = cluster.begin_shard("another").life
    assert second.log != first.log
    with stelae.connect(cluster.address, timeout_s=HANG_S) as db:
        made = db.create_table("t", {"k": "string"}, GROUPS)
        made.put({"k": "a", "v": 1})
        cluster.abandon_shard()
        third = cluster.begin_shard("another").life
        assert (third.log, third.incarnation) == (second.log, second.incarnation + 1)
        assert made.get("a") == {"k": "a", "v": 1}
        cluster.end_shard()
        with pytest.raises(stelae.Corruption, match="keeps its log"):
            cluster.begin_shard()
        cluster.begin_shard("another")
        assert made.count() == 1


def test_a_directory_is_of_one_shard(cluster: Cluster) -> None:
    cluster.end_shard()
    with pytest.raises(stelae.Corruption, match="was it copied or moved"):
        cluster.begin_shard(node="f" * 16)


def test_a_directory_is_of_one_process(cluster: Cluster, tmp_path: Path) -> None:
    root = cluster.root
    with pytest.raises(stelae.AlreadyExists, match="is in use"):
        ShardProcess(ShardOptions("node-1", root / "node-1" / "shard-0", cluster.metastore, node=NODE))
    with pytest.raises(stelae.AlreadyExists, match="is in use"):
        MasterProcess(MasterOptions("master-1", root / "master-1", cluster.metastore))


def test_a_new_cluster_is_told_where_its_fragments_go(stopped: Cluster) -> None:
    with pytest.raises(stelae.InvalidArgument, match="--store DIR or s3"):
        MasterProcess(MasterOptions("master-1", stopped.root / "master-1", stopped.metastore))
    stopped.begin_master()
    options = ShardOptions("n", stopped.root / "n", stopped.metastore, str(stopped.root / "elsewhere"), node=NODE)
    with pytest.raises(stelae.InvalidArgument, match="the cluster keeps its fragments in"):
        ShardProcess(options)


def test_a_cluster_s_metastore_is_no_store_to_open(cluster: Cluster, table: stelae.Table) -> None:
    for read_only in (False, True):
        with pytest.raises(stelae.InvalidArgument, match=r"a cluster's, .* stelae\.connect"):
            stelae.open(cluster.root / "metastore", read_only=read_only)
    assert table.count() == 5


def test_a_store_s_metastore_is_no_cluster_s(tmp_path: Path) -> None:
    with stelae.open(tmp_path / "store") as db:
        db.create_table("t", {"k": "string"}, GROUPS)
    url = f"sqlite://{tmp_path}/store"
    with pytest.raises(stelae.InvalidArgument, match="no cluster can serve"):
        MasterProcess(MasterOptions("m", tmp_path / "m", url, str(tmp_path / "fragments")))
    with stelae.open(tmp_path / "store") as db:
        assert db.tables() == ["t"]


# -- forks

FORKS = """
import os, sys, stelae

db = stelae.connect(sys.argv[1])
table = db.create_table("t", {"k": "string"}, [stelae.columns("g", {"v": "int64"})])
snapshot = db.snapshot()
rows = iter(table.scan())
table.put({"k": "parent", "v": 1})
child = os.fork()
if not child:
    status = 1
    try:
        assert table.get("parent")["v"] == 1
        table.put({"k": "child", "v": 2})
        assert {row["k"] for row in table.scan()} >= {"child", "parent"}
        db.create_table("u", {"k": "string"}, [stelae.cells("c")])
        with db.snapshot() as at:
            assert table.count(prefix="child", at=at) == 1
        db.close()
        status = 0
    except BaseException as error:
        print("child:", repr(error), file=sys.stderr, flush=True)
    finally:
        os._exit(status)
for number in range(50):
    table.put({"k": "beside", "v": number})
    assert table.get("beside")["v"] == number
assert os.waitpid(child, 0)[1] == 0
assert table.get("child")["v"] == 2
assert db.tables() == ["t", "u"]
assert table.count(at=snapshot) == 0
snapshot.close()
db.close()
"""


def test_a_fork_has_connections_of_its_own(cluster: Cluster) -> None:
    command = [sys.executable, "-W", "error", "-c", FORKS, cluster.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
