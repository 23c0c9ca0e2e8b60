"""Streams, pins and connections: what they hold while they live, and that it is freed however they end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event, Semaphore, Thread
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stelae.adapters.clock import SystemClock
from stelae.adapters.executor import ThreadExecutor
from stelae.adapters.sockets.unix import UnixConnector
from stelae.client.remote.lines import LineSettings
from stelae.client.remote.store import RemoteStore
from stelae.model.errors import (
    Closed,
    ConnectionLost,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    Overloaded,
    PermissionDenied,
    ProtocolError,
    StelaeError,
    Unavailable,
    UnknownOutcome,
)
from stelae.model.ids import Row, TableId, Txn
from stelae.model.predicate.selectors import ALL_COLUMNS
from stelae.ports.transport import Frame, FrameKind, RequestId
from stelae.service.deadlines import Deadline
from stelae.service.messages import NameMessage, NothingMessage, ScanMessage
from stelae.service.operations import FIND, NOW, SCAN
from stelae.service.table import OPERATIONS
from stelae.tserver.serving.jobs import HeldPins
from stelae.tserver.serving.service import ServiceLimits
from stelae.wire.frames import FrameDecoder, encode_frame
from stelae.wire.hello import PROTOCOL_MAX, PROTOCOL_MIN, Hello, hello_frame
from tests.client.asked import ASK, ASKED, BLOCKS, TABLE
from tests.client.fake_backend import CLIENT, OWNER, FakeBackend, StoreWorld, served, table_info, until
from tests.client.samples import USERS
from tests.effort import HANG_S, tries

BATCH = pa.record_batch({"n": pa.array(np.arange(100_000))})


@pytest.fixture
def world(tmp_path: Path) -> Iterator[StoreWorld]:
    with served(tmp_path, FakeBackend(tables={TABLE: table_info(USERS)}, answers={"now": Txn(1)})) as world:
        yield world


class Endless:
    """Batches without end, counted."""

    def __init__(self) -> None:
        self.pulled = 0

    def __call__(self, *_: Any) -> Iterator[pa.RecordBatch]:
        while True:
            self.pulled += 1
            yield BATCH


# -- scans


def test_a_scan_is_open_when_it_is_there_and_freed_when_it_is_closed(world: StoreWorld) -> None:
    world.backend.answers["scan"] = Endless()
    remote = world.attach()
    scan = remote.scan(TABLE, ASK)
    assert len(world.backend.scans) == 1
    assert next(scan) == BATCH
    scan.close()
    assert list(scan) == []
    until(lambda: not world.backend.scans, world.loop)
    assert remote.now() == 1
    assert remote.connections == 1


def test_a_scan_that_nobody_holds_is_freed(world: StoreWorld) -> None:
    world.backend.answers["scan"] = Endless()
    remote = world.attach()
    for _ in range(3):
        next(remote.scan(TABLE, ASK))
    until(lambda: not world.backend.scans, world.loop)
    assert remote.now() == 1


def test_a_scan_that_ends_or_fails_gives_its_connection_back(world: StoreWorld) -> None:
    def failing(*_: Any) -> Iterator[pa.RecordBatch]:
        yield BATCH
        raise InvalidArgument("in the middle")

    remote = world.attach()
    world.backend.answers["scan"] = [BATCH] * 10
    assert len(list(remote.scan(TABLE, ASK))) == 10
    world.backend.answers["scan"] = failing
    scan = remote.scan(TABLE, ASK)
    assert next(scan) == BATCH
    with pytest.raises(InvalidArgument, match="in the middle"):
        next(scan)
    assert not world.backend.scans
    assert remote.connections == 1


def test_a_slow_reader_is_not_read_ahead_for(world: StoreWorld) -> None:
    """A few batches wait in buffers, and no more, while others are served."""
    endless = world.backend.answers["scan"] = Endless()
    slow, other = world.attach(), world.attach()
    scan = slow.scan(TABLE, ASK)
    next(scan)
    for _ in range(200):
        other.now()
    seen = endless.pulled
    while True:
        for _ in range(200):
            other.now()
        if seen == endless.pulled:
            break
        seen = endless.pulled
    assert seen * BATCH.nbytes < 16 * 2**20
    for _ in range(30):
        assert next(scan) == BATCH
    scan.close()


def test_many_scans_at_once_each_get_their_own(world: StoreWorld) -> None:
    world.backend.answers["scan"] = lambda table, _: [pa.record_batch({"n": [int(table), i]}) for i in range(20)]
    remote = world.attach()
    scans = [remote.scan(TableId(n), ASK) for n in range(10)]
    for i in range(20):
        for n, scan in enumerate(scans):
            assert next(scan)["n"].to_pylist() == [n, i]
    assert [list(scan) for scan in scans] == [[]] * 10
    assert remote.connections == 10
    assert not world.backend.scans


def test_connections_are_bounded_and_used_again(world: StoreWorld) -> None:
    world.backend.answers["scan"] = Endless()
    remote = world.attach(LineSettings(lines_max=2, answer_s=0.05))
    scans = [remote.scan(TABLE, ASK) for _ in range(2)]
    with pytest.raises(Overloaded, match="all 2 connections"):
        remote.now()
    scans[0].close()
    assert remote.now() == 1
    assert remote.connections == 2


def test_closing_ends_scans_and_wakes_who_waits(world: StoreWorld) -> None:
    go = Event()

    def waiting(*_: Any) -> Iterator[pa.RecordBatch]:
        yield BATCH
        go.wait()
        yield BATCH

    world.backend.answers["scan"] = waiting
    remote = world.attach()
    scan = remote.scan(TABLE, ASK)
    assert next(scan) == BATCH
    next_one = world.threads.submit(next, scan)
    remote.close()
    with pytest.raises(Closed):
        next_one.result()
    go.set()
    with pytest.raises(Closed):
        remote.scan(TABLE, ASK)
    until(lambda: not world.backend.scans, world.loop)


def test_an_interrupt_leaves_the_store_usable(world: StoreWorld) -> None:
    world.backend.answers |= {"scan": Endless(), "compact": [(1, 3), (2, 3)]}
    remote = world.attach()

    def interrupted(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        remote.compact(TABLE, progress=interrupted)
    assert remote.now() == 1


def test_progress_comes_and_the_last_of_it_surely(world: StoreWorld) -> None:
    world.backend.answers["compact"] = [(n, 500) for n in range(501)]
    seen: list[tuple[int, int]] = []
    world.attach().compact(TABLE, progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(set(seen))
    assert seen[-1] == (500, 500)


def test_the_last_progress_is_told_although_the_work_is_over_by_then(world: StoreWorld) -> None:
    """The loop is busy while the work tells of itself and ends."""
    go, is_busy = Event(), Event()

    def busy() -> None:
        is_busy.set()
        go.wait()

    def work(*_: Any) -> list[tuple[int, int]]:
        world.loop.loop.call_soon_threadsafe(busy)
        is_busy.wait()
        return [(1, 2), (2, 2)]

    world.backend.answers["compact"] = work
    seen: list[tuple[int, int]] = []
    asked = Thread(target=lambda: world.attach().compact(TABLE, progress=lambda *news: seen.append(news)))
    asked.start()
    is_busy.wait()
    while world.threads._unfinished:
        pass
    go.set()
    asked.join()
    assert seen == [(2, 2)]


def test_a_write_goes_on_without_who_asked_for_it(world: StoreWorld) -> None:
    """The store's future is the store's: the end of a connection does not cancel it."""
    writing: Future[Txn] = Future()
    world.backend.answers["write"] = writing
    remote = world.attach(LineSettings(answer_s=0.05))
    with pytest.raises(UnknownOutcome):
        remote.write(TABLE, BLOCKS)
    until(lambda: world.service.connections == 0, world.loop)
    assert not writing.cancelled()
    writing.set_result(Txn(1))


# -- pins


def test_a_pin_that_comes_too_late_is_freed_at_once() -> None:
    backend = FakeBackend(answers={"pin": Txn(1)})
    pins = HeldPins(5)
    number, _ = pins.add(backend.pin)
    pins.close()
    assert not backend.pins
    with pytest.raises(InvalidArgument):
        pins.add(backend.pin)
    assert not backend.pins
    with pytest.raises(NotFound):
        pins.free(number)


def test_pins_live_until_they_are_closed(world: StoreWorld) -> None:
    world.backend.answers["pin"] = lambda at: Txn(9) if at is None else at
    remote = world.attach()
    first, second = remote.pin(), remote.pin(Txn(3))
    assert (first.txn, second.txn) == (9, 3)
    assert {pin.txn for pin in world.backend.pins} == {9, 3}
    first.close()
    first.close()
    assert {pin.txn for pin in world.backend.pins} == {3}
    second.close()
    assert not world.backend.pins
    assert remote.connections == 1
    third = remote.pin()
    assert len(world.backend.pins) == 1
    remote.close()
    until(lambda: not world.backend.pins, world.loop)
    third.close()


def test_a_pin_that_fails_leaves_the_others(world: StoreWorld) -> None:
    world.backend.answers["pin"] = lambda at: InvalidArgument("no") if at == 4 else Txn(1)
    remote = world.attach()
    with pytest.raises(InvalidArgument):
        remote.pin(Txn(4))
    pin = remote.pin()
    with pytest.raises(InvalidArgument):
        remote.pin(Txn(4))
    assert len(world.backend.pins) == 1
    pin.close()
    assert not world.backend.pins


def test_pins_of_one_connection_are_bounded(tmp_path: Path) -> None:
    limits = ServiceLimits(pins_max=2)
    with served(tmp_path, FakeBackend(answers={"pin": Txn(1)}), limits) as world:
        remote = world.attach()
        pins = [remote.pin(), remote.pin()]
        with pytest.raises(Overloaded, match="at most 2"):
            remote.pin()
        pins[0].close()
        remote.pin()


PROCESS = """
import sys
from stelae.adapters.clock import SystemClock
from stelae.adapters.executor import ThreadExecutor
from stelae.adapters.sockets.unix import UnixConnector
from stelae.service.scans import ScanAsk
from stelae.client.remote.store import RemoteStore
from stelae.model.ids import TableId, Txn
from stelae.model.predicate.plan import ScanPredicate
from tests.client.asked import ASK, ASKED, BLOCKS, TABLE
from tests.client.fake_backend import CLIENT

