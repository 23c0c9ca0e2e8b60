"""`stelae master` and `stelae node` by themselves: what they say, and how they end."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from stelae.adapters.liveness import ProcessMark, is_alive, wait_for_end
from tests.clusters import Background, connected, free_port, mark_of, refusal, refused, until
from tests.effort import HANG_S


def test_a_master_and_a_node_serve_until_they_are_asked_to_stop(tmp_path: Path) -> None:
    shared = ("--metastore", f"sqlite://{tmp_path}/meta", "--store", tmp_path / "data", "--json")
    address = f"127.0.0.1:{free_port()}"
    master = ("master", "--name", "m1", "--dir", tmp_path / "m1", "--listen", address, *shared)
    node = ("node", "--name", "n1", "--dir", tmp_path / "n1", *shared)
    with Background(*master, errors=tmp_path / "m.log") as leading:
        assert leading.line() == {"kind": "master", "name": "m1", "address": address, "pid": leading.process.pid}
        with Background(*node, errors=tmp_path / "n.log") as serving:
            said = serving.line()
            (shard,) = said.pop("shards")
            assert said == {"kind": "node", "name": "n1", "pid": serving.process.pid}
            assert shard["address"].startswith("127.0.0.1:")
            shard_mark = mark_of(shard["pid"])
            with connected(address, HANG_S) as db:
                assert db.tables() == []
            assert "n1 is in use: process" in refusal(*node)
            assert "m1 is in use: process" in refusal(*master)
            assert "the cluster has another node that is called 'n1'" in refusal(
                "node", "--name", "n1", "--dir", tmp_path / "n2", *shared
            )
            assert serving.stop(signal.SIGTERM) == 0
            assert wait_for_end(shard_mark, 0)
        assert leading.stop(signal.SIGINT) == 0
    for log in ("m.log", "n.log"):
        assert "Traceback" not in (tmp_path / log).read_text()
    assert "is of the node 'n1', not of 'n3'" in refusal("node", "--name", "n3", "--dir", tmp_path / "n1", *shared)


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    """A shard that does not stop, because it is held: with the second signal the node ends it."""
    shared = ("--metastore", f"sqlite://{tmp_path}/meta", "--store", tmp_path / "data", "--json")
    with Background("node", "--name", "n1", "--dir", tmp_path / "n1", *shared, errors=tmp_path / "n.log") as node:
        shard = mark_of(node.line()["shards"][0]["pid"])
        os.kill(shard.pid, signal.SIGSTOP)
        os.kill(node.process.pid, signal.SIGTERM)
        until(lambda: "is asked to stop" in (tmp_path / "n.log").read_text())
        assert is_alive(shard)
        assert node.stop(signal.SIGTERM) == 128 + signal.SIGTERM
        assert wait_for_end(shard, HANG_S)


def test_a_master_that_is_asked_to_stop_while_it_starts(tmp_path: Path) -> None:
    """It waits for an etcd that nobody runs."""
    words = ("--metastore", f"etcd://127.0.0.1:{free_port()}", "--store", tmp_path / "data", "--listen", "127.0.0.1:0")
    with Background("master", "--name", "m1", "--dir", tmp_path / "m1", *words, errors=tmp_path / "m.log") as master:
        until(lambda: (tmp_path / "m1" / "owner").exists() and (tmp_path / "m1" / "owner").read_text())
        code = master.stop(signal.SIGTERM)
    said = (tmp_path / "m.log").read_text()
    assert code == 0, said
    assert "Traceback" not in said


def test_a_node_waits_for_a_metastore_that_is_not_there_yet(tmp_path: Path) -> None:
    words = ("--metastore", f"etcd://127.0.0.1:{free_port()}", "--store", tmp_path / "data")
    with Background("node", "--name", "n1", "--dir", tmp_path / "n1", *words, errors=tmp_path / "n.log") as node:
        until(lambda: "it is started again" in (tmp_path / "n.log").read_text())
        assert node.stop(signal.SIGTERM) == 0
    assert "nobody listens" in (tmp_path / "n.log").read_text() or "etcd" in (tmp_path / "n.log").read_text()


def test_what_a_node_cannot_be(tmp_path: Path) -> None:
    shared = ("--metastore", f"sqlite://{tmp_path}/meta", "--store", tmp_path / "data")
    node = ("node", "--name", "n1", "--dir", tmp_path / "n1", *shared)
    assert "name a host alone" in refused(*node, "--listen", "127.0.0.1:7201")
    assert "is not where a metastore is" in refusal(
        "node", "--name", "n1", "--dir", tmp_path / "n1", "--metastore", "nowhere"
    )
    (tmp_path / "file").write_text("")
    assert "is a file" in refused("node", "--name", "n1", "--dir", tmp_path / "file", *shared)
    assert "is not host:port" in refusal(
        "master", "--name", "m", "--dir", tmp_path / "m", "--listen", "somewhere", *shared
    )
    new = ("master", "--name", "m", "--dir", tmp_path / "m", "--listen", "127.0.0.1:0")
    assert "say where a new cluster keeps its fragments" in refusal(*new, "--metastore", f"sqlite://{tmp_path}/empty")


def test_the_mark_of_a_process_tells_it_from_others() -> None:
    own = mark_of(os.getpid())
    assert is_alive(own)
    assert not is_alive(ProcessMark(own.pid, own.began + "0"))
