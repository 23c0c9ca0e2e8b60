"""Three nodes of two shards, and three replicas, as real processes, while one of them is stopped, or cut off, or its
disk is full, or lost, or its clock is wrong, or two nodes are dead. What programs were told is judged as in the
simulated cluster."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TypeVar

import msgspec
import pytest

import stelae
from stelae.adapters.liveness import ProcessMark, send_signal, wait_for_end
from stelae.aio import AsyncTable
from stelae.launch.access import Access
from stelae.launch.looking import ClusterMasters
from stelae.launch.metastores import metastore_place, open_metastore
from stelae.model.errors import DiskFull, PartialWrite, Retryable, Unavailable, UnknownOutcome
from stelae.ports.metastore import Metastore, PutKey
from stelae.registry.incarnations import ShardLife, life_key, read_lives
from stelae.registry.tablet_records import TabletPhase, read_tablets
from tests.cluster.history import History
from tests.cluster.machines import Machine
from tests.cluster.machines import machines as machines_for
from tests.cluster.proxy import Proxy
from tests.cluster.test_replicas import (
    SHARDS,
    TABLETS,
    is_whole,
    node_process,
    process_of,
    start_nodes,
    three_nodes,
)
from tests.clusters import RealCluster, connected, kill, until
from tests.effort import HANG_S, long_run, tries
from tests.histories.checker import check_history

T = TypeVar("T")

ROWS = (1_000, 2_000, 3_000)
COUNTER = 4_000
OTHER = 4_001
"""A row that the programs do not write to."""
BULK = 20_000
WORKERS = 3
SOON_S = 3.0
STOPPED_S_MAX = 20.0
"""After so long another leads in the place of one that is stopped."""


class Load:
    """Programs that put, read, and count, each on a connection and a thread of its own, until it ends."""

    def __init__(self, cluster: RealCluster) -> None:
        self.history = History()
        self._cluster = cluster
        self._is_over = False
        self._errors: list[BaseException] = []
        works = [self._work] * WORKERS + [self._work_on_loop]
        self._threads = [Thread(target=work, args=(number,), daemon=True) for number, work in enumerate(works)]
        for thread in self._threads:
            thread.start()

    def _work(self, number: int) -> None:
        who, history = f"worker {number}", self.history
        try:
            with self._cluster.connect() as db:
                table = db.table("t")
                turn = number
                while not self._is_over:
                    turn += 1
                    row = ROWS[turn % len(ROWS)]
                    if turn % 3 == 0:
                        history.record(who, "get", {str(row): None}, partial(_get, table, row))
                    elif turn % 3 == 1:
                        value = history.value()
                        history.record(who, "put", {str(row): value}, partial(table.put, {"k": row, "v": value}))
                    else:
                        count = partial(_count, table)
                        history.record(who, "add", {str(COUNTER): 1}, count)
        except BaseException as error:  # noqa: BLE001 - for the test
            self._errors.append(error)

    def _work_on_loop(self, number: int) -> None:
        """The same for an event loop, which has a connection of its own."""
        who, history = f"worker {number}", self.history
        try:
            with asyncio.Runner() as runner:
                run = runner.run
                opening = stelae.aio.connect(self._cluster.address, timeout_s=HANG_S)
                table = run(run(opening.__aenter__()).table("t"))
                while not self._is_over:
                    value, row = history.value(), ROWS[number % len(ROWS)]
                    put = partial(_put_on_loop, runner, table, {"k": row, "v": value})
                    history.record(who, "put", {str(row): value}, put)
                    number += 1
                run(opening.__aexit__(None, None, None))
        except BaseException as error:  # noqa: BLE001 - for the test
            self._errors.append(error)

    def wait_for(self, count: int) -> None:
        """Until so many more puts were acknowledged."""
        upto = self.history.outcomes["put ok"] + count
        until(lambda: self.history.outcomes["put ok"] >= upto or self._errors)

    def end(self) -> None:
        self._is_over = True
        for thread in self._threads:
            thread.join(HANG_S)
            assert not thread.is_alive()
        assert not self._errors, self._errors[0]


def _put_on_loop(runner: asyncio.Runner, table: AsyncTable, row: dict[str, int]) -> int:
    return runner.run(table.put(row))


def _get(table: stelae.Table, row: int) -> tuple[dict[str, int], int | None]:
    found = table.get(row)
    return ({}, None) if found is None else ({str(row): found["v"]}, found.txn)


def _count(table: stelae.Table) -> int:
    return int(table.increment(COUNTER, {"v": 1})["v"])


@dataclass(frozen=True, slots=True)
class Scene:
    """`machines`: what each shard runs on, by its name."""

    cluster: RealCluster
    machines: Mapping[str, Machine]
    table: stelae.Table
    load: Load


@contextmanager
def loaded(directory: Path) -> Iterator[Scene]:
    """When it ends, all is healed: the table gets whole, and nothing is wrong with what was told."""
    with ExitStack() as held:
        machines, environment = held.enter_context(machines_for(directory, 3, SHARDS))
        cluster, db, table = held.enter_context(three_nodes(directory, environment))
        load = Load(cluster)
        load.wait_for(20)
        yield Scene(cluster, machines, table, load)
        load.wait_for(20)
        until(lambda: is_whole(table))
        load.end()
        for row in ROWS:
            load.history.record("judge", "get", {str(row): None}, partial(_get, table, row))
        lines = list(load.history.lines())
        (directory / "history.jsonl").write_text("\n".join(lines) + "\n")  # for other checkers; kept if this one fails
        load.history.check()
        assert check_history(lines) == []
        until(lambda: not db.check().problems)


def loaded_tablet(table: stelae.Table) -> stelae.TabletInfo:
    """The one that the programs write to, once somebody leads it: until then it is not shown."""

    def find() -> stelae.TabletInfo | None:
        shown = table.tablets()
        return shown[-1] if len(shown) == TABLETS else None

    found: stelae.TabletInfo = until(find)
    return found


def leader(table: stelae.Table) -> str:
    return loaded_tablet(table).server


def followers(table: stelae.Table) -> list[str]:
    return [server for server, _ in loaded_tablet(table).replicas]


def node_of(server: str) -> str:
    return server.partition("/")[0]


def stop_the_leader(scene: Scene) -> None:
    """For longer than its lease; another leads, and it wakes up."""
    cluster, load = scene.cluster, scene.load
    before, stopped = _stop_while_whole(scene)
    try:
        with connected(cluster.address, SOON_S) as hasty:  # who is stopped is not waited for by it
            until(lambda: _epoch(hasty) > before.epoch)
        load.wait_for(20)
    finally:
        send_signal(stopped, signal.SIGCONT)
    load.wait_for(20)


def _stop_while_whole(scene: Scene) -> tuple[stelae.TabletInfo, ProcessMark]:
    """Stop the leader while every tablet has all its members. On a busy machine one may just have been left out: then
    the leader's absence would leave too few, and nobody would lead."""
    while True:
        until(lambda: is_whole(scene.table))
        before = loaded_tablet(scene.table)
        stopped = process_of(scene.cluster, before.server)
        send_signal(stopped, signal.SIGSTOP)
        records = _in_metastore(scene.cluster, read_tablets)
        if all(len(each.replicas) == 3 for each in records if each.phase is TabletPhase.RUNNING):
            return before, stopped
        send_signal(stopped, signal.SIGCONT)


