"""Nodes on racks: replicas lie on those that their zone names, and what cannot be placed is refused in words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import stelae
from stelae.launch.access import Access
from stelae.launch.looking import ClusterMasters
from stelae.launch.processes import LISTEN_DEFAULT, MasterOptions, MasterProcess, ShardOptions, ShardProcess
from tests.cli.running import run
from tests.effort import HANG_S

GROUPS = [stelae.columns("g", {"v": "int64"})]
RACKS = {"n1": "a", "n2": "a", "n3": "b", "n4": "c", "n5": ""}
"""By node."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a cluster with these nodes, as threads of this process."""
    root = tmp_path_factory.mktemp("racks")
    shared = (f"sqlite://{root}/metastore", str(root / "store"), LISTEN_DEFAULT)
    with ExitStack() as ends:
        master = MasterProcess(MasterOptions("m1", root / "m1", *shared))
        ends.callback(master.close)
        for name, rack in RACKS.items():
            options = ShardOptions(name, root / name, *shared, node=f"id-of-{name}", rack=rack)
            ends.callback(ShardProcess(options).close)
        yield master.address


@pytest.fixture
def db(address: str) -> Iterator[stelae.Database]:
    with stelae.connect(address, timeout_s=HANG_S) as database:
        yield database


def racks_of(table: stelae.Table) -> list[list[str]]:
    """Of each tablet, where its replicas are."""
    found = []
    for tablet in table.tablets():
        servers = (tablet.server, *(server for server, _ in tablet.replicas))
        found.append(sorted(RACKS[server.partition("/")[0]] for server in servers))
    return found


def test_replicas_are_on_different_racks_of_their_zone(db: stelae.Database) -> None:
    db.create_zone("spread", replicas=3, min_replicas=2, racks=["a", "b", "c"])
    table = db.create_table("spread", {"id": "int64"}, GROUPS, zone="spread", splits=[10, 20, 30])
    assert racks_of(table) == [["a", "b", "c"]] * 4
    table.put_many([{"id": key, "v": key} for key in range(40)])
    assert table.count() == 40


def test_one_replica_is_on_a_rack_of_its_zone_too(db: stelae.Database) -> None:
    db.create_zone("there", racks=["b"])
    table = db.create_table("there", {"id": "int64"}, GROUPS, zone="there", splits=[10, 20, 30])
    assert racks_of(table) == [["b"]] * 4


def test_what_cannot_be_placed_is_refused_in_words(address: str) -> None:
    """At once, and not as what may succeed later: no node is away."""
    with stelae.connect(address, timeout_s=HANG_S) as db:
        db.create_zone("nowhere", replicas=2, min_replicas=1, racks=["b", "d"])
        with pytest.raises(stelae.InvalidArgument, match=r"1 node on 'b', 0 nodes on 'd'.*stelae node --rack d"):
            db.create_table("nowhere", {"id": "int64"}, GROUPS, zone="nowhere")
        db.create_zone("many", replicas=9)
        with pytest.raises(stelae.InvalidArgument, match="there are 5 nodes: start more"):
            db.create_table("many", {"id": "int64"}, GROUPS, zone="many")


def test_racks_are_shown(address: str) -> None:
    shards = ClusterMasters(address, Access(), "", HANG_S).look().shards
    assert {each.node: each.rack for each in shards} == RACKS
    shown = run("cluster", "show", "--cluster", address).stdout
    assert "rack" in shown
    assert "n3/0\tb\t" in shown


def test_a_rack_has_a_name(tmp_path: Path) -> None:
    node = ("node", "--name", "n1", "--dir", tmp_path / "n1", "--metastore", f"sqlite://{tmp_path}/m")
    result = run(*node, "--rack", "a:b")
    assert result.exit_code == 1
    assert "--rack" in result.stderr
