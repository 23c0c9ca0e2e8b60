"""Crowds at the door of a real cluster's processes: it stays up, serves others, and its memory is bounded."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import stelae
from stelae.adapters.descriptors import take_descriptors
from stelae.ports.transport import FrameKind, RequestId
from stelae.service.messages import NothingMessage
from stelae.service.operations import NOW
from stelae.wire.hello import PROTOCOL_MAX, PROTOCOL_MIN, Hello
from tests.effort import HANG_S, tries
from tests.launch.token_cluster import TOKEN
from tests.tserver.serving.doors import exchange, greet

IDLE = min(1_000, tries(400))
BURST = min(10_000, tries(600))
SILENT_EACH, SILENT_AT_ONCE = 3, 600
"""So many come with each that speaks, and so many stay: more than may be in their greeting at once."""

MEMORY_BYTES_MAX = 128 * 2**20


class Cluster:
    def __init__(self, directory: Path) -> None:
        command = [sys.executable, "-m", "tests.launch.token_cluster", str(directory)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.master, self.shard = self.process.stdout.readline().split()

    def memory_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    with made.process:
        yield made
        assert made.process.poll() is None
        made.process.communicate()
    assert made.process.returncode == 0


def connect(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), HANG_S)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at a process's memory as Linux shows it")
def test_crowds(cluster: Cluster) -> None:
    """Those that are let in and say nothing more; then, while these stay, as many that come, ask and go as well as
    those that come and say nothing. Others are served all the time."""
    take_descriptors()
    with ExitStack() as ends:
        database = ends.enter_context(stelae.connect(cluster.master, token=TOKEN))
        users = database.create_table("users", key={"id": "string"}, groups=[stelae.columns("p", {"n": "int64"})])
        users.put({"id": "a", "n": 0})
        before = cluster.memory_bytes()
        idle = [ends.enter_context(let_in(cluster.shard)) for _ in range(IDLE)]
        assert database.metrics()["connections"] > IDLE
        silent: deque[socket.socket] = deque()
        for number in range(BURST):
            silent += [connect(cluster.shard) for _ in range(SILENT_EACH)]
            while len(silent) > SILENT_AT_ONCE:
                silent.popleft().close()
            with let_in(cluster.shard) as peer:
                ask_now(peer)
            if number % 10 == 0:
                users.put({"id": "a", "n": number})
                found = users.get("a")
                assert found is not None
                assert found["n"] == number
        for each in idle[:: max(1, IDLE // 20)]:
            ask_now(each)
        grown = cluster.memory_bytes() - before
        assert grown < MEMORY_BYTES_MAX
        for each in silent:
            each.close()


def let_in(address: str) -> socket.socket:
    peer = connect(address)
    greet(peer, TOKEN, HELLO)
    return peer


HELLO = Hello(PROTOCOL_MIN, PROTOCOL_MAX, "", "", "client")


def ask_now(peer: socket.socket) -> None:
    answer = exchange(peer, NOW.method.ask(RequestId(1), NothingMessage()))
    assert answer.kind is FrameKind.ANSWER