remote = RemoteStore(UnixConnector(sys.argv[1]), ThreadExecutor(1, 1), CLIENT, SystemClock())
pins = [remote.pin() for _ in range(3)]
scan = remote.scan(TableId(7), ScanAsk(ScanPredicate(), Txn(5)))
next(scan)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "ended"])
def test_what_a_process_held_is_freed_when_it_is_gone(kill: bool, world: StoreWorld) -> None:
    world.backend.answers |= {"pin": Txn(2), "scan": Endless()}
    command = [sys.executable, "-c", PROCESS, world.path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        assert len(world.backend.pins) == 3
        assert len(world.backend.scans) == 1
        if kill:
            os.kill(process.pid, signal.SIGKILL)
        else:
            process.stdin.close()
        process.wait()
    until(lambda: not world.backend.pins and not world.backend.scans, world.loop)
    assert world.attach().now() == 1


# -- threads


def test_many_threads_get_their_own_answers(world: StoreWorld) -> None:
    world.backend.answers |= {
        "newest_cached": lambda table, row, *_: {"t": int(table), "r": bytes(row)},
        "newest_many": lambda _, rows, *__: [{"r": bytes(row)} for row in rows],
        "scan": lambda table, _: [pa.record_batch({"n": [int(table)] * 1000})] * 3,
        "write": lambda table, said, max_txn: Txn(max_txn or 0),
        "pin": lambda at: at,
    }
    remote = world.attach(LineSettings(lines_max=5))

    def work(number: int) -> int:
        rounds = tries(40)
        for i in range(rounds):
            row = Row(b"%d-%d" % (number, i))
            assert remote.newest(TableId(number), row, ALL_COLUMNS)[1] == {"t": number, "r": row}
            assert remote.newest_many(TABLE, [row, row], ALL_COLUMNS)[1] == [{"r": row}] * 2
            assert remote.write(TABLE, BLOCKS, Txn(number * 1000 + i)) == number * 1000 + i
            if i % 5 == 0:
                batches = list(remote.scan(TableId(number), ASK))
                assert [batch["n"].unique().to_pylist() for batch in batches] == [[number]] * 3
                pin = remote.pin(Txn(number))
                assert pin.txn == number
                pin.close()
        return rounds

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(1, 9))) == 8 * tries(40)
    assert remote.connections <= 5
    assert not world.backend.pins
    assert not world.backend.scans


