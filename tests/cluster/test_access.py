"""The token and TLS of a cluster of real processes, by options, by the environment and by a file."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import pytest

import stelae
from tests.certificates import Authority
from tests.cli.running import run
from tests.clusters import Background, free_port, real_cluster, refusal, refused
from tests.effort import HANG_S

TOKEN = "5a5b5c5d5e5f6061"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    return file


def test_servers_that_are_told_by_options(tmp_path: Path, token_file: Path) -> None:
    tls = Authority(tmp_path).files("server", "127.0.0.1")
    assert tls.authority is not None
    assert tls.certificate is not None
    assert tls.key is not None
    files = ("--tls-ca", tls.authority, "--tls-cert", tls.certificate, "--tls-key", tls.key, "--tls-mutual")
    shared = ("--metastore", f"sqlite://{tmp_path}/meta", "--store", tmp_path / "data", "--json")
    access = ("--token-file", token_file, *files)
    address = f"127.0.0.1:{free_port()}"
    with (
        Background("master", "--name", "m1", "--dir", tmp_path / "m1", "--listen", address, *shared, *access) as master,
        Background("node", "--name", "n1", "--dir", tmp_path / "n1", *shared, *access) as node,
    ):
        master.line()
        (shard,) = node.line()["shards"]
        mine = {"ca": tls.authority, "cert": tls.certificate, "key": tls.key}
        with stelae.connect(address, token=TOKEN, tls=mine, timeout_s=HANG_S) as db:
            table = db.create_table("t", {"id": "int64"}, [stelae.columns("p", {"v": "int64"})])
            table.put({"id": 1, "v": 2})
            assert table.get(1) == {"id": 1, "v": 2}
        for wrong in ({"token": TOKEN}, {"tls": mine}, {"token": TOKEN, "tls": {"ca": tls.authority}}):
            with pytest.raises(stelae.PermissionDenied):
                stelae.connect(address, **wrong)
        for pid in (master.process.pid, node.process.pid, shard["pid"]):
            words = Path(f"/proc/{pid}/cmdline")
            assert not words.exists() or TOKEN.encode() not in words.read_bytes()


def test_a_cluster_on_one_machine_has_what_is_around_it(
    tmp_path: Path, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STELAE_TOKEN_FILE", str(token_file))
    with real_cluster(tmp_path / "c") as cluster:
        cluster.up()
        with cluster.connect() as db:
            assert db.tables() == []
        monkeypatch.delenv("STELAE_TOKEN_FILE")
        with pytest.raises(stelae.PermissionDenied, match="STELAE_TOKEN_FILE"):
            cluster.connect()
        monkeypatch.chdir(tmp_path)
        (tmp_path / "stelae.toml").write_text('token_file = "token"\n')
        for words in (("table", "list"), ("check",), ("cluster", "show"), ("bench", "--rows", "1000")):
            with mock.patch.dict(os.environ):
                found = run(*words, "--cluster", cluster.address, "--json")
                assert os.environ["STELAE_TOKEN_FILE"] == str(token_file), "for what is started elsewhere"
            assert found.exit_code == 0, found.stderr
        assert TOKEN not in "".join(log.read_text() for log in cluster.directory.glob("*/log.txt"))
        cluster.down()


def test_what_is_refused(tmp_path: Path, token_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = ("--metastore", f"sqlite://{tmp_path}/meta", "--store", tmp_path / "data")
    master = ("master", "--name", "m1", "--dir", tmp_path / "m1", *shared)
    node = ("node", "--name", "n1", "--dir", tmp_path / "n1", *shared)
    assert "there is no TLS and no token" in refused(*master, "--listen", "0.0.0.0:0")
    assert "there is no TLS:" in refused(*master, "--listen", "0.0.0.0:0", "--token-file", token_file)
    assert "there is no TLS and no token" in refusal(*node, "--listen", "0.0.0.0")
    assert "--tls-mutual: there is no TLS" in refused(*node, "--tls-mutual")
    assert "none" in refused(*node, "--token-file", tmp_path / "none")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stelae.toml").write_text(f'token = "{TOKEN}"\n')
    said = refused(*node)
    assert "write token_file" in said
    assert TOKEN not in said
    (tmp_path / "stelae.toml").write_text('token_file = "token"\n')
    assert "there is no TLS:" in refused(*master, "--listen", "0.0.0.0:0")
    assert "STELAE_TOKEN" not in os.environ
