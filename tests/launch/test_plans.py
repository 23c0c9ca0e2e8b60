"""What a cluster on one machine consists of: how the plan begins, and how it grows."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stelae.launch.machine.plan import (
    ClusterPlan,
    Wishes,
    check_size,
    grown,
    known_plan,
    measured,
    new_plan,
    read_plan,
    write_plan,
)
from stelae.model.errors import InvalidArgument


def metrics_ports(plan: ClusterPlan) -> list[int]:
    """All of them, in the order of the processes."""
    of_masters = [master.metrics_port for master in plan.masters]
    return of_masters + [node.metrics_port + number for node in plan.nodes for number in range(node.shards)]


def test_a_new_one(tmp_path: Path) -> None:
    plan = new_plan(Wishes(tmp_path, masters=2, nodes=3, shards=2, port=0), tmp_path)
    assert [master.name for master in plan.masters] == ["master-1", "master-2"]
    assert [(node.name, node.shards) for node in plan.nodes] == [("node-1", 2), ("node-2", 2), ("node-3", 2)]
    assert {each.metrics_port for each in plan.own} == {0}
    plain = new_plan(Wishes(tmp_path, port=0), tmp_path)
    assert [len(plain.masters), [node.shards for node in plain.nodes]] == [1, [1]]


def test_it_is_read_as_it_was_written_also_by_earlier_releases(tmp_path: Path) -> None:
    plan = new_plan(Wishes(tmp_path, nodes=2, shards=3, port=0, metrics=True), tmp_path)
    write_plan(tmp_path, plan)
    assert known_plan(tmp_path) == plan
    (tmp_path / "cluster.json").write_text(
        '{"metastore": "sqlite:///m", "store": "file:///s", "masters": [{"name": "master-1", "address": '
        '"127.0.0.1:7100", "process": null}], "nodes": [{"name": "node-1", "shards": 1, "process": null}], "etcd": '
        'null, "format": 1}'
    )
    before = read_plan(tmp_path)
    assert before is not None
    assert grown(Wishes(tmp_path), before) is before
    assert [node.shards for node in grown(Wishes(tmp_path, nodes=2, shards=2), before).nodes] == [2, 2]


def test_it_grows_and_never_shrinks(tmp_path: Path) -> None:
    plan = new_plan(Wishes(tmp_path, nodes=2, shards=2, port=0), tmp_path)
    assert grown(Wishes(tmp_path), plan) is plan
    assert grown(Wishes(tmp_path, masters=1, nodes=2, shards=2), plan) is plan
    more = grown(Wishes(tmp_path, masters=2, nodes=3, shards=3), plan)
    assert [len(more.masters), [node.shards for node in more.nodes]] == [2, [3, 3, 3]]
    assert more.masters[0] == plan.masters[0]
    for wishes, words in (
        (Wishes(tmp_path, nodes=1), "--nodes 1: the cluster has 2, and they stay"),
        (Wishes(tmp_path, shards=1), "--shards 1: the cluster has 2, and they stay"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            grown(wishes, plan)


def test_each_process_has_a_port_of_its_own_for_metrics(tmp_path: Path) -> None:
    plan = new_plan(Wishes(tmp_path, masters=2, nodes=2, shards=3, port=0, metrics=True), tmp_path)
    ports = metrics_ports(plan)
    assert len(set(ports)) == len(ports) == 8
    assert measured(plan) is plan
    assert grown(Wishes(tmp_path, metrics=True), plan) is plan

    more = grown(Wishes(tmp_path, nodes=3, shards=4), plan)
    assert len(set(metrics_ports(more))) == 2 + 3 * 4
    assert metrics_ports(more)[:2] == ports[:2]
    assert 0 not in {each.metrics_port for each in more.own}

    plain = msgspec.structs.replace(plan, masters=plan.masters[:1], nodes=())
    assert measured(plain) is plain


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"masters": 0}, "--masters 0: a cluster has 1 to 7 masters"),
        ({"nodes": 0}, "--nodes 0: a cluster on one machine has 1 to 64 nodes"),
        ({"shards": 65}, "--shards 65: a node runs 1 to 64 shards"),
        ({"replicas": 17}, "--replicas 17: a row has 1 to 16 replicas"),
    ],
)
def test_sizes_that_cannot_be(tmp_path: Path, wishes: dict[str, int], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        check_size(Wishes(tmp_path, **wishes))  # type: ignore[arg-type]