def test_more_requests_than_jobs_wait_their_turn(tmp_path: Path) -> None:
    limits = ServiceLimits(jobs_max=2, upkeep_max=1, requests_max=2)
    go = Event()

    def slow(name: str) -> Any:
        go.wait()
        return table_info(USERS, name=name)

    backend = FakeBackend(answers={"find": slow, "newest_cached": {"a": 1}, "flush": lambda _: go.wait() and None})
    with served(tmp_path, backend, limits) as world, ThreadPoolExecutor(20) as pool:
        remote = world.attach()
        finds = [pool.submit(remote.find, f"t{n}") for n in range(10)]
        flushes = [pool.submit(remote.flush, TABLE) for n in range(5)]
        until(lambda: len(backend.calls) >= 3, world.loop)
        for _ in range(20):
            assert remote.newest(TABLE, Row(b"x"), ALL_COLUMNS)[1] == {"a": 1}
        assert len([call for call in backend.calls if call[0] == "find"]) == 2
        assert len([call for call in backend.calls if call[0] == "flush"]) == 1
        go.set()
        assert [each.result().table.name for each in finds] == [f"t{n}" for n in range(10)]
        assert [each.result() for each in flushes] == [None] * 5


def test_requests_of_a_kind_that_waits_for_ever_keep_no_other_kind_waiting(tmp_path: Path) -> None:
    limits = ServiceLimits(jobs_max=1, upkeep_max=1, kind_max=2)
    go, made = Event(), table_info(USERS)

    def wait(*_: Any) -> Any:
        go.wait()
        return None

    answers = {"drop": wait, "flush": wait, "renew": wait, "create": made, "now": Txn(4)}
    backend = FakeBackend({TABLE: made}, answers)
    with served(tmp_path, backend, limits) as world, ThreadPoolExecutor(15) as pool:
        remote = world.attach()
        drops = [pool.submit(remote.drop, f"t{n}") for n in range(5)]
        others = [pool.submit(remote.flush, TABLE), pool.submit(remote.renew, "a ticket")]
        try:
            until(lambda: len(backend.calls) >= 4, world.loop)
            assert ASKED["create"](remote, None).table == made.table
            assert remote.now() == 4
            assert len([call for call in backend.calls if call[0] == "drop"]) == 2
        finally:
            go.set()
        assert [each.result() for each in (*drops, *others)] == [None] * 7


