"""The checker says yes to what can have been, and no to each kind of fault that is planted."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from tests.cluster.history import History
from tests.effort import tries
from tests.histories.checker import NEVER, Call, State, check_history, is_linearizable, step


def call(f: str, began: int, ended: int, given: Any = None, found: Any = None, kind: str = "ok") -> Call:
    return Call(f, given, found, kind, began, NEVER if kind == "info" else ended)


FINE = {
    "nothing": [],
    "one after another": [call("put", 0, 1, 5), call("get", 2, 3, found=5), call("erase", 4, 5), call("get", 6, 7)],
    "a read during a put sees either": [call("put", 0, 9, 5), call("get", 1, 2), call("get", 3, 4, found=5)],
    "an unknown put happens late": [call("put", 0, 0, 5, kind="info"), call("get", 5, 6), call("get", 8, 9, found=5)],
    "an unknown put never happens": [call("put", 0, 0, 5, kind="info"), call("get", 5, 6), call("get", 8, 9)],
    "absent": [call("absent", 0, 5, 1), call("absent", 1, 6, 2, kind="fail"), call("get", 7, 8, found=1)],
    "swap": [call("put", 0, 1, 1), call("swap", 2, 9, (1, 2)), call("swap", 3, 8, (1, 3), kind="fail")],
    "add": [call("add", 0, 9, 1, 2), call("add", 1, 8, 1, 1), call("get", 10, 11, found=2)],
    "an unknown sum": [call("add", 0, 9, 1, 1), call("add", 2, 7, 1, kind="info"), call("get", 10, 11, found=2)],
}  # fmt: skip
FAULTS = {
    "a lost write": [call("put", 0, 1, 5), call("get", 2, 3)],
    "a write that was refused": [call("swap", 2, 3, (9, 5), kind="fail"), call("get", 4, 5, found=5)],
    "an old read": [call("put", 0, 1, 5), call("put", 2, 3, 6), call("get", 4, 5, found=5)],
    "reads that go back": [call("put", 0, 9, 5), call("get", 1, 2, found=5), call("get", 3, 4)],
    "two that found nobody": [call("absent", 0, 5, 1), call("absent", 1, 6, 2)],
    "a refusal for nothing": [call("put", 0, 1, 1), call("swap", 2, 3, (1, 2), kind="fail")],
    "an early refusal": [call("put", 0, 9, 1), call("absent", 2, 3, 2, kind="fail"), call("get", 4, 5)],
    "counted twice": [call("add", 0, 1, 1, 1), call("get", 2, 3, found=2)],
    "an unknown sum counted twice": [call("add", 0, 0, 1, kind="info"), call("get", 2, 3, found=2)],
    "a lost sum": [call("add", 0, 5, 1, 1), call("add", 1, 6, 1, 1)],
    "a write before it began": [call("get", 0, 1, found=5), call("put", 2, 3, 5)],
}  # fmt: skip


@pytest.mark.parametrize("calls", FINE.values(), ids=FINE)
def test_what_can_have_been(calls: list[Call]) -> None:
    assert is_linearizable(calls)


@pytest.mark.parametrize("calls", FAULTS.values(), ids=FAULTS)
def test_what_cannot_have_been(calls: list[Call]) -> None:
    assert not is_linearizable(calls)


def by_trying(calls: Sequence[Call]) -> bool:
    """Every order there is: an unknown call may be left out."""
    known = [each for each in calls if each.kind != "info"]
    unknown = [each for each in calls if each.kind == "info"]
    for count in range(len(unknown) + 1):
        for some in itertools.combinations(unknown, count):
            for order in itertools.permutations([*known, *some]):
                if _holds(order):
                    return True
    return False


def _holds(order: Sequence[Call]) -> bool:
    state: State = None
    for place, each in enumerate(order):
        if any(later.ended < each.began for later in order[place:]):
            return False
        can, state = step(state, each)
        if not can:
            return False
    return True


def random_calls(chance: random.Random) -> list[Call]:
    calls = []
    for number in range(chance.randrange(1, 7)):
        began = chance.randrange(20)
        ended, kind = began + chance.randrange(1, 10), chance.choice(["ok", "ok", "ok", "fail", "info"])
        match chance.choice(["get", "put", "erase", "absent", "swap", "add"]):
            case "get":
                calls.append(call("get", began, ended, found=chance.choice([None, 0, 1, 2])))
            case "put" | "erase" as f:
                calls.append(call(f, began, ended, number, kind="info" if kind == "info" else "ok"))
            case "absent":
                calls.append(call("absent", began, ended, number, kind=kind))
            case "swap":
                calls.append(call("swap", began, ended, (chance.choice([0, 1, 2]), number), kind=kind))
            case _:
                kind = "info" if kind == "info" else "ok"
                calls.append(call("add", began, ended, 1, chance.choice([1, 2, 3]), kind=kind))
    return calls


def test_it_says_what_trying_every_order_says() -> None:
    chance, said = random.Random(5), {True: 0, False: 0}
    for _ in range(tries(1_500)):
        calls = random_calls(chance)
        found = is_linearizable(calls)
        assert found == by_trying(calls), calls
        said[found] += 1
    assert min(said.values()) > tries(1_500) / 10


def test_lines_are_read_and_problems_told() -> None:
    events = [
        {"process": 1, "type": "invoke", "f": "put", "key": "a", "value": 1, "time": 1},
        {"process": 2, "type": "invoke", "f": "get", "key": "a", "value": None, "time": 2},
        {"process": 1, "type": "ok", "f": "put", "key": "a", "value": None, "time": 3},
        {"process": 2, "type": "ok", "f": "get", "key": "a", "value": 1, "time": 4},
        {"process": 1, "type": "invoke", "f": "erase", "key": "a", "value": None, "time": 5},
        {"process": 1, "type": "none", "f": "erase", "key": "a", "value": None, "time": 6},
        {"process": 2, "type": "invoke", "f": "get", "key": "a", "value": None, "time": 7},
    ]
    lines = [json.dumps(event) for event in events]
    assert check_history(lines) == []
    lost = {"process": 2, "type": "ok", "f": "get", "key": "a", "value": None, "time": 8}
    (problem,) = check_history([*lines, json.dumps(lost)])
    assert problem.startswith("row a:\n")


def test_what_a_simulated_history_writes_out_is_judged_the_same() -> None:
    history = History()
    history.record("one", "put", {"a": 1}, lambda: 7)
    history.record("one", "get", {"a": None}, lambda: ({"a": 1}, 8))
    assert check_history(history.lines()) == []
    history.record("other", "get", {"a": None}, lambda: ({"a": None}, 9))
    assert len(check_history(history.lines())) == 1
