"""A write that is alone is answered by whoever made it durable: the loop sleeps on."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Semaphore
from typing import Any

import pytest

from stelae.adapters.sockets.unix import UnixConnector
from stelae.format.block import encode_block
from stelae.model.errors import DiskFailed, UnknownOutcome
from stelae.model.ids import Txn
from stelae.ports.transport import Frame, FrameKind, RequestId
from stelae.service.messages import WriteMessage
from stelae.service.operations import STORE_FAULTS, WRITE
from stelae.tserver.serving.service import ServiceLimits
from stelae.wire.hello import hello_frame
from stelae.wire.messages import read_error
from tests.client.asked import BLOCKS, TABLE
from tests.client.fake_backend import CLIENT, FakeBackend, StoreWorld, served, table_info, until
from tests.client.samples import USERS
from tests.effort import HANG_S

BODY = encode_block(BLOCKS[0].block)


class SlowStore(FakeBackend):
    """Lets writes in; they are decided by the test."""

    def __init__(self) -> None:
        super().__init__(tables={TABLE: table_info(USERS)}, answers={"now": Txn(1)})
        self.let_in: list[Future[Txn]] = []
        self.came = Semaphore(0)

    def submit(self, *_: Any, **__: Any) -> Future[Txn]:
        self.let_in.append(Future())
        self.came.release()
        return self.let_in[-1]


class Writer:
    """A connection that writes."""

    def __init__(self, world: StoreWorld) -> None:
        self._connection = UnixConnector(world.path).connect(HANG_S)
        self._connection.send(hello_frame(CLIENT, FrameKind.REQUEST), HANG_S)
        assert self.receive().kind is FrameKind.ANSWER

    def write(self, number: int) -> None:
        message = WriteMessage(TABLE, None, (len(BODY),))
        self._connection.send(WRITE.method.ask(RequestId(number), message, BODY), HANG_S)

    def receive(self) -> Frame:
        found = self._connection.receive(HANG_S)
        assert found is not None
        return found

    def receive_txn(self, number: int) -> int:
        found = self.receive()
        assert found.kind is FrameKind.ANSWER
        assert found.request_id == number
        return WRITE.result.decode(found.body)

    def close(self) -> None:
        self._connection.close()


@contextmanager
def asleep(world: StoreWorld) -> Iterator[None]:
    """The serving loop does nothing meanwhile."""
    began, go = Event(), Event()

    def sleep() -> None:
        began.set()
        go.wait(HANG_S)

    world.loop.loop.call_soon_threadsafe(sleep)
    assert began.wait(HANG_S)
    try:
        yield
    finally:
        go.set()


@pytest.fixture
def store() -> SlowStore:
    return SlowStore()


@pytest.fixture
def world(store: SlowStore, tmp_path: Path) -> Iterator[StoreWorld]:
    with served(tmp_path, store) as world:
        yield world


def test_a_lone_write_is_answered_while_the_loop_sleeps(world: StoreWorld, store: SlowStore) -> None:
    writer = Writer(world)
    for txn in range(1, 4):
        writer.write(5)  # the same id again: it is not under way any more
        store.came.acquire()
        with asleep(world):
            store.let_in[-1].set_result(Txn(txn))
            assert writer.receive_txn(5) == txn
    writer.close()
    until(lambda: not world.service.connections, world.loop)


def test_writes_that_came_together_are_answered_by_the_loop(world: StoreWorld, store: SlowStore) -> None:
    one, other = Writer(world), Writer(world)
    for number, writer in enumerate((one, one, other)):
        writer.write(number)
        store.came.acquire()
    with asleep(world):
        for number, each in enumerate(store.let_in):
            each.set_result(Txn(10 + number))
    # The last one was alone by then.
    assert other.receive_txn(2) == 12
    assert [one.receive_txn(0), one.receive_txn(1)] == [10, 11]
    one.close()
    other.close()


def test_what_failed_and_what_is_in_doubt_is_told_by_the_loop(world: StoreWorld, store: SlowStore) -> None:
    writer = Writer(world)
    writer.write(1)
    store.came.acquire()
    store.let_in[0].set_exception(DiskFailed("no"))
    assert isinstance(read_error(writer.receive(), STORE_FAULTS), DiskFailed)
    world.service.doubt = lambda: UnknownOutcome("who knows")
    writer.write(2)
    store.came.acquire()
    store.let_in[1].set_result(Txn(9))
    assert isinstance(read_error(writer.receive(), STORE_FAULTS), UnknownOutcome)
    writer.close()


def test_where_there_is_room_for_one_the_loop_answers_and_takes_the_next(store: SlowStore, tmp_path: Path) -> None:
    with served(tmp_path, store, ServiceLimits(requests_max=1)) as world:
        writer = Writer(world)
        for number in range(3):
            writer.write(number)
        for number in range(3):
            store.came.acquire()
            assert len(store.let_in) == number + 1
            store.let_in[-1].set_result(Txn(number))
            assert writer.receive_txn(number) == number
        writer.close()


def test_closing_does_not_wait_for_what_was_answered_aside(store: SlowStore, tmp_path: Path) -> None:
    """It would wait for an hour."""
    with served(tmp_path, store, ServiceLimits(close_s=3_600)) as world:
        writer = Writer(world)
        writer.write(1)
        store.came.acquire()
        with asleep(world):
            store.let_in[-1].set_result(Txn(1))
            assert writer.receive_txn(1) == 1
        stopping = world.threads.submit(world.stop)
        stopping.result(HANG_S)
        writer.close()