def test_a_busy_executor_is_waited_for(tmp_path: Path) -> None:
    go = Event()
    with served(tmp_path, FakeBackend(answers={"now": Txn(4)})) as world:
        few = ThreadExecutor(1, 0)
        world.service.jobs._executor = few
        held = few.submit(go.wait)
        asked = world.threads.submit(world.attach().now)
        until(lambda: world.service.connections == 1, world.loop)
        go.set()
        assert asked.result() == 4
        held.result()
        few.close()


# -- a connection that asks by itself


class RawPeer:
    """Frames as a client that is not ours might send them."""

    def __init__(self, world: StoreWorld) -> None:
        self._connection = UnixConnector(world.path).connect(HANG_S)
        self.send(hello_frame(CLIENT, FrameKind.REQUEST))
        assert self.receive().kind is FrameKind.ANSWER

    def send(self, frame: Frame) -> None:
        self._connection.send(frame, 5)

    def receive(self) -> Frame:
        frame = self._connection.receive(HANG_S)
        assert frame is not None
        return frame

    def is_ended(self) -> bool:
        try:
            return self._connection.receive(HANG_S) is None
        except Unavailable:
            return True

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def peer(world: StoreWorld) -> Iterator[RawPeer]:
    peer = RawPeer(world)
    yield peer
    peer.close()


def test_requests_of_one_connection_are_answered_as_they_are_done(world: StoreWorld, peer: RawPeer) -> None:
    go = Event()
    world.backend.answers["find"] = lambda name: go.wait() and table_info(USERS, name=name)
    peer.send(FIND.method.ask(RequestId(1), NameMessage("slow")))
    peer.send(NOW.method.ask(RequestId(2), NothingMessage()))
    assert peer.receive().request_id == 2
    go.set()
    assert peer.receive().request_id == 1


