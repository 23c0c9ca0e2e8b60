"""Master and shard killed with -9 again and again, at any time, while clients write: nothing that was acknowledged is
lost, nothing happens twice, and the clients go on by themselves within their deadline."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event

import stelae
import stelae.aio
from tests.cluster.forked import ForkedCluster
from tests.clusters import free_port, until
from tests.effort import HANG_S, tries

KILLS = 200
COUNTERS = 3


class Load:
    """What one client was told. `acknowledged`: the rows that it put, and with what; `unknown`: those of which nobody
    can know. `counted[k]`: how many increments of a counter were acknowledged, and how many may have happened."""

    def __init__(self, number: int) -> None:
        self.acknowledged: dict[int, int] = {}
        self.unknown: set[int] = set()
        self.counted = {key: [0, 0] for key in range(COUNTERS)}
        self.calls = 0
        self.next = number * 10_000_000

    def take_row(self) -> tuple[int, int]:
        self.next += 1
        return self.next, self.next * 3

    def note_increment(self, key: int, is_known: bool) -> None:
        self.counted[key][1] += 1
        self.counted[key][0] += is_known


def write(address: str, load: Load, is_over: Event, seed: int) -> None:
    chance = random.Random(seed)
    with stelae.connect(address, timeout_s=HANG_S) as db:
        rows, counters = db.table("rows"), db.table("counters")
        while not is_over.is_set():
            if chance.random() < 0.7:
                row, value = load.take_row()
                try:
                    rows.put({"id": row, "v": value})
                    load.acknowledged[row] = value
                except stelae.UnknownOutcome as error:
                    assert not error.is_fault, error
                    load.unknown.add(row)
            else:
                key = chance.randrange(COUNTERS)
                try:
                    counters.increment(key, {"n": 1})
                    load.note_increment(key, True)
                except stelae.UnknownOutcome as error:
                    assert not error.is_fault, error
                    load.note_increment(key, False)
            load.calls += 1


def write_awaiting(address: str, load: Load, is_over: Event, _: int) -> None:
    """The same rows from an event loop, four at once, with a read of what was acknowledged in between."""

    async def put(table: stelae.aio.AsyncTable) -> None:
        while not is_over.is_set():
            row, value = load.take_row()
            try:
                await table.put({"id": row, "v": value})
                load.acknowledged[row] = value
                found = await table.get(row)
                assert found is not None
                assert found["v"] == value
            except stelae.UnknownOutcome as error:
                assert not error.is_fault, error
                load.unknown.add(row)
            load.calls += 1

    async def run() -> None:
        async with stelae.aio.connect(address, timeout_s=HANG_S) as db:
            table = await db.table("rows")
            await asyncio.gather(*(put(table) for _ in range(4)))

    asyncio.run(run())


def wait_for_more(loads: list[Load], count: int, running: list[Future[None]]) -> None:
    """Until so many more calls were answered; a client that has failed is not waited for."""
    wanted = sum(load.calls for load in loads) + count
    until(lambda: sum(load.calls for load in loads) >= wanted or any(each.done() for each in running))


def make_tables(db: stelae.Database) -> None:
    db.create_table("rows", {"id": "int64"}, [stelae.columns("g", {"v": "int64"})], splits=[10_000_000])
    db.create_table("counters", {"id": "int64"}, [stelae.columns("g", {"n": "int64"})])


def change_tables(address: str, names: list[str], is_over: Event) -> None:
    """Makes tables as long as it may; `names`: those that are certainly there."""
    with stelae.connect(address, timeout_s=HANG_S) as db:
        number = 0
        while not is_over.is_set():
            name, number = f"made{number}", number + 1
            try:
                db.create_table(name, {"id": "int64"}, [stelae.columns("g", {"v": "int64"})])
            except stelae.AlreadyExists:
                continue
            except stelae.UnknownOutcome as error:
                assert not error.is_fault, error
                continue
            names.append(name)
            until(lambda: is_over.wait(0.2) or True)


def test_nothing_is_lost_and_nothing_happens_twice(tmp_path: Path) -> None:
    chance, is_over = random.Random(7), Event()
    loads, names = [Load(number) for number in range(3)], list[str]()
    with ForkedCluster(tmp_path, f"127.0.0.1:{free_port()}") as cluster:
        cluster.begin("master")
        cluster.begin("shard")
        with stelae.connect(cluster.address, timeout_s=HANG_S) as db:
            make_tables(db)
        with ThreadPoolExecutor(4) as threads:
            clients: list[Callable[[str, Load, Event, int], None]] = [write, write, write_awaiting]
            running = [
                threads.submit(client, cluster.address, load, is_over, seed)
                for seed, (client, load) in enumerate(zip(clients, loads, strict=True))
            ]
            running.append(threads.submit(change_tables, cluster.address, names, is_over))
            try:
                killed = 0
                while killed < tries(2 * KILLS):
                    wait_for_more(loads, chance.randrange(12), running)
                    victims = chance.choice([["shard"], ["shard"], ["master"], ["shard", "master"]])
                    for victim in victims:
                        cluster.kill(victim)
                    killed += len(victims)
                    for victim in chance.sample(victims, len(victims)):
                        cluster.begin(victim)
            finally:
                is_over.set()
            for each in running:
                each.result(HANG_S)
        with stelae.connect(cluster.address, timeout_s=HANG_S) as db:
            found = {row["id"]: row["v"] for row in db.table("rows").scan()}
            for load in loads:
                assert {row for row, value in load.acknowledged.items() if found.get(row) != value} == set()
            known = {row for load in loads for row in (*load.acknowledged, *load.unknown)}
            assert set(found) <= known
            for key in range(COUNTERS):
                row = db.table("counters").get(key)
                least, most = (sum(load.counted[key][at] for load in loads) for at in (0, 1))
                assert least <= (0 if row is None else row["n"]) <= most
            assert set(names) <= set(db.tables())
            assert db.check().problems == ()
