"""The lives of tables, with a crash at every effect: whatever was acknowledged is there, whole and once.

One script does everything that can be done to tables. In the midst of each of its effects on log, files and metastore
a copy of its machine is taken, in which the process is killed, or the power goes. The store that is then opened has
each table as it was before the step under way, or after it; its tablets cover all rows and run; nothing is left of
tables that are gone; no file is left that nobody needs; and it works on. A crash while it opens changes none of that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import pytest

from stelae.sim.effects import SimCrash
from tests.assembly.scripts import SCRIPT, PlainStore, Step, check_store, check_whole, work_on
from tests.assembly.worlds import Machine
from tests.effort import tries

PARTS = 4
DULL = ("in keep", "in compact t", "in compact old")


@dataclass(frozen=True)
class Crash:
    """A machine in the middle of an effect, and what may be found on it."""

    name: str
    machine: Machine
    before: PlainStore
    after: PlainStore
    by_row: bool


def run_script(machine: Machine, crashes: list[Crash] | None, script: Sequence[Step]) -> PlainStore:
    plain = following = PlainStore()
    step: Step | None = None

    def remember(effect: Any) -> None:
        if crashes is not None:
            name = f"{effect.number} {effect.kind} in {step.name if step else 'open'}"
            by_row = step is not None and step.by_row
            crashes.append(Crash(name, machine.fork(effect.number), plain, following, by_row))

    machine.effects._on_effect = remember
    store = machine.open()
    for step in script:
        following = step.then(plain)
        step.act(machine, store)
        plain = following
    machine.end("closed")
    return plain


@cache
def all_crashes() -> tuple[Crash, ...]:
    found: list[Crash] = []
    run_script(Machine(1), found, SCRIPT)
    return tuple(found)


def survive(crash: Crash, how: str, random: Random) -> None:
    machine = crash.machine.fork(random.getrandbits(20))
    machine.end(how)
    if random.random() < 0.3:
        # It crashes once more, while it opens.
        machine.effects._crash_at = machine.effects.count + 1 + random.randrange(12)
        with suppress(SimCrash):
            machine.open()
        machine.effects._crash_at = None
        machine.end(how)
    store = machine.open()
    plain = check_store(store, crash.before, crash.after, crash.by_row)
    check_whole(machine, store)
    plain = work_on(machine, store, plain)
    check_store(store, plain, plain, by_row=False)
    check_whole(machine, store)
    if random.random() < 0.5:
        store.close()
        machine.end("closed")
    else:
        machine.end(how)
    store = machine.open()
    check_store(store, plain, plain, by_row=False)
    check_whole(machine, store)
    store.close()
    machine.end("closed")


def chosen(part: int) -> Iterator[tuple[int, Crash]]:
    """Of the many effects of files being merged and cleared away, fewer than of all others."""
    crashes = all_crashes()
    for dull in (False, True):
        stride = max(PARTS, PARTS * (80 if dull else 20) // tries(1))
        some = [at for at, crash in enumerate(crashes) if crash.name.endswith(DULL) is dull]
        for number in some[part * stride // PARTS :: stride]:
            yield number, crashes[number]


@pytest.mark.parametrize("how", ["kill", "power"])
@pytest.mark.parametrize("part", range(PARTS))
def test_a_crash_at_any_effect(part: int, how: str) -> None:
    for number, crash in chosen(part):
        try:
            survive(crash, how, Random(number))
        except Exception as error:
            error.add_note(f"after {how} at effect {crash.name}")
            raise


def test_the_script_without_crashes() -> None:
    machine = Machine(1)
    plain = run_script(machine, None, SCRIPT)
    store = machine.open()
    check_store(store, plain, plain, by_row=False)
    check_whole(machine, store)
    store.close()
    machine.end("closed")
    kinds = {crash.name.split()[1] for crash in all_crashes()}
    assert {"txn", "append", "sync", "create", "commit", "delete"} <= kinds
