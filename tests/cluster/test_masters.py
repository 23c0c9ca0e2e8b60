"""Two masters as real processes: the one that leads is killed, and stopped and woken; tables are made all the while."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import stelae
from stelae.adapters.liveness import ProcessMark, send_signal
from tests.clusters import RealCluster, connected, kill, mark_of, real_cluster, refusal, run_stelae, until
from tests.effort import HANG_S

CALL_S = 15.0
"""Whoever has asked a master that is stopped then waits so long for its answer."""
GROUPS = [stelae.columns("g", {"v": "int64"})]


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
    """Makes and alters tables one after another, until it is told to stop; keeps the names of what was acknowledged."""

    def __init__(self, address: str) -> None:
        self.made: list[str] = []
        self.unknown: list[str] = []
        self.is_stopped = False
        self._address = address

    def run(self) -> None:
        with connected(self._address, CALL_S) as db:
            number = 0
            while not self.is_stopped:
                name = f"t{number}"
                number += 1
                try:
                    db.create_table(name, {"k": "string"}, GROUPS, splits=["m"]).put({"k": "a", "v": number})
                    db.alter_table(name, add={"g": {"w": "int64"}})
                    self.made.append(name)
                except (stelae.UnknownOutcome, stelae.Unavailable):
                    self.unknown.append(name)

    def wait_for_more(self, count: int) -> None:
        wanted = len(self.made) + count
        until(lambda: len(self.made) >= wanted)


def test_the_other_leads_when_one_is_killed_or_stopped(cluster: RealCluster) -> None:
    status = cluster.status()
    assert [each["leading"] for each in status["masters"]] == [True, False]
    assert status["connect"] == ",".join(each["address"] for each in status["masters"])
    maker = Maker(status["connect"])
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(maker.run)
        try:
            maker.wait_for_more(2)
            kill(mark_of(status["masters"][0]["pid"]))
            maker.wait_for_more(2)
            assert leading(cluster)["name"] == "master-2"

            cluster.up()  # the first one is back, and stands by
            stopped: ProcessMark = mark_of(leading(cluster)["pid"])
            assert leading(cluster)["name"] == "master-2"
            send_signal(stopped, signal.SIGSTOP)
            try:
                until(lambda: (leading(cluster) or {}).get("name") == "master-1")
                maker.wait_for_more(2)
            finally:
                send_signal(stopped, signal.SIGCONT)
            maker.wait_for_more(2)
            assert leading(cluster)["name"] == "master-1"
        finally:
            maker.is_stopped = True
        running.result(HANG_S)
    # Whoever knows only the one that stands by finds the one that leads.
    with stelae.connect(status["masters"][1]["address"], timeout_s=HANG_S) as db:
        there = set(db.tables())
        assert set(maker.made) <= there <= {*maker.made, *maker.unknown}
        for name in maker.made:
            assert db.table(name).get("a") == {"k": "a", "v": int(name[1:]) + 1, "w": None}
            db.table(name).put({"k": "z", "w": 1})
        assert db.check().problems == ()


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
