"""Programs and servers of a real cluster let each other in, or say why not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import stelae
from stelae.launch.access import Access
from stelae.launch.processes import MasterProcess, ProcessOptions
from stelae.model.errors import InvalidArgument, PermissionDenied
from stelae.wire.proofs import ClusterToken
from tests.certificates import Authority
from tests.launch.token_cluster import TOKEN, master_options, token_cluster

OTHER = "7654" * 8


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOKEN", "TOKEN_FILE", "TLS_CA", "TLS_CERT", "TLS_KEY"):
        monkeypatch.delenv(f"STELAE_{name}", raising=False)


def use(database: stelae.Database) -> None:
    """What needs the master, the shard, and that the two talk to each other."""
    users = database.create_table("users", key={"id": "string"}, groups=[stelae.columns("p", {"name": "string"})])
    users.put({"id": "ann", "name": "Ann"})
    users.put({"id": "zoe", "name": "Zoe"})
    users.split("m")
    assert [row["name"] for row in users.scan()] == ["Ann", "Zoe"]


def test_with_token_and_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tls = Authority(tmp_path).files("server", "127.0.0.1")
    assert tls.authority is not None
    with token_cluster(tmp_path, Access(ClusterToken(TOKEN), tls)) as (master, _):
        with stelae.connect(master.address, token=TOKEN, tls={"ca": tls.authority}) as database:
            use(database)
            for wrong, words in (
                ({}, "the other side speaks TLS"),
                ({"tls": {"ca": tls.authority}}, "give it with token="),
                ({"tls": {"ca": tls.authority}, "token": OTHER}, "does not know the token"),
            ):
                with pytest.raises(PermissionDenied, match=words):
                    stelae.connect(master.address, **wrong)
            assert database.metrics()["handshakes_refused"] == 0  # of the shard: all came to the master first
        (tmp_path / "token").write_text(TOKEN)
        monkeypatch.setenv("STELAE_TOKEN_FILE", str(tmp_path / "token"))
        monkeypatch.setenv("STELAE_TLS_CA", tls.authority)
        with stelae.connect(master.address) as database:
            assert database.tables() == ["users"]
        assert asyncio.run(_tables(master.address)) == ["users"]


async def _tables(address: str) -> list[str]:
    async with stelae.aio.connect(address) as database:
        return list(await database.tables())


def test_certificates_that_both_sides_show(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    servers = authority.files("server", "127.0.0.1", is_mutual=True)
    program = authority.files("program", "127.0.0.1")
    assert servers.authority is not None
    assert program.certificate is not None
    assert program.key is not None
    with token_cluster(tmp_path, Access(ClusterToken(TOKEN), servers)) as (master, _):
        files = {"ca": servers.authority, "cert": program.certificate, "key": program.key}
        with stelae.connect(master.address, token=TOKEN, tls=files) as database:
            use(database)
        with pytest.raises(PermissionDenied, match="TLS"):
            stelae.connect(master.address, token=TOKEN, tls={"ca": servers.authority})


def test_servers_with_different_tokens_do_not_work_together(tmp_path: Path) -> None:
    mine, other = Access(ClusterToken(TOKEN)), Access(ClusterToken(OTHER))
    with token_cluster(tmp_path, mine, other) as (master, shard):
        while not (numbers := shard.shard.metrics())["handshakes_refused_wrong_token"]:
            with pytest.raises(PermissionDenied, match="does not know the token") as refused:
                stelae.connect(master.address, token=TOKEN)
            assert shard.address in str(refused.value)
        assert numbers["handshakes_refused"] == sum(
            count for name, count in numbers.items() if name.startswith("handshakes_refused_")
        )


def test_a_program_stays_with_its_cluster(tmp_path: Path) -> None:
    """Whoever takes over an address is not taken for who was there."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    access = Access(ClusterToken(TOKEN))
    with token_cluster(tmp_path / "one", access) as (master, _):
        address = master.address
        database = stelae.connect(address, token=TOKEN)
        assert database.tables() == []
    with database:
        process = MasterProcess(master_options(tmp_path / "two", access, address))
        try:
            with pytest.raises(PermissionDenied, match="another store is served here"):
                database.tables()
        finally:
            process.close()


def test_a_server_that_strangers_reach_has_token_and_tls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def start(access: Access, *, insecure: bool = False) -> MasterProcess:
        return MasterProcess(master_options(tmp_path, access, "0.0.0.0:0", insecure=insecure))

    token = Access(ClusterToken(TOKEN))
    for access, missing in ((Access(), "no TLS and no token"), (token, "no TLS")):
        with pytest.raises(InvalidArgument, match=missing):
            start(access)
    assert not (tmp_path / "master").exists()
    for _ in range(2):
        caplog.clear()
        start(token, insecure=True).close()
        assert "m1 serves other machines on 0.0.0.0:" in capsys.readouterr().err
        assert "served_insecurely" in caplog.text
        assert TOKEN not in caplog.text
    both = Access(ClusterToken(TOKEN), Authority(tmp_path).files("server", "127.0.0.1"))
    start(both).close()
    assert capsys.readouterr().err == ""


def test_options_do_not_show_the_token(tmp_path: Path) -> None:
    options = master_options(tmp_path, Access(ClusterToken(TOKEN)))
    assert isinstance(options, ProcessOptions)
    assert TOKEN not in repr(options)