def _epoch(db: stelae.Database) -> int:
    try:
        shown = db.table("t").tablets()
        return shown[-1].epoch if len(shown) == TABLETS else 0
    except Retryable:
        return 0


def kill_the_leader(scene: Scene) -> None:
    before = loaded_tablet(scene.table)
    kill(process_of(scene.cluster, before.server))
    until(lambda: loaded_tablet(scene.table).epoch > before.epoch)
    scene.load.wait_for(20)


def _behind_proxies(scene: Scene, cut: Callable[[Scene, Mapping[str, Proxy]], bool]) -> None:
    """All followers get proxies. They are killed, and the leader is stopped until it is written down that they serve at
    the proxies: so it makes its connections anew, by these. On a busy machine another may lead by then: its followers
    get proxies next, as far as they have none. `cut` is called with the proxies; whether it could be done."""
    cluster, table = scene.cluster, scene.table
    proxies: dict[str, Proxy] = {}

    def is_direct(server: str) -> bool:
        """Who was started again meanwhile has said itself where it serves."""
        return server not in proxies or _address(cluster, server) != proxies[server].address

    with ExitStack() as held:
        is_done = False
        while not is_done:
            before, stopped = _stop_while_whole(scene)
            try:
                direct = {server: _address(cluster, server) for server, _ in before.replicas if is_direct(server)}
                for server in direct:
                    kill(process_of(cluster, server))
                for server, address in direct.items():
                    if not _does_move(cluster, server, address):
                        break
                    proxies[server] = held.enter_context(Proxy(_address(cluster, server)))
                    _rewrite(cluster, server, proxies[server].address)
            finally:
                send_signal(stopped, signal.SIGCONT)
            until(lambda: is_whole(table))
            is_done = not any(map(is_direct, followers(table))) and cut(scene, proxies)
        for server, proxy in proxies.items():
            if not is_direct(server):
                kill(process_of(cluster, server))
                _wait_moved(cluster, server, proxy.address)
                until(lambda: is_whole(table))


