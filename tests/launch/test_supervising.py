"""A node and the notes it keeps; with real processes: `tests/cluster/test_nodes.py`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stelae.launch import supervising
from stelae.launch.supervising import NodeOptions, ServingShard
from stelae.model.errors import DiskFull


class Note:
    """An owner's note on a disk that is full at first."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.refusals = 3

    def note(self, address: str) -> None:
        if self.refusals:
            self.refusals -= 1
            raise DiskFull("owner: no space left")
        self.said.append(address)


def test_a_node_that_cannot_say_where_its_shards_serve_goes_on_and_says_it_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervising, "PAUSE_S_MAX", 0.01)
    note: Any = Note()
    identity: Any = None
    told: list[tuple[ServingShard, ...]] = []

    async def run() -> None:
        options = NodeOptions("n1", tmp_path, "sqlite://m", shards=2)
        node = supervising._Supervisor(options, identity, note, told.append)
        for number in range(2):
            node._note_serving(ServingShard(number, 1, f"127.0.0.1:{number}"))
        assert not note.said
        assert not told
        while not told:
            await asyncio.sleep(0.01)

    asyncio.run(run())
    assert note.said == ["127.0.0.1:0,127.0.0.1:1"]
    assert len(told) == 1
