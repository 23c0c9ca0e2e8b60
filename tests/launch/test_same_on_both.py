"""The same concurrent script on a store of this process, on one that is attached to another, and on a cluster: the same
answers, the same rows, which are those of the calls one by one, in the order in which they were begun; when the other
process is killed in the middle, nothing is different but for what nobody can know."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import stelae
import stelae.aio
from stelae.client.api.aio.database import Opening
from tests.beside import Beside
from tests.effort import HANG_S, tries
from tests.launch.both import create_table, make_table, owner_of, store_at
from tests.processes import stop

KEYS = ["a", "b", "c"]
KINDS = ("put", "put", "erase", "many", "batch", "absent", "absent", "increment", "increment", "update")


@pytest.fixture(scope="module")
def beside() -> Iterator[Beside]:
    process = Beside()
    yield process
    process.close()


@contextmanager
def cluster_of(path: Path, beside: Beside) -> Iterator[str]:
    """Where another process serves a cluster with the table."""
    address = beside.serve(path)
    try:
        with stelae.connect(address, timeout_s=HANG_S) as db:
            create_table(db)
        yield address
    finally:
        beside.process.send_signal(signal.SIGCONT)
        beside.end(path)


class Script:
    """Calls that are all begun before the first is answered, in an order that the seed says."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._next = 1

    def calls(self, count: int) -> list[tuple[str, str, int]]:
        """Each a kind, the key of a row and a number."""
        found = []
        for _ in range(count):
            found.append((self._chance.choice(KINDS), self._chance.choice(KEYS), self._next))
            self._next += 1
        return found


async def begin(table: stelae.aio.AsyncTable, kind: str, key: str, value: int) -> Any:
    """The call, and what it answers."""
    match kind:
        case "put":
            return type(await table.put({"k": key, "v": value})) is int
        case "erase":
            return type(await table.erase(key)) is int
        case "many":
            return type(await table.put_many([{"k": each, "v": value} for each in KEYS])) is int
        case "batch":
            async with table.batch() as batch:
                await batch.put({"k": key, "v": value})
            return True
        case "increment":
            return await table.increment(key, {"n": 1})
        case "update":
            row = await table.update(key, lambda row: {"v": value, "n": (row or {}).get("n")})
            return None if row is None else dict(row)
        case _:
            try:
                await table.put({"k": key, "v": value}, if_absent=True)
            except stelae.AlreadyExists:
                return "there already"
            return "new"


def expected(rows: dict[str, dict[str, Any]], kind: str, key: str, value: int) -> Any:
    """What a call answers if those before it have happened, and what it does to the rows."""
    if kind == "erase":
        rows.pop(key, None)
        return True
    is_there = key in rows
    if kind == "absent" and is_there:
        return "there already"
    for each in KEYS if kind == "many" else [key]:
        rows.setdefault(each, {"k": each, "v": None, "n": None})
    if kind == "increment":
        rows[key]["n"] = (rows[key]["n"] or 0) + 1
        return {"n": rows[key]["n"]}
    for each in KEYS if kind == "many" else [key]:
        rows[each]["v"] = value
    return {"absent": "new", "update": dict(rows[key])}.get(kind, True)


async def play(opening: Opening, seed: int) -> None:
    script, rows = Script(seed), dict[str, dict[str, Any]]()
    async with opening as db:
        table = await db.table("t")
        for _ in range(4):
            calls = script.calls(25)
            answers = [expected(rows, *call) for call in calls]
            assert await asyncio.gather(*(begin(table, *call) for call in calls)) == answers
            assert [dict(row) async for row in table.scan()] == [rows[key] for key in sorted(rows)]
        if rows:
            with pytest.raises(stelae.Conflict):
                await table.put({"k": min(rows), "n": 0}, if_unchanged_since=1)


@pytest.mark.parametrize("seed", range(tries(4)))
def test_a_concurrent_script_gives_the_same(tmp_path: Path, beside: Beside, seed: int) -> None:
    make_table(tmp_path / "local")
    asyncio.run(play(stelae.aio.open(tmp_path / "local", timeout_s=HANG_S), seed))
    with owner_of(tmp_path / "shared"):
        asyncio.run(play(stelae.aio.open(tmp_path / "shared", timeout_s=HANG_S), seed))
    with cluster_of(tmp_path / "cluster", beside) as address:
        asyncio.run(play(stelae.aio.connect(address, timeout_s=HANG_S), seed))


async def race(table: stelae.aio.AsyncTable, number: int) -> None:
    """Calls of the kinds that read first, begun together on rows of their own: each sees those before it and no other,
    and they end in that order."""
    ended: list[int] = []

    async def count(turn: int) -> int:
        found = await table.increment(f"sum {number}", {"n": 1})
        ended.append(turn)
        return int(found["n"])

    assert await asyncio.gather(*(count(turn) for turn in range(10))) == list(range(1, 11))
    assert ended == list(range(10))
    absents = [begin(table, "absent", f"once {number}", value) for value in range(4)]
    assert await asyncio.gather(*absents) == ["new", *["there already"] * 3]
    for kind, answer in (("absent", "new"), ("increment", {"n": 1}), ("update", {"v": 1, "n": None})):
        key = f"{kind} {number}"
        found, _ = await asyncio.gather(begin(table, kind, key, 1), table.put({"k": key, "v": 2, "n": 10}))
        assert found == ({"k": key, **answer} if kind == "update" else answer)  # type: ignore[dict-item]
        assert dict(await table.get(key) or {}) == {"k": key, "v": 2, "n": 10}
        answers = await asyncio.gather(table.erase(key), table.put({"k": key, "n": 20}), begin(table, kind, key, 3))
        expected_last = {"absent": "there already", "increment": {"n": 21}, "update": {"k": key, "v": 3, "n": 20}}
        assert answers[-1] == expected_last[kind]