def _does_move(cluster: RealCluster, server: str, address: str) -> bool:
    """Whether it is started again while the leader is stopped. It waits for that one, if it was stopped in the midst of
    a write to the metastore."""
    give_up_s = time.monotonic() + STOPPED_S_MAX
    until(lambda: _address(cluster, server) not in ("", address) or time.monotonic() > give_up_s)
    return _address(cluster, server) not in ("", address)


def _wait_moved(cluster: RealCluster, server: str, address: str) -> None:
    until(lambda: _address(cluster, server) not in ("", address))


def _hold_back(scene: Scene, proxies: Mapping[str, Proxy], *, to_target: bool = True, to_caller: bool = True) -> bool:
    """Nobody reaches a follower, which reaches the others, or nobody hears what it answers, or both: it is dropped, and
    it, or the other shard of its node, has its place in the end. It must not lead the other tablet: programs that do
    not hear it could not even list the tablets."""
    led_by = {tablet.server for tablet in scene.table.tablets()}
    quiet = [server for server in followers(scene.table) if server in proxies and server not in led_by]
    if not quiet:
        return False
    far = quiet[0]
    proxies[far].hold_back(to_target=to_target, to_caller=to_caller)
    until(lambda: far not in followers(scene.table))
    scene.load.wait_for(20)
    proxies[far].let_through()
    until(lambda: is_whole(scene.table))
    scene.load.wait_for(20)
    return True


def lose_what_a_follower_is_asked(scene: Scene) -> None:
    _behind_proxies(scene, partial(_hold_back, to_caller=False))


def lose_what_a_follower_answers(scene: Scene) -> None:
    _behind_proxies(scene, partial(_hold_back, to_target=False))


def cut_off_a_follower(scene: Scene) -> None:
    """In both directions."""
    _behind_proxies(scene, _hold_back)


def cut_off_the_leader(scene: Scene) -> None:
    """From both other members, in both directions. Programs, masters and the metastore reach it all the time: it must
    step aside by itself."""
    _behind_proxies(scene, _hold_the_leader)


def _hold_the_leader(scene: Scene, proxies: Mapping[str, Proxy]) -> bool:
    """False if it reaches one of them all the same, and goes on with that one."""
    cut_off, others = leader(scene.table), followers(scene.table)
    if not proxies.keys() >= {*others}:
        return False
    leading = process_of(scene.cluster, cut_off).pid
    for server in others:
        proxies[server].hold_back(only=leading)
    until(lambda: leader(scene.table) != cut_off or len(followers(scene.table)) < len(others))
    is_followed = leader(scene.table) != cut_off
    scene.load.wait_for(20)
    for server in others:
        proxies[server].let_through()
    until(lambda: is_whole(scene.table))
    scene.load.wait_for(20)
    return is_followed


def _address(cluster: RealCluster, server: str) -> str:
    return _in_metastore(cluster, partial(_life, server=server)).address