def test_beyond_its_bound_a_connection_is_not_read(tmp_path: Path) -> None:
    go = Event()
    backend = FakeBackend(answers={"find": lambda name: go.wait() and table_info(USERS, name=name)})
    with served(tmp_path, backend, ServiceLimits(requests_max=3)) as world:
        peer, other = RawPeer(world), world.attach()
        for n in range(1, 11):
            peer.send(FIND.method.ask(RequestId(n), NameMessage(f"t{n}")))
        until(lambda: len(backend.calls) >= 3, world.loop)
        backend.answers["now"] = Txn(1)
        for _ in range(50):
            other.now()
        assert [call[1] for call in backend.calls if call[0] == "find"] == ["t1", "t2", "t3"]
        go.set()
        assert sorted(peer.receive().request_id for _ in range(10)) == list(range(1, 11))
        peer.close()


def test_a_cancelled_stream_ends_while_others_go_on(world: StoreWorld, peer: RawPeer) -> None:
    go, began = Event(), Event()

    def stuck(*_: Any) -> Iterator[pa.RecordBatch]:
        began.set()
        go.wait()
        yield BATCH

    world.backend.answers["scan"] = stuck
    peer.send(SCAN.method.ask(RequestId(1), ScanMessage(7, None, 5, False, None), b"\x91\x92\xc4\x00\xc0"))
    assert peer.receive().kind is FrameKind.ITEM
    began.wait()
    peer.send(Frame(FrameKind.CANCEL, RequestId(1)))
    peer.send(Frame(FrameKind.CANCEL, RequestId(1)))
    peer.send(Frame(FrameKind.CANCEL, RequestId(99)))
    peer.send(NOW.method.ask(RequestId(2), NothingMessage()))
    assert peer.receive().kind is FrameKind.END
    assert NOW.result.decode(peer.receive().body) == 1
    go.set()
    until(lambda: not world.backend.scans, world.loop)


@pytest.mark.parametrize("kind", [FrameKind.ANSWER, FrameKind.ERROR, FrameKind.ITEM, FrameKind.END])
def test_a_client_that_answers_is_refused(kind: FrameKind, world: StoreWorld, peer: RawPeer) -> None:
    peer.send(Frame(kind, RequestId(5)))
    assert peer.receive().kind is FrameKind.ERROR
    assert peer.is_ended()
    assert world.attach().now() == 1


def test_an_id_is_one_requests(world: StoreWorld, peer: RawPeer) -> None:
    go = Event()
    world.backend.answers["find"] = lambda name: go.wait() and table_info(USERS)
    peer.send(FIND.method.ask(RequestId(1), NameMessage("slow")))
    peer.send(FIND.method.ask(RequestId(1), NameMessage("again")))
    assert b"under way" in bytes(peer.receive().message)
    go.set()
    assert any(peer.is_ended() for _ in range(2))  # the answer to the first may still come before the end


# -- hello


@pytest.mark.parametrize(
    ("hello", "error", "words"),
    [
        (Hello(8, 9, "9.0", "a-store", "client"), ProtocolError, "no protocol version in common"),
        (Hello(PROTOCOL_MIN, PROTOCOL_MAX, "0.1.0", "another", "client"), PermissionDenied, "another store"),
    ],
    ids=["version", "store"],
)
def test_who_cannot_be_served_is_told_why(
    hello: Hello, error: type[StelaeError], words: str, world: StoreWorld
) -> None:
    remote = world.attach(hello=hello)
    for _ in range(2):
        with pytest.raises(error, match=words):
            remote.now()
    assert remote.connections == 0
    assert world.attach(hello=Hello(1, 9, "0.2.0", "", "client")).now() == 1


def test_who_says_nothing_is_sent_away(tmp_path: Path) -> None:
    with served(tmp_path, FakeBackend(answers={"now": Txn(1)}), ServiceLimits(hello_s=0.05)) as world:
        connection = UnixConnector(world.path).connect(HANG_S)
        assert connection.receive(HANG_S) is None
        connection.close()
        assert world.attach().now() == 1
        until(lambda: world.service.connections == 1, world.loop)