@pytest.mark.parametrize("where", ["local", "attached"])
def test_calls_that_read_first_have_their_turn_from_the_beginning(tmp_path: Path, where: str) -> None:
    """Also of rows that only files hold, which are read on a thread."""

    async def run(path: Path) -> None:
        async with stelae.aio.open(path, timeout_s=HANG_S) as db:
            table = await db.table("t")
            for number in range(tries(10)):
                await race(table, number)
            rows = [{"k": f"old {number}", "n": 0} for number in range(tries(10))]
            await table.put_many(rows)
            await table.flush()
            for row in rows:
                first, _ = await asyncio.gather(
                    table.increment(row["k"], {"n": 1}), table.put({"k": row["k"], "n": 10})
                )
                shown = await table.get(row["k"])
                assert shown is not None
                assert (first, shown["n"]) == ({"n": 1}, 10)

    with store_at(where, tmp_path):
        asyncio.run(run(tmp_path))


@pytest.mark.parametrize("seed", range(tries(4)))
def test_an_owner_that_is_killed_in_the_middle(tmp_path: Path, seed: int) -> None:
    """Each row shows the last write that was acknowledged, or a later one of which nobody knows."""

    async def run() -> None:
        script, chance = Script(seed), random.Random(seed)
        may: dict[str, set[int | None]] = {key: {None} for key in KEYS}

        async def call(kind: str, key: str, value: int) -> tuple[str, int | None, bool]:
            try:
                if kind == "erase":
                    await table.erase(key)
                else:
                    await table.put({"k": key, "v": value})
            except stelae.UnknownOutcome as error:
                assert not error.is_fault, error
                return key, None if kind == "erase" else value, False
            return key, None if kind == "erase" else value, True

        with owner_of(tmp_path) as owner:
            async with stelae.aio.open(tmp_path, timeout_s=HANG_S) as db:
                table = await db.table("t")
                for turn in range(6):
                    under_way = asyncio.gather(*(call(*each) for each in script.calls(20)))
                    if turn == 2:
                        for _ in range(chance.randrange(200)):
                            await asyncio.sleep(0)
                        owner.kill()
                    for key, value, is_known in await under_way:
                        may[key] = {value} if is_known else may[key] | {value}
                    shown = {row["k"]: row["v"] async for row in table.scan(columns=["v"])}
                    for key in KEYS:
                        assert shown.get(key) in may[key]
                        may[key] = {shown.get(key)}

    asyncio.run(run())


CALLS: dict[str, Callable[[stelae.Database, stelae.Table], object]] = {
    "get": lambda _, table: table.get("a"),
    "put": lambda _, table: table.put({"k": "a", "v": 2}),
    "scan": lambda _, table: list(table.scan()),
    "count": lambda _, table: table.count(),
    "get_many": lambda _, table: table.get_many(["a"]),
    "snapshot": lambda db, _: db.snapshot(),
    "flush": lambda _, table: table.flush(),
    "tables": lambda db, _: db.tables(),
}


SHORT_S, LATE_S = 0.3, 20.0
"""How long a call is given, and how long it takes at most on the busiest machine. Whatever on its way does not go by
the caller's deadline waits for 30 s, for minutes, or until the other process goes on."""


def end_beside_stopped(other: subprocess.Popen[str], call: Callable[[], object]) -> BaseException | None:
    """With what a call ends while the other process answers nothing and is not dead. It stays stopped until then."""
    with ThreadPoolExecutor(1) as pool:
        stop(other)
        try:
            ending = pool.submit(call)
            has_ended = bool(wait([ending], LATE_S).done)
        finally:
            other.send_signal(signal.SIGCONT)
        assert has_ended, f"it was given {SHORT_S:g} s, and went on for {LATE_S:g}"
        return ending.exception()


def check_deadline(db: stelae.Database, other: subprocess.Popen[str], what: str) -> None:
    """The call ends with an error of its own, by its own deadline."""
    table = db.table("t")
    table.put({"k": "a", "v": 1})
    patient, db._session.patience = db._session.patience, replace(db._session.patience, timeout_s=SHORT_S)
    error = end_beside_stopped(other, lambda: CALLS[what](db, table))
    assert isinstance(error, stelae.UnknownOutcome if what == "put" else stelae.Unavailable)
    db._session.patience = patient
    assert table.get("a", columns=["v"]) is not None


@pytest.mark.parametrize("what", CALLS)
def test_a_stopped_owner_costs_no_more_than_the_deadline(tmp_path: Path, what: str) -> None:
    with owner_of(tmp_path) as owner, stelae.open(tmp_path, timeout_s=HANG_S) as db:
        check_deadline(db, owner, what)


@pytest.mark.parametrize("what", CALLS)
def test_a_stopped_cluster_costs_no_more_than_the_deadline(tmp_path: Path, beside: Beside, what: str) -> None:
    with cluster_of(tmp_path, beside) as address, stelae.connect(address, timeout_s=HANG_S) as db:
        check_deadline(db, beside.process, what)


def test_opening_beside_a_stopped_owner_ends_at_the_deadline(tmp_path: Path) -> None:
    with owner_of(tmp_path) as owner:
        error = end_beside_stopped(owner, lambda: stelae.open(tmp_path, timeout_s=SHORT_S))
    assert isinstance(error, stelae.Unavailable)
    assert "is open in" in str(error)