async def _life(store: Metastore, server: str) -> ShardLife:
    (found,) = [each for each in await read_lives(store) if each.name == server]
    return found


def _rewrite(cluster: RealCluster, server: str, address: str) -> None:
    """Everybody who connects from now on is told that the shard serves there."""

    async def rewrite(store: Metastore) -> None:
        life = await _life(store, server)
        moved = msgspec.structs.replace(life, address=address)
        await store.txn([], [PutKey(life_key(life.node, life.number), msgspec.json.encode(moved))])

    _in_metastore(cluster, rewrite)


def _in_metastore(cluster: RealCluster, job: Callable[[Metastore], Awaitable[T]]) -> T:
    place = metastore_place(json.loads((cluster.directory / "cluster.json").read_text())["metastore"])

    async def do() -> T:
        async with open_metastore(place) as store:
            return await job(store)

    return asyncio.run(do())


def _fill_up(scene: Scene, is_enough: Callable[[], bool]) -> str:
    """Write until that is so, or a write is refused because a disk is full: the words."""
    with connected(scene.cluster.address, SOON_S) as hasty:
        mine, first = hasty.table("t"), BULK
        while not is_enough():
            try:
                mine.put_many([{"k": row, "v": row} for row in range(first, first + BULK)])
            except DiskFull as error:
                return str(error)
            except (Retryable, UnknownOutcome, PartialWrite):
                continue
            first += BULK
    return ""


def fill_the_leaders_disk(scene: Scene) -> None:
    table, full = scene.table, leader(scene.table)
    with scene.machines[full].full_disk():
        words = _fill_up(scene, lambda: leader(table) != full)
        assert "No space left" in words or leader(table) != full
        assert table.get(ROWS[0]) is not None
    scene.load.wait_for(20)


def fill_a_followers_disk(scene: Scene) -> None:
    """It is dropped, and writes go on. It, or the other shard of its node, has its place when there is room."""
    table = scene.table
    full = followers(table)[0]
    with scene.machines[full].full_disk():
        _fill_up(scene, lambda: full not in followers(table))
        scene.load.wait_for(20)
    until(lambda: is_whole(table))


def _set_clock(scene: Scene, server: str, *, ahead_s: float) -> None:
    scene.machines[server].set_clock(ahead_s=ahead_s)
    try:
        until(lambda: server in _with_wrong_clocks(scene.cluster))
        scene.load.wait_for(20)
    finally:
        scene.machines[server].set_clock()
    until(lambda: not _with_wrong_clocks(scene.cluster))
    scene.load.wait_for(20)


def _with_wrong_clocks(cluster: RealCluster) -> list[str]:
    """Those of which the cluster says that they get no new tablets because of their clocks."""
    late = ClusterMasters(cluster.address, Access(), "", HANG_S).look().late
    return [each.what for each in late if "its clock is" in each.words]


def set_the_leaders_clock_ahead(scene: Scene) -> None:
    _set_clock(scene, leader(scene.table), ahead_s=300.0)


def set_the_leaders_clock_back(scene: Scene) -> None:
    _set_clock(scene, leader(scene.table), ahead_s=-300.0)


def set_a_followers_clock_ahead(scene: Scene) -> None:
    _set_clock(scene, followers(scene.table)[0], ahead_s=300.0)


def set_a_followers_clock_back(scene: Scene) -> None:
    _set_clock(scene, followers(scene.table)[0], ahead_s=-300.0)


def _run_clock(scene: Scene, rate: float) -> None:
    """The leader's clocks go at another rate, within what leases allow for, while it is stopped, and killed."""
    machine = scene.machines[leader(scene.table)]
    machine.set_clock(rate=rate)
    try:
        scene.load.wait_for(20)
        stop_the_leader(scene)
        until(lambda: is_whole(scene.table))
        kill_the_leader(scene)
    finally:
        machine.set_clock()


def run_the_leaders_clock_fast(scene: Scene) -> None:
    _run_clock(scene, 1.08)


def run_the_leaders_clock_slowly(scene: Scene) -> None:
    _run_clock(scene, 0.92)