def test_connections_beyond_the_bound_wait(tmp_path: Path) -> None:
    with served(tmp_path, FakeBackend(answers={"now": Txn(1)}), ServiceLimits(connections_max=2)) as world:
        first, second, third = world.attach(), world.attach(), world.attach()
        assert first.now() == second.now() == 1
        waiting = world.threads.submit(third.now)
        for _ in range(50):
            first.now()
        assert not waiting.done()
        second.close()
        assert waiting.result() == 1


# -- an owner that goes away


def test_an_owner_that_closes_answers_what_is_under_way(world: StoreWorld) -> None:
    go, began = Event(), Event()

    def slow(*_: Any) -> Txn:
        began.set()
        go.wait()
        return Txn(8)

    world.backend.answers |= {"write": slow, "scan": Endless()}
    world.backend.is_local = False  # its writes are let in by threads
    remote = world.attach()
    scan = remote.scan(TABLE, ASK)
    writing = world.threads.submit(remote.write, TABLE, BLOCKS)
    began.wait()
    stopping = world.threads.submit(world.stop)
    with pytest.raises(Unavailable, match="closing it"):
        for _ in scan:
            pass
    go.set()
    assert writing.result() == 8
    stopping.result()
    with pytest.raises(Unavailable):
        remote.now()
    assert not world.backend.scans


def test_an_owner_that_closes_answers_writes_that_it_has_let_in(world: StoreWorld) -> None:
    let_in: list[Future[Txn]] = []
    came = Semaphore(0)

    def submit(*_: Any, **__: Any) -> Future[Txn]:
        let_in.append(Future())
        came.release()
        return let_in[-1]

    world.backend.submit = submit  # type: ignore[method-assign]
    writing = [world.threads.submit(world.attach().write, TABLE, BLOCKS) for _ in range(4)]
    for _ in writing:
        came.acquire()
    stopping = world.threads.submit(world.stop)
    for number, each in enumerate(let_in):
        each.set_result(Txn(number))
    assert {each.result() for each in writing} == {0, 1, 2, 3}
    stopping.result()


def test_closing_the_service_twice_or_before_it_began(world: StoreWorld) -> None:
    world.stop()
    world.stop()
    assert not os.path.exists(world.path)


class DyingOwner:
    """Says hello, takes some requests, and dies; one that answers stays until the other side hangs up."""

    def __init__(self, path: str, requests: int, answers: tuple[Frame, ...] = ()) -> None:
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(path)
        self._listening.listen()
        self._requests = requests
        self._answers = answers
        self._threads = ThreadExecutor(1, 0)
        self.over: Future[None] = self._threads.submit(self._run)

    def _run(self) -> None:
        taken, _ = self._listening.accept()
        with taken:
            taken.sendall(b"".join(encode_frame(hello_frame(OWNER, FrameKind.ANSWER))))
            decoder, seen = FrameDecoder(), 0
            while seen <= self._requests:
                seen += len(decoder.feed(taken.recv(65536)))
            for answer in self._answers:
                taken.sendall(b"".join(encode_frame(answer)))
            while self._answers and taken.recv(65536):
                pass

    def close(self) -> None:
        self.over.result()
        self._threads.close()
        self._listening.close()


@pytest.fixture
def dying(tmp_path: Path) -> Iterator[Callable[..., RemoteStore]]:
    owners: list[DyingOwner] = []
    remotes: list[RemoteStore] = []
    threads = ThreadExecutor(2, 10)

    def make(*answers: Frame) -> RemoteStore:
        path = str(tmp_path / "d.sock")
        owners.append(DyingOwner(path, 1, answers))
        remotes.append(
            RemoteStore(UnixConnector(path), threads, CLIENT, SystemClock(), LineSettings(connect_s=5, answer_s=5))
        )
        return remotes[-1]

    yield make
    for remote in remotes:
        remote.close()
    for owner in owners:
        owner.close()
    threads.close()


def test_every_operation_is_asked() -> None:
    assert ASKED.keys() == OPERATIONS.keys() - {"unpin"}


