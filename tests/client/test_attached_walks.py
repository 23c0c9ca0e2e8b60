"""What an attached process does for a call, and what it does not: blocks are encoded once, and what reads logs and
keeps memory is not even loaded."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stelae
from stelae.adapters.clock import SystemClock
from stelae.adapters.rng import SystemRng
from stelae.client.api.table import Table
from stelae.client.calls.retries import Patience
from stelae.client.calls.session import Session
from stelae.client.intake.mutations import blocks_of
from stelae.format import block as blocks
from stelae.model.ids import TableId, Txn
from stelae.ports.transport import Frame
from stelae.service.blocks import OrderedBlock
from stelae.service.operations import WRITE
from stelae.wire.messages import WireMethod
from tests.client.fake_backend import FakeBackend, served, table_info
from tests.client.samples import USERS

TABLE = TableId(7)


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The bytes of each block that anybody in this process encodes, under whatever name it knows the function."""
    seen: list[bytes] = []
    encode = blocks.encode_block

    def count(block: blocks.Block) -> Any:
        data = encode(block)
        seen.append(bytes(data))
        return data

    for module in list(sys.modules.values()):
        for name in [name for name, value in vars(module).items() if value is encode]:
            monkeypatch.setattr(module, name, count)
    return seen


class BytesBackend(FakeBackend):
    """Keeps what the store would log."""

    def submit(self, table: TableId, blocks: Any, *args: Any, **kwargs: Any) -> Any:
        self.data = [each.data for each in blocks]
        return super().submit(table, blocks, *args, **kwargs)


@pytest.mark.parametrize(
    "call",
    [
        lambda table: table.put({"id": "ann", "name": "Ann", "click:home": b"1"}),
        lambda table: table.erase("ann"),
        lambda table: table.put_many([{"id": str(n), "age": n} for n in range(3_000)]),
    ],
    ids=["put", "erase", "put_many"],
)
def test_an_attached_write_encodes_each_block_once_and_its_bytes_are_logged(
    call: Callable[[Table], Any], tmp_path: Path, encoded: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bytes] = []
    ask = WireMethod.ask

    def look(method: WireMethod[Any, Any], request: Any, message: Any, body: Any = b"", flags: int = 0) -> Frame:
        if method is WRITE.method:
            sent.append(bytes(body))
        return ask(method, request, message, body, flags)

    monkeypatch.setattr(WireMethod, "ask", look)
    backend = BytesBackend({TABLE: table_info(USERS)}, {"write": Txn(2)})
    with served(tmp_path, backend) as world:
        session = Session(world.attach(), Patience(SystemClock(), SystemRng(), 60))
        call(Table(session, table_info(USERS)))
    assert len(encoded) == len(backend.data) >= 1
    assert [bytes(data) for data in backend.data] == encoded
    assert b"".join(sent) == b"".join(encoded)


def test_bytes_that_a_block_brings_are_not_made_again(tmp_path: Path, encoded: list[bytes]) -> None:
    [ordered] = blocks_of(USERS, [{"id": "ann"}])
    data = bytes(blocks.encode_block(ordered.block))
    encoded.clear()
    backend = BytesBackend({TABLE: table_info(USERS)}, {"write": Txn(2)})
    with served(tmp_path, backend) as world:
        world.attach().write(TABLE, [OrderedBlock(ordered.block, ordered.given_rows, data)])
    assert encoded == []
    assert [bytes(each) for each in backend.data] == [data]


def _loaded_for_data(modules: str) -> list[str]:
    """Of the modules, those that only whoever has a store itself needs."""
    parts = ("storage.log", "storage.memory", "storage.shard", "storage.tablet.state", "tserver", "assembly")
    return [name for name in modules.split() if any(part in name for part in parts)]


def _run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_programs_of_other_processes_stores_load_no_log_no_memory_and_no_shard() -> None:
    names = ("store", "takeover", "cluster.store", "cluster.on_loop")
    loaded = _run(
        f"import sys; import {', '.join(f'stelae.client.remote.{name}' for name in names)}; print(*sys.modules)"
    )
    assert {f"stelae.client.remote.{name}" for name in names} <= {*loaded.split()}
    assert _loaded_for_data(loaded) == []


def test_who_reads_beside_the_owner_loads_no_log_no_memory_and_no_shard(tmp_path: Path) -> None:
    with stelae.open(tmp_path) as db:
        db.create_table("t", key={"id": "string"}, groups=[stelae.columns("g", {"v": "int64"})]).put(
            {"id": "a", "v": 7}
        )
        loaded = _run(
            f"import stelae, sys; db = stelae.open({str(tmp_path)!r}, read_only=True); "
            "assert db.table('t').get('a')['v'] == 7; print(*sys.modules); db.close()"
        )
    assert "stelae.client.remote.store" in loaded.split()
    assert _loaded_for_data(loaded) == []
