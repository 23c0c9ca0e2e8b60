"""A server that is killed at any effect of what its master asks: asked again, it ends where it would have ended.

One script of requests, with rows written in between. In the midst of each effect on log, files and metastore a copy of
the machine is taken, in which the process is killed or the power goes. The server that is then opened has every
acknowledged row that it serves; the request under way, and all that follow, can be asked again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import pytest

from stelae.model.errors import TabletAway
from stelae.model.ids import TableId, TabletId
from stelae.model.ranges import RowRange, check_cover
from stelae.registry.control import (
    ControlRequest,
    CreateTablets,
    DeleteTablets,
    JoinTablets,
    LoadTable,
    NewTablet,
    SplitTablet,
    UnloadTable,
)
from stelae.tserver.lives import Life, TabletEvent, TabletLives
from tests.effort import tries
from tests.machines import SimMachine
from tests.tserver.boxes import Box, row

T, U = TableId(100), TableId(101)
A, B, C, D, E, F = (TabletId(number) for number in range(10, 16))

Rows = dict[TableId, dict[int, int]]


@dataclass(frozen=True)
class Put:
    table: TableId
    keys: range
    value: int


SCRIPT: list[ControlRequest | Put] = [
    CreateTablets((NewTablet(A, T, RowRange(b"", row(10))), NewTablet(B, T, RowRange(row(10), None)))),
    Put(T, range(20), 1),
    CreateTablets((NewTablet(F, U, RowRange(b"", None)),)),
    SplitTablet(A, row(5), C, D),
    Put(T, range(3, 12), 2),
    Put(U, range(4), 3),
    UnloadTable(T),
    Put(U, range(2, 6), 4),
    LoadTable(T),
    Put(T, range(4, 7), 5),
    JoinTablets(D, B, E),
    Put(T, range(2, 16), 6),
    UnloadTable(U),
    UnloadTable(T),
    LoadTable(T),
    LoadTable(U),
    Put(T, range(1), 7),
    DeleteTablets((F,)),
]


def act(box: Box, step: ControlRequest | Put) -> None:
    if isinstance(step, Put):
        box.put(step.table, *step.keys, a=step.value)
    else:
        box.server.ask(step)


def expected(steps: list[ControlRequest | Put]) -> Rows:
    rows: Rows = {T: {}, U: {}}
    for step in steps:
        if isinstance(step, Put):
            rows[step.table] |= dict.fromkeys(step.keys, step.value)
        elif isinstance(step, DeleteTablets):
            rows[U] = {}
    return rows


def check(box: Box, before: Rows, after: Rows) -> None:
    """What can be read is what was written; a tablet is in the shard exactly if it lives."""
    for table in (T, U):
        with suppress(TabletAway):
            found = box.rows(table)
            assert before[table].keys() <= found.keys() <= after[table].keys() or not after[table]
            for key, value in found.items():
                assert value in (before[table].get(key), after[table].get(key))
    states = box.server.shard.tablets()
    reported = {each.tablet: Life(each.life) for each in box.server.report().tablets}
    assert all(life in (Life.ACTIVE, Life.UNKNOWN) for life in reported.values())
    assert {tablet for tablet, life in reported.items() if life is Life.ACTIVE} == {t for t in states if t >= A}
    assert {tablet for tablet in states if box.server.life(tablet) is not Life.ACTIVE} == set()


@cache
def crashes() -> list[tuple[str, SimMachine, int]]:
    """A copy of the machine in the midst of each effect, with the number of the step under way."""
    found: list[tuple[str, SimMachine, int]] = []
    machine, at = SimMachine(1), -1

    def remember(effect: Any) -> None:
        found.append((f"{effect.number} {effect.kind}", machine.fork(effect.number), at))

    machine.effects._on_effect = remember
    box = Box("one", machine, "t", "u")
    for at, step in enumerate(SCRIPT):
        act(box, step)
        check(box, expected(SCRIPT[: at + 1]), expected(SCRIPT[: at + 1]))
    at = len(SCRIPT)
    box.end()
    return found


def survive(machine: SimMachine, at: int, how: str) -> None:
    machine.end(how)
    box = Box("one", machine, "t", "u")
    at = max(at, 0)
    check(box, expected(SCRIPT[:at]), expected(SCRIPT[: at + 1]))
    if at < len(SCRIPT) and isinstance(SCRIPT[at], SplitTablet | JoinTablets):
        go_on(box, expected(SCRIPT[:at]))
    else:
        for step in SCRIPT[at:]:
            act(box, step)
        assert box.rows(T) == expected(SCRIPT)[T]
        assert {each.tablet for each in box.server.report().tablets} == {C, E}
    while box.server.flush_step() or box.server.compact_step():
        pass
    before = box.rows(T)
    box.reopen("power")
    assert box.rows(T) == before
    box.server.upkeep.save()
    box.server.upkeep.collect_files()
    assert machine.files() == box.server.upkeep.needed_files()
    box.end()


def go_on(box: Box, rows: Rows) -> None:
    """Half of a split or join may have happened: whatever tablets there are cover all rows, and are split further."""
    states = box.server.shard.of_table(T)
    check_cover([state.rows for state in states])
    assert box.rows(T) == rows[T]
    last = states[-1].tablet
    box.server.ask(SplitTablet(last, row(17), TabletId(90), TabletId(91)))
    box.put(T, *range(20), a=9)
    assert box.rows(T) == dict.fromkeys(range(20), 9)


@pytest.mark.parametrize("how", ["kill", "power"])
@pytest.mark.parametrize("part", range(2))
def test_a_server_killed_at_any_effect(part: int, how: str) -> None:
    found = crashes()
    for number in range(part, len(found), max(2, 2 * 6 // tries(4))):
        name, machine, at = found[number]
        try:
            survive(machine.fork(Random(number).getrandbits(20)), at, how)
        except Exception as error:
            error.add_note(f"after {how} at effect {name}, in step {at}: {SCRIPT[at] if 0 <= at < len(SCRIPT) else at}")
            raise


def test_the_script_has_effects_of_every_kind() -> None:
    assert {name.split()[1] for name, _, _ in crashes()} >= {"txn", "append", "sync", "create", "commit"}


# -- the states at work, as they are told


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    told: list[str] = []
    plain: Callable[..., Any] = TabletLives._move

    def move(lives: TabletLives, tablets: Any, event: TabletEvent) -> Any:
        before = {tablet: lives.life(tablet) for tablet in tablets}
        effects = plain(lives, tablets, event)
        told.extend(
            f"{tablet}: {event.value}, {life.name} -> {lives.life(tablet).name}" for tablet, life in before.items()
        )
        return effects

    monkeypatch.setattr(TabletLives, "_move", move)
    return told


def test_states_change_as_things_happen(story: list[str]) -> None:
    box = Box("one", SimMachine(2), "t", "u")
    assert [line for line in story if line.startswith("1:")] == [
        "1: create asked, UNKNOWN -> SAVING_CONFIG",
        "1: config saved, SAVING_CONFIG -> OPENING",
        "1: fragments opened, OPENING -> ACTIVE",
    ]
    box.server.ask(CreateTablets((NewTablet(A, T, RowRange(b"", None)),)))
    box.put(T, 1, 7, a=1)
    story.clear()
    seen: list[str] = []

    def look(effect: Any) -> None:
        life = box.server.life(A)
        if not seen or seen[-1] != f"{effect.kind} in {life.name}":
            seen.append(f"{effect.kind} in {life.name}")

    box.machine.effects._on_effect = look
    box.server.ask(UnloadTable(T))
    box.machine.effects._on_effect = None
    assert seen[0].endswith("in FLUSHING")
    assert "commit in FLUSHING" in seen, "the memory is written while it is FLUSHING"
    assert seen[-1] == "sync in SAVING_LAST"
    box.reopen("kill")
    assert story == [
        f"{A}: unload asked, ACTIVE -> FLUSHING",
        f"{A}: memory flushed, FLUSHING -> SAVING_LAST",
        f"{A}: last config saved, SAVING_LAST -> UNKNOWN",
        *(
            f"{tablet}: {event}"
            for tablet in (1, 2)
            for event in (
                "load asked, UNKNOWN -> READING_CONFIG",
                "config read, READING_CONFIG -> REPLAYING",
                "log replayed, REPLAYING -> SAVING_CONFIG",
            )
        ),
        *(f"{tablet}: config saved, SAVING_CONFIG -> OPENING" for tablet in (1, 2)),
        *(f"{tablet}: fragments opened, OPENING -> ACTIVE" for tablet in (1, 2)),
    ], "a tablet that was unloaded is not opened"
    story.clear()
    box.server.ask(LoadTable(T))
    box.server.ask(SplitTablet(A, row(5), B, C))
    assert story == [
        f"{A}: load asked, UNKNOWN -> READING_CONFIG",
        f"{A}: config read, READING_CONFIG -> REPLAYING",
        f"{A}: log replayed, REPLAYING -> SAVING_CONFIG",
        f"{A}: config saved, SAVING_CONFIG -> OPENING",
        f"{A}: fragments opened, OPENING -> ACTIVE",
        f"{A}: split asked, ACTIVE -> ACTIVE",
        f"{A}: succeeded by others, ACTIVE -> UNKNOWN",
        f"{B}: took over from others, UNKNOWN -> ACTIVE",
        f"{C}: took over from others, UNKNOWN -> ACTIVE",
        f"{B}: config saved, ACTIVE -> ACTIVE",
        f"{C}: config saved, ACTIVE -> ACTIVE",
    ]
    assert box.rows(T) == {1: 1, 7: 1}
    box.end()
