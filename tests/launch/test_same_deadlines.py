"""A store in trouble: calls that are begun together end at their deadlines and are told the same, here and attached;
afterwards each row shows what was told of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import stelae
import stelae.aio
from stelae.adapters.clock import SystemClock
from stelae.adapters.rng import SystemRng
from stelae.client.calls.retries import Patience
from tests.effort import HANG_S
from tests.launch.both import Trouble, store_at, told_to

REFUSED_TIMES = 40
STUCK_S = 3.0
ROWS = "abcdefgh"


class JumpingClock(SystemClock):
    """The deadlines of calls pass when the test says so, and not in the middle of a request, whatever the machine is
    busy with."""

    ahead_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s


class CountingRng(SystemRng):
    """Each wait before another try draws a number: `many` is set when there have been many of them."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._count = 0
        self.many = asyncio.Event()

    def fraction(self) -> float:
        self._count += 1
        if self._count == REFUSED_TIMES:
            self._loop.call_soon_threadsafe(self.many.set)
        return super().fraction()


@dataclass
class Call:
    """A call of a row and what its `v` is afterwards. `is_first`: of those that are begun together."""

    key: str
    value: int | None
    make: Callable[[stelae.aio.AsyncTable], Awaitable[Any]]
    is_first: bool = True


async def _batch(table: stelae.aio.AsyncTable, key: str, value: int) -> None:
    async with table.batch() as batch:
        await batch.put({"k": key, "v": value})


CALLS = [
    Call("a", 1, lambda t: t.put({"k": "a", "v": 1})),
    Call("b", None, lambda t: t.erase("b")),
    Call("c", 1, lambda t: t.increment("c", {"v": 1})),
    Call("d", 1, lambda t: t.update("d", lambda _: {"v": 1})),
    Call("new", 1, lambda t: t.put({"k": "new", "v": 1}, if_absent=True)),
    Call("e", 1, lambda t: t.put_many([{"k": "e", "v": 1}, {"k": "f", "v": 1}])),
    Call("g", None, lambda t: t.erase_many(["g"])),
    Call("h", 1, lambda t: _batch(t, "h", 1)),
    Call("a", 2, lambda t: t.put({"k": "a", "v": 2}), is_first=False),
    Call("a", 3, lambda t: t.increment("a", {"v": 1}), is_first=False),
    Call("d", 4, lambda t: t.put({"k": "d", "v": 4}), is_first=False),
]


def outcome(answer: Any) -> str:
    """In which family a call ended."""
    if isinstance(answer, stelae.Retryable):
        return "nothing happened"
    if isinstance(answer, stelae.UnknownOutcome):
        return "unknown"
    raise AssertionError(answer)


async def play(path: Path, kind: str, befall: Callable[[str], None] | None) -> list[str]:
    """What the first calls of each row were told, by class; the others are looked at here."""
    async with stelae.aio.open(path, timeout_s=HANG_S) as db:
        table, session = await db.table("t"), db._session.session
        if befall is None:
            befall = Trouble(session.backend).take
        await table.put_many([{"k": key, "v": 0} for key in ROWS])
        # As many connections are open then as are needed, and rows that are let in are noted (`WriteOrder.let_in`).
        await asyncio.gather(*(table.increment(key, {"n": 0}) for key in ROWS))
        # A handle's deadlines pass in the order of its calls; the next ones are shorter.
        patient, table = session.patience, await db.table("t")
        await asyncio.to_thread(befall, kind)
        try:
            told = await (_refuse if kind == "full" else _wait)(table)
            assert [row["v"] async for row in table.scan(columns=["v"])] == [0] * len(ROWS), "reads go on"
        finally:
            await asyncio.to_thread(befall, "over")
            session.patience = patient
        # Behind whatever is still on its way; then each row is as the last call that happened left it.
        await table.put_many([{"k": key, "n": 1} for key in (*ROWS, "new")])
        expected: dict[str, int | None] = {**dict.fromkeys(ROWS, 0), "new": None}
        for call, answer in zip(CALLS, told, strict=True):
            if outcome(answer) == "unknown":
                expected[call.key] = call.value
        expected["f"] = expected["e"]
        assert {row["k"]: row["v"] async for row in table.scan(columns=["v"])} == expected
        return [type(answer).__name__ for call, answer in zip(CALLS, told, strict=True) if call.is_first]


async def _refuse(table: stelae.aio.AsyncTable) -> list[Any]:
    clock, rng, session = JumpingClock(), CountingRng(), table._session.session
    session.patience = Patience(clock, rng, HANG_S)
    calls = [asyncio.ensure_future(call.make(table)) for call in CALLS]
    await rng.many.wait()
    assert not any(call.done() for call in calls)
    clock.ahead_s = HANG_S
    return await asyncio.gather(*calls, return_exceptions=True)


async def _wait(table: stelae.aio.AsyncTable) -> list[Any]:
    table._session.session.patience = Patience(SystemClock(), SystemRng(), STUCK_S)
    return await asyncio.gather(*(call.make(table) for call in CALLS), return_exceptions=True)


@pytest.mark.parametrize("where", ["local", "attached"])
@pytest.mark.parametrize(("kind", "expected"), [("full", "Overloaded"), ("stuck", "UnknownOutcome")])
def test_what_calls_are_told_at_their_deadline(tmp_path: Path, where: str, kind: str, expected: str) -> None:
    """A store that refused all until then: nothing happened, and why. One that let them in: nobody knows."""
    with store_at(where, tmp_path) as owner:
        told = asyncio.run(play(tmp_path, kind, None if owner is None else told_to(owner)))
    assert told == [expected] * len(told)