@pytest.mark.parametrize("name", [*ASKED, "submit"])
def test_an_owner_that_dies_in_the_middle(name: str, dying: Callable[..., RemoteStore]) -> None:
    remote = dying()
    calls: dict[str, Callable[[RemoteStore, Deadline | None], Any]] = {
        **ASKED,
        "submit": lambda store, until: store.submit(TABLE, BLOCKS, deadline=until).result(),
    }
    with pytest.raises(StelaeError) as caught:
        calls[name](remote, None)
    may_repeat = name != "submit" and OPERATIONS[name].is_repeatable
    assert type(caught.value) is (ConnectionLost if may_repeat else UnknownOutcome)
    assert ("may or may not have happened" in str(caught.value)) != may_repeat
    assert remote.connections == 0


NONSENSE = {
    "stranger": Frame(FrameKind.ANSWER, RequestId(77)),
    "item": Frame(FrameKind.ITEM, RequestId(1)),
    "body": Frame(FrameKind.ANSWER, RequestId(1), body=b"\xc1"),
    "fault": Frame(FrameKind.ERROR, RequestId(1), message=b"\xc1"),
    "end": Frame(FrameKind.END, RequestId(1)),
    "request": Frame(FrameKind.REQUEST, RequestId(1)),
}


@pytest.mark.parametrize("answer", NONSENSE.values(), ids=NONSENSE)
def test_an_owner_that_makes_no_sense(answer: Frame, dying: Callable[..., RemoteStore]) -> None:
    remote = dying(answer)
    with pytest.raises(ProtocolError):
        remote.now()
    assert remote.connections == 0


@pytest.mark.parametrize("answer", NONSENSE.values(), ids=NONSENSE)
@pytest.mark.parametrize("name", ["write", "adopt"])
def test_an_answer_that_makes_no_sense_leaves_the_outcome_open(
    name: str, answer: Frame, dying: Callable[..., RemoteStore]
) -> None:
    remote = dying(answer)
    with pytest.raises(UnknownOutcome, match="may or may not have happened"):
        ASKED[name](remote, None)
    assert remote.connections == 0


@pytest.mark.parametrize("answer", NONSENSE.values(), ids=NONSENSE)
def test_a_scan_that_makes_no_sense(answer: Frame, dying: Callable[..., RemoteStore]) -> None:
    remote = dying(answer)
    with pytest.raises(ProtocolError):
        remote.scan(TABLE, ASK)
    assert remote.connections == 0


def test_nobody_there(tmp_path: Path) -> None:
    threads = ThreadExecutor(1, 1)
    remote = RemoteStore(UnixConnector(str(tmp_path / "none")), threads, CLIENT, SystemClock())
    calls: list[Callable[[], Any]] = [
        remote.attach,
        remote.now,
        remote.pin,
        lambda: remote.write(TABLE, BLOCKS),
        lambda: remote.submit(TABLE, BLOCKS).result(),
    ]
    for call in calls:
        with pytest.raises(ConnectionLost, match="nobody listens there"):
            call()
    remote.close()
    threads.close()


def test_after_a_restart_the_same_backend_goes_on(tmp_path: Path) -> None:
    threads = ThreadExecutor(4, 10)
    backend = FakeBackend(
        tables={TABLE: table_info(USERS)}, answers={"now": Txn(1), "write": Txn(2), "pin": Txn(3), "scan": [BATCH]}
    )
    remote = RemoteStore(UnixConnector(str(tmp_path / "s.sock")), threads, CLIENT, SystemClock())
    for _ in range(3):
        with served(tmp_path, backend):
            remote.attach()
            assert remote.now() == 1
            assert remote.write(TABLE, BLOCKS) == 2
            assert remote.submit(TABLE, BLOCKS).result() == 2
            assert list(remote.scan(TABLE, ASK)) == [BATCH]
            pin = remote.pin()
            assert pin.txn == 3
        with pytest.raises(Unavailable):
            remote.now()
    assert not backend.pins
    remote.close()
    threads.close()


def test_an_answer_that_does_not_come_in_time(world: StoreWorld) -> None:
    go = Event()
    world.backend.answers |= {"find": lambda _: go.wait() and table_info(USERS), "write": lambda *_: Future()}
    remote = world.attach(LineSettings(answer_s=0.02))
    try:
        with pytest.raises(DeadlineExceeded, match=r"took more than 0\.0"):
            remote.find("x")
        with pytest.raises(UnknownOutcome):
            remote.write(TABLE, BLOCKS)
    finally:
        go.set()
    assert world.attach().now() == 1