def _wipe_disk(scene: Scene, server: str) -> None:
    """It is killed, and started again with an empty disk: it is another replica, which is filled by itself."""
    machine = scene.machines[server]
    until(lambda: is_whole(scene.table))
    log = _log_of(machine)
    starter = node_process(scene.cluster, node_of(server))
    send_signal(starter, signal.SIGSTOP)  # it starts the shard again when nothing is left
    try:
        kill(process_of(scene.cluster, server))
        machine.wipe_disk()
    finally:
        send_signal(starter, signal.SIGCONT)
    until(lambda: _log_of(machine) not in ("", log))
    scene.load.wait_for(20)


def _log_of(machine: Machine) -> str:
    """Which log lies there; empty: none does."""
    try:
        return str(json.loads((machine.directory / "shard.json").read_text())["log"])
    except FileNotFoundError:
        return ""


def wipe_the_leaders_disk(scene: Scene) -> None:
    _wipe_disk(scene, leader(scene.table))


def wipe_a_followers_disk(scene: Scene) -> None:
    _wipe_disk(scene, followers(scene.table)[0])


def lose_one_node_and_another(scene: Scene) -> None:
    """With one node dead for good writes go on. With two dead they are refused in words, and rows are read; when the
    nodes are started again all goes on by itself."""
    cluster, table = scene.cluster, scene.table
    until(lambda: is_whole(table))
    first = node_of(followers(table)[0])
    _kill_node(cluster, first)
    until(lambda: first not in {node_of(server) for server in (leader(table), *followers(table))})
    scene.load.wait_for(20)
    left = (first, node_of(leader(table)))
    _kill_node(cluster, next(node for node in ("node-1", "node-2", "node-3") if node not in left))
    with connected(cluster.address, SOON_S) as hasty:
        mine = hasty.table("t")

        def is_refused() -> bool:
            try:
                mine.put({"k": OTHER, "v": 1})
            except UnknownOutcome:  # let in before it was known that the others are away
                return False
            except Unavailable as error:
                return "1 of 2 replicas within reach" in str(error)
            raise AssertionError("a write was acknowledged that one replica has")

        until(is_refused)
        assert mine.get(ROWS[0]) is not None
    start_nodes(cluster)
    scene.load.wait_for(20)
    assert table.get(OTHER) in (None, {"k": OTHER, "v": 1})


def _kill_node(cluster: RealCluster, node: str) -> None:
    """With its shards, which end by themselves when the node does."""
    shards = [process_of(cluster, f"{node}/{number}") for number in range(SHARDS)]
    kill(node_process(cluster, node))
    for shard in shards:
        assert wait_for_end(shard, HANG_S)


FAULTS: list[Callable[[Scene], None]] = [
    stop_the_leader,
    lose_what_a_follower_is_asked,
    lose_what_a_follower_answers,
    cut_off_a_follower,
    cut_off_the_leader,
    kill_the_leader,
    fill_the_leaders_disk,
    fill_a_followers_disk,
    wipe_the_leaders_disk,
    wipe_a_followers_disk,
    set_the_leaders_clock_ahead,
    set_the_leaders_clock_back,
    set_a_followers_clock_ahead,
    set_a_followers_clock_back,
    run_the_leaders_clock_fast,
    run_the_leaders_clock_slowly,
    lose_one_node_and_another,
]
IN_EVERY_RUN = (stop_the_leader, fill_the_leaders_disk, set_the_leaders_clock_ahead, run_the_leaders_clock_slowly)


@pytest.mark.parametrize(
    "fault",
    [fault if fault in IN_EVERY_RUN else pytest.param(fault, marks=long_run) for fault in FAULTS],
    ids=lambda fault: fault.__name__,
)
def test_nothing_is_lost_and_nothing_old_is_read(tmp_path: Path, fault: Callable[[Scene], None]) -> None:
    with loaded(tmp_path) as scene:
        fault(scene)


@long_run
def test_nothing_is_lost_in_many_rounds(tmp_path: Path) -> None:
    with loaded(tmp_path) as scene:
        for round_ in range(tries(2)):
            FAULTS[round_ % len(FAULTS)](scene)
            until(lambda: is_whole(scene.table))
