"""Looking at a cluster of which one shard is away: what the other says is shown, and what is not known."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import stelae
from stelae.client.remote.cluster import routing
from tests.cli.running import run
from tests.cluster_of_threads import Cluster
from tests.clusters import until
from tests.effort import HANG_S

AWAY = "node-1/1"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """With three tables on both shards; the second shard is gone, and a fourth table is on the first alone."""
    with Cluster(tmp_path_factory.mktemp("looks"), shard_count=2) as cluster:
        with stelae.connect(cluster.address, timeout_s=HANG_S) as db:
            until(lambda: _are_spread(db, "a"))
            for name in ("a", "b", "c"):
                make_table(db, name).put_many([{"k": "b", "v": 1}, {"k": "z", "v": 2}])
        cluster.end_shard(1)
        with stelae.connect(cluster.address, timeout_s=HANG_S) as db:
            until(lambda: _is_made(db, "whole"))
        yield cluster


def make_table(db: stelae.Database, name: str, splits: tuple[str, ...] = ("m",)) -> stelae.Table:
    return db.create_table(name, {"k": "string"}, [stelae.columns("g", {"v": "int64"})], splits=list(splits))


def _are_spread(db: stelae.Database, name: str) -> bool:
    """Whether the master gives tablets to both shards: it does when it has heard of them."""
    found = {tablet.server for tablet in make_table(db, name).tablets()}
    db.drop_table(name)
    return len(found) == 2


def _is_made(db: stelae.Database, name: str) -> bool:
    """Whether it lies on the shard that is there: one that is made on the other waits for it."""
    with stelae.connect(db._session.cluster or "", timeout_s=1.0) as brief:
        try:
            make_table(brief, name, ()).put({"k": "a", "v": 1})
        except (stelae.Unavailable, stelae.UnknownOutcome):
            if name in brief.tables():
                brief.drop_table(name)
            return False
    return True


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard that does not answer is given up after a second, of the 30 that commands have."""
    monkeypatch.setattr(routing, "_SHARE_OF_TIME", 30)


def done(cluster: Cluster, *words: str, code: int = 0) -> tuple[str, str]:
    """What a command says on standard output, and to people."""
    result = run("--cluster", cluster.address, *words)
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout, result.stderr


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_all_tables_are_listed(cluster: Cluster) -> None:
    said, notes = done(cluster, "table", "list", "--json")
    found = {each["name"]: each for each in lines(said)}
    assert list(found) == ["a", "b", "c", "whole"]
    assert [found[name]["size_bytes"] for name in ("a", "b", "c")] == [None] * 3
    assert [each["tablets"] for each in found.values()] == [2, 2, 2, 1]
    assert found["whole"]["size_bytes"] > 0
    assert notes.count("does not answer") == 1
    assert AWAY in notes
    shown, _ = done(cluster, "table", "list")
    assert [line.split("\t")[-1] == "?" for line in shown.splitlines()[1:]] == [True, True, True, False]


def test_all_tablets_are_listed_with_those_that_have_them(cluster: Cluster) -> None:
    said, notes = done(cluster, "tablet", "list", "a", "--json")
    here, away = sorted(lines(said), key=lambda each: str(each["server"]))
    assert (here["server"], here["phase"]) == ("node-1/0", "running")
    assert (away["server"], away["phase"], away["tablet"], away["size_bytes"]) == (AWAY, "does not answer", None, None)
    assert {here["start_row"], away["start_row"]} == {"", away["start_row"] or here["start_row"]}
    assert sorted(each["start_key"] or ["first"] for each in (here, away)) == [["first"], ["m"]]
    assert AWAY in notes
    shown, _ = done(cluster, "tablet", "list", "a")
    (row,) = [line for line in shown.splitlines() if "does not answer" in line]
    assert AWAY in row
    assert row.count("?") == 4


def test_a_check_names_who_is_away_and_checks_the_rest(cluster: Cluster) -> None:
    said, _ = done(cluster, "check", "--json", code=1)
    found = json.loads(said)
    (problem,) = found["problems"]
    assert (problem["what"], problem["where"]) == ("shard", AWAY)
    assert "start its node again" in problem["words"]
    assert found["counts"]["tablets"] > 0


def test_numbers_are_those_of_the_others(cluster: Cluster) -> None:
    with stelae.connect(cluster.address) as db:
        found = db.metrics()
    assert found["shards_away"] == (AWAY,)
    assert found["tablets"] > 0


def test_python_waits_for_all_tablets(cluster: Cluster) -> None:
    """Whoever counts what is there gets all of it, or is told who is away."""
    with stelae.connect(cluster.address, timeout_s=1.0) as db:
        for look in (db.table("a").tablets, db.table("a").stats, lambda: db.describe("a")):
            with pytest.raises(stelae.Unavailable, match=AWAY):
                look()


def test_a_table_is_described_as_far_as_it_is_known_and_counted_whole(cluster: Cluster) -> None:
    said, notes = done(cluster, "table", "describe", "a", "--json")
    found = json.loads(said)
    assert (found["tablets"], found["size_bytes"], found["records"]) == (2, None, None)
    assert [each["phase"] for each in found["tablet_list"]].count("does not answer") == 1
    assert notes.count(AWAY) == 1
    assert "does not answer" in done(cluster, "table", "describe", "a")[0]
    _, told = done(cluster, "stats", "a", code=1)
    assert f"shard {AWAY} does not answer" in told


def test_a_table_is_dropped_without_waiting_for_its_size(cluster: Cluster) -> None:
    with stelae.connect(cluster.address, timeout_s=HANG_S) as db:
        assert "c" in db.tables()
        result = run("--cluster", cluster.address, "table", "drop", "c", "--yes")
        assert "dropped" in result.output, "or that it is, but that not all shards have followed yet"
        assert "c" not in db.tables()
    _, told = done(cluster, "table", "drop", "b", code=1)
    assert "--yes" in told
    assert "does not answer" in told
