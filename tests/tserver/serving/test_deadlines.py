"""Whoever has a deadline is told by then what became of its call, whatever the other end does.

Real time passes here, but nothing is said about how much: a caller without a deadline would wait for ten minutes, and
each test gives up long before that.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import pytest

from stelae.adapters.clock import SystemClock
from stelae.adapters.executor import ThreadExecutor
from stelae.adapters.rng import SystemRng
from stelae.adapters.sockets.unix import UnixConnector
from stelae.client.api.table import Table
from stelae.client.calls.retries import Patience
from stelae.client.calls.session import Session
from stelae.client.remote.lines import Line, LineSettings
from stelae.client.remote.store import RemoteStore
from stelae.client.remote.writes import write_groups
from stelae.model.errors import Closed, ConnectionLost, DeadlineExceeded, StelaeError, UnknownOutcome
from stelae.model.ids import Txn
from stelae.ports.transport import Frame, FrameKind, RequestId
from stelae.service.backend import Backend
from stelae.service.deadlines import SECONDS_MAX, Deadline
from stelae.service.messages import ItemKind
from stelae.service.operations import COMPACT, WRITE
from stelae.service.table import OPERATIONS
from stelae.sim.clock import SimClock
from stelae.tserver.serving.news import News
from stelae.tserver.serving.service import ServiceLimits
from tests.client import peers
from tests.client.asked import ASK, ASKED, BLOCKS, TABLE
from tests.client.fake_backend import CLIENT, FakeBackend, served, table_info, until
from tests.client.samples import USERS
from tests.processes import stop
from tests.tserver.serving.test_hostile import answers
from tests.tserver.serving.test_life import RawPeer

CLOCK = SystemClock()
GUARD_S = 120
FOR_EVER = LineSettings(lines_max=64, connect_s=600, answer_s=600)
"""No time but the caller's ends anything."""


@contextmanager
def attached(path: str) -> Iterator[RemoteStore]:
    threads = ThreadExecutor(32, 100)
    remote = RemoteStore(UnixConnector(path), threads, CLIENT, CLOCK, FOR_EVER)
    try:
        yield remote
    finally:
        remote.close()
        threads.close()


Ends = dict[str, StelaeError | None]


def ends_of(store: Backend, seconds: float = 0.3, names: Collection[str] = ASKED.keys()) -> Ends:
    """What becomes of operations that are asked at once."""

    def end(name: str) -> StelaeError | None:
        try:
            ASKED[name](store, Deadline(CLOCK, seconds))
        except StelaeError as error:
            return error
        return None

    with ThreadPoolExecutor(len(names)) as pool:
        asked = {name: pool.submit(end, name) for name in names}
        return {name: future.result(GUARD_S) for name, future in asked.items()}


def check_by_the_table(ends_in: Callable[[float], Ends]) -> None:
    """What was sent and not answered. A busy machine may take all the time before anything is sent: then it did not
    happen, and is asked again with more time."""
    wrong: Ends = {}
    for seconds in (0.3, 3.0, 20.0):
        ends = ends_in(seconds)
        wrong = {name: end for name, end in ends.items() if type(end) is not _lost(name)}
        if not wrong:
            return
        assert {type(end) for end in wrong.values()} == {DeadlineExceeded}, wrong
    raise AssertionError(f"not by the rules of the table: {wrong}")


def _lost(name: str) -> type[StelaeError]:
    return DeadlineExceeded if OPERATIONS[name].is_repeatable else UnknownOutcome


@pytest.mark.parametrize("serve", [peers.never_answer, peers.answer_byte_by_byte, peers.stop_in_the_middle])
def test_an_answer_that_does_not_come_ends_by_the_rules_of_the_table(
    serve: Callable[[peers.BadPeer, socket.socket], None], tmp_path: Path
) -> None:
    with peers.bad_peer(tmp_path, serve) as (path, peer), attached(path) as remote:
        check_by_the_table(lambda seconds: ends_of(remote, seconds))
        assert {frame.method for frame in peer.requests} == set(ASKED)
        assert remote.connections == 0


def test_what_was_never_sent_has_not_happened(tmp_path: Path) -> None:
    """Whoever listens there says no hello, so nothing is asked of it."""
    with peers.bad_peer(tmp_path, peers.never_greet) as (path, peer), attached(path) as remote:
        for name, end in ends_of(remote).items():
            assert type(end) is DeadlineExceeded, f"{name}: {end!r}"
        assert peer.requests == []
        assert remote.connections == 0


@pytest.mark.parametrize("backlog", [0, 128])
def test_nobody_takes_the_connection(backlog: int, tmp_path: Path) -> None:
    path = str(tmp_path / "n.sock")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(backlog)
        with attached(path) as remote:
            for name, end in ends_of(remote).items():
                assert isinstance(end, DeadlineExceeded | ConnectionLost), f"{name}: {end!r}"
            assert remote.connections == 0


OWNER_PROCESS = """
import sys
from pathlib import Path
from stelae.model.ids import Txn
from tests.client.asked import TABLE
from tests.client.fake_backend import FakeBackend, served, table_info
from tests.client.samples import USERS

with served(Path(sys.argv[1]), FakeBackend({TABLE: table_info(USERS)}, {"now": Txn(1)})):
    print("ready", flush=True)
    sys.stdin.read()
"""


@contextmanager
def owner_process(directory: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", OWNER_PROCESS, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            os.kill(process.pid, signal.SIGCONT)
            process.kill()


def test_an_owner_that_is_stopped(tmp_path: Path) -> None:
    """Its connections stay open, and its system takes what is sent to it; nobody answers until it goes on."""
    with owner_process(tmp_path) as process, attached(str(tmp_path / "s.sock")) as remote:

        def ends_in(seconds: float) -> Ends:
            os.kill(process.pid, signal.SIGCONT)
            lines = [remote.lines.take(Deadline(CLOCK, GUARD_S)) for _ in ASKED]
            for line in lines:
                remote.lines.give(line)
            stop(process)
            return ends_of(remote, seconds)

        check_by_the_table(ends_in)
        table = Table(Session(remote, Patience(CLOCK, SystemRng(), 0.1)), table_info(USERS))
        lasting: list[Callable[[], Any]] = [lambda: table.get("ann"), lambda: table.put({"id": "ann"}), table.count]
        for call in lasting:
            with pytest.raises(DeadlineExceeded):
                call()
        os.kill(process.pid, signal.SIGCONT)
        assert remote.now() == 1


def test_a_deadline_that_is_over_sends_nothing(tmp_path: Path) -> None:
    with served(tmp_path, FakeBackend({TABLE: table_info(USERS)}, answers())) as world:
        remote = world.attach()
        clock = SimClock()
        deadline = Deadline(clock, 5)
        clock.advance(5)
        for name, call in ASKED.items():
            with pytest.raises(DeadlineExceeded, match=r"the 5 s that were given|took more than|others that wait"):
                call(remote, deadline)
            assert not world.backend.calls, name


def test_a_caller_that_would_wait_for_ever_can(tmp_path: Path) -> None:
    """Sockets and timers take no infinite times."""
    with served(tmp_path, FakeBackend({TABLE: table_info(USERS)}, answers())) as world:
        for seconds in (float("inf"), 1e30, SECONDS_MAX + 1):
            for call in ASKED.values():
                call(world.attach(), Deadline(CLOCK, seconds))


# -- the other side


def test_the_store_sees_what_is_left(tmp_path: Path) -> None:
    """Less than the caller had, whatever is asked."""
    backend = FakeBackend({TABLE: table_info(USERS)}, {**answers(), "info": table_info(USERS)})
    with served(tmp_path, backend) as world:
        remote = world.attach()
        for name, call in ASKED.items():
            clock = SimClock()
            deadline = Deadline(clock, 100)
            clock.advance(40)
            backend.deadlines.clear()
            call(remote, deadline)
            for seen in backend.deadlines:
                assert seen is not None, name
                assert seen.seconds == 60, name
            assert backend.deadlines, name


def test_a_store_that_gives_up_in_time_is_believed(tmp_path: Path) -> None:
    backend = FakeBackend({TABLE: table_info(USERS)}, dict.fromkeys((*answers(), "info"), DeadlineExceeded("no disk")))
    with served(tmp_path, backend) as world:
        for name, end in ends_of(world.attach(), GUARD_S).items():
            assert (type(end), str(end)) == (DeadlineExceeded, "no disk"), name


def test_a_request_that_cannot_begin_in_time_never_does(tmp_path: Path) -> None:
    """All places are taken, those for short work and those for long: nothing happened, of no operation. A small write
    needs no place."""
    go, began = Event(), [Event(), Event()]

    def hold(place: int) -> Callable[..., Any]:
        def held(*_: Any) -> Any:
            began[place].set()
            go.wait()
            return 1 if place == 0 else None

        return held

    backend = FakeBackend({TABLE: table_info(USERS)}, {**answers(), "renew": hold(0), "flush": hold(1)})
    limits = ServiceLimits(jobs_max=1, upkeep_max=1)
    with served(tmp_path, backend, limits) as world, attached(world.path) as remote:
        held = [world.threads.submit(remote.renew, "t"), world.threads.submit(remote.flush, TABLE)]
        try:
            for each in began:
                each.wait()
            # The caller's own patience is longer, so that it hears what the owner says.
            seen = len(backend.calls)
            ends = {name: _end_with_short_notice(remote, name) for name in ASKED if name not in ("pin", "write")}
            for name, end in ends.items():
                assert type(end) is DeadlineExceeded, f"{name}: {end!r}"
                assert "too much to do" in str(end), name
            assert len(backend.calls) == seen
            assert _end_with_short_notice(remote, "write") is None
            assert len(backend.calls) == seen + 1
        finally:
            go.set()
        for future in held:
            future.result(GUARD_S)


class _ShortNotice(Deadline):
    """Tells the other side of less time than it has."""

    def check(self, what: str) -> float:
        super().check(what)
        return 0.05


def _end_with_short_notice(remote: RemoteStore, name: str) -> StelaeError | None:
    try:
        ASKED[name](remote, _ShortNotice(CLOCK, GUARD_S))
    except StelaeError as error:
        return error
    return None


# -- long work

LONG = [name for name, operation in OPERATIONS.items() if operation.is_long]


class SignsOfLife:
    """Counts those that lines receive. With each of them the clock goes on; after some, `enough` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, clock: SimClock) -> None:
        self.enough = Event()
        self._clock = clock
        self._count = 0
        receive = Line.receive

        def look(line: Line, timeout_s: float) -> Frame:
            frame = receive(line, timeout_s)
            if frame.kind is FrameKind.ITEM and COMPACT.method.read_answer(frame).kind is ItemKind.PROGRESS:
                self._take()
            return frame

        monkeypatch.setattr(Line, "receive", look)

    def _take(self) -> None:
        self._clock.advance(GUARD_S)
        self._count += 1
        if self._count == 5:
            self.enough.set()


@pytest.mark.parametrize("name", LONG)
def test_signs_of_life_keep_a_caller_waiting(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline is over after the first of them. The owner is told of a short time, so it sends them often."""
    clock = SimClock()
    signs = SignsOfLife(monkeypatch, clock)
    given = answers()[name]
    backend = FakeBackend({TABLE: table_info(USERS)}, {name: lambda *_: signs.enough.wait() and given})
    with served(tmp_path, backend) as world, attached(world.path) as remote:
        deadline = _ShortNotice(clock, GUARD_S / 2)
        asked = world.threads.submit(ASKED[name], remote, deadline)
        assert asked.exception(GUARD_S) is None
        assert deadline.is_over
        assert remote.connections == 1


def test_signs_of_life_come_several_times_in_the_time_of_the_caller() -> None:
    async def signs_s(seconds: float | None) -> float:
        return News(None if seconds is None else Deadline(CLOCK, seconds))._sign_s

    given = [asyncio.run(signs_s(seconds)) for seconds in (None, 30, 1, 0.2, 0.0)]
    assert given == [1, 1, 0.25, 0.05, 0.02]


@pytest.mark.parametrize("name", LONG)
def test_silence_ends_it(name: str, tmp_path: Path) -> None:
    """The owner is stuck as a whole: no sign of life comes."""
    go = Event()

    def work(*_: Any) -> Any:
        world.loop.loop.call_soon_threadsafe(go.wait)
        go.wait()
        return answers()[name]

    backend = FakeBackend({TABLE: table_info(USERS)}, {"now": Txn(1), name: work})
    with served(tmp_path, backend) as world, attached(world.path) as remote:
        assert remote.now() == 1
        try:
            check_by_the_table(lambda seconds: ends_of(remote, seconds, [name]))
        finally:
            go.set()


def test_a_scan_may_take_longer_than_its_deadline_as_long_as_batches_come(tmp_path: Path) -> None:
    clock = SimClock()
    batches = list(answers()["scan"])
    with served(tmp_path, FakeBackend({TABLE: table_info(USERS)}, {"scan": batches * 5})) as world:
        scan = world.attach().scan(TABLE, ASK, deadline=Deadline(clock, 10))
        found = 0
        for _ in scan:
            clock.advance(7)
            found += 1
        assert found == 10


# -- what is closed


def test_a_scan_is_closed_though_the_owner_is_stuck(tmp_path: Path) -> None:
    with peers.bad_peer(tmp_path, peers.stop_in_the_middle) as (path, _), attached(path) as remote:
        scan = remote.scan(TABLE, ASK)
        assert next(scan).num_rows == 2
        with ThreadPoolExecutor(1) as pool:
            pool.submit(scan.close).result(GUARD_S)
        assert remote.connections == 0


def test_a_service_that_closes_waits_for_what_cannot_be_repeated(tmp_path: Path) -> None:
    """And tells the others to ask somebody else."""
    go, began = Event(), [Event(), Event()]

    def hold(place: int, answer: Any) -> Callable[..., Any]:
        def held(*_: Any) -> Any:
            began[place].set()
            go.wait()
            return answer

        return held

    backend = FakeBackend({TABLE: table_info(USERS)}, {"truncate": hold(0, Txn(9)), "compact": hold(1, [])})
    with served(tmp_path, backend, ServiceLimits(close_s=GUARD_S)) as world, attached(world.path) as remote:
        truncating, compacting = (world.threads.submit(ASKED[name], remote, None) for name in ("truncate", "compact"))
        for each in began:
            each.wait()
        stopping = world.threads.submit(world.stop)
        assert type(compacting.exception(GUARD_S)) is ConnectionLost
        assert not truncating.done()
        go.set()
        assert truncating.result(GUARD_S) == 9
        stopping.result(GUARD_S)


def test_a_service_that_closes_before_they_end_leaves_the_outcome_unknown(tmp_path: Path) -> None:
    go, began = Event(), Event()

    def held(*_: Any) -> Txn:
        began.set()
        go.wait()
        return Txn(9)

    backend = FakeBackend({TABLE: table_info(USERS)}, {"truncate": held, "write": lambda *_: Future()})
    with served(tmp_path, backend, ServiceLimits(close_s=0.05)) as world, attached(world.path) as remote:
        under_way = [world.threads.submit(ASKED[name], remote, None) for name in ("truncate", "write")]
        began.wait()
        until(lambda: len(backend.calls) == 2, world.loop)
        try:
            stopping = world.threads.submit(world.stop)
            for future in under_way:
                assert type(future.exception(GUARD_S)) is UnknownOutcome
        finally:
            go.set()
        stopping.result(GUARD_S)


@pytest.mark.parametrize("name", [name for name in ASKED if name not in ("info", "write")])
def test_a_store_that_is_closed_in_the_middle(name: str, tmp_path: Path) -> None:
    backend = FakeBackend({TABLE: table_info(USERS)}, {name: Closed("it was closed")})
    with served(tmp_path, backend) as world, pytest.raises(StelaeError) as caught:
        ASKED[name](world.attach(), None)
    assert type(caught.value) is (ConnectionLost if OPERATIONS[name].is_repeatable else UnknownOutcome)


def test_writes_of_a_connection_keep_their_order_when_one_of_them_gives_up(tmp_path: Path) -> None:
    go = Event()
    backend = FakeBackend(
        {TABLE: table_info(USERS)}, {"now": Txn(1)}, is_local=False
    )  # its writes are let in by threads
    backend.answers["write"] = lambda *_: go.wait() and Txn(len(backend.calls))
    with served(tmp_path, backend) as world:
        peer = RawPeer(world)
        try:
            for number, left_ms in ((1, None), (2, 30), (3, None)):
                peer.send(_write_frame(number, left_ms))
            refused = peer.receive()
            assert (refused.kind, refused.request_id) == (FrameKind.ERROR, 2)
            assert b"DeadlineExceeded" in bytes(refused.message)
            assert world.attach().now() == 1
            assert [call[0] for call in backend.calls] == ["write", "now"]
        finally:
            go.set()
        assert sorted(peer.receive().request_id for _ in range(2)) == [1, 3]
        peer.close()


def _write_frame(number: int, left_ms: int | None) -> Frame:
    group = next(write_groups(TABLE, BLOCKS, None, must_show=False))
    message = msgspec.structs.replace(group.message, left_ms=left_ms)
    return WRITE.method.ask(RequestId(number), message, group.body)
