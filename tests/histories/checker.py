"""Whether calls on one row, made by several processes at once, could have happened one after another.

This is linearizability: each call takes effect at one moment between its beginning and its end. Found by the search of
Wing and Gong with Lowe's memory of what was tried. A call whose outcome nobody knows may take effect at any moment
after it began; that it never does is the same as that it does after all others.

Histories are written as lines of JSON, one for each beginning and each end, in the words that outside checkers know
(Jepsen's, which Porcupine's and Knossos's readers take):

    {"process": 3, "type": "invoke", "f": "put", "key": "a", "value": 7, "time": 123}
    {"process": 3, "type": "ok", "f": "put", "key": "a", "value": 7, "time": 456}

`type` is `invoke`, then `ok`, `fail` (it was refused: the row was not as the call wanted it), `none` (it did not
happen) or `info` (nobody knows); a process that was killed says nothing. Times are nanoseconds of one clock.

| f | value of the beginning | value of an `ok` | what it does |
|---|---|---|---|
| `get` | | the row's value, or null | |
| `put` | the value | | |
| `erase` | | | the value is null then |
| `absent` | the value | | puts it if there is no row; else `fail` |
| `swap` | value it read before, value to put | | puts it if the row did not change since that was read; else `fail` |
| `add` | what to add | the sum | |

Values that are put are never put twice, so "did not change" is "has the same value".
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

NEVER = 2**63
State = int | None


@dataclass(frozen=True, slots=True)
class Call:
    """`kind`: ok, fail or info. `ended` is NEVER where nobody knows."""

    f: str
    given: Any
    found: Any
    kind: str
    began: int
    ended: int
    process: int = 0


def read_history(lines: Iterable[str]) -> dict[str, list[Call]]:
    """The calls on each row. Those that did not happen are left out, as are reads that nobody has the answer of."""
    open_calls: dict[int, dict[str, Any]] = {}
    found: dict[str, list[Call]] = defaultdict(list)
    for line in lines:
        event = json.loads(line)
        process = event["process"]
        if event["type"] == "invoke":
            assert process not in open_calls, "a process makes one call at a time"
            open_calls[process] = event
            continue
        begun = open_calls.pop(process)
        if event["type"] in ("ok", "fail"):
            call = Call(
                begun["f"], begun["value"], event["value"], event["type"], begun["time"], event["time"], process
            )
            found[begun["key"]].append(call)
        elif event["type"] == "info":
            found[begun["key"]].append(_unknown(begun))
    for begun in open_calls.values():
        found[begun["key"]].append(_unknown(begun))
    return {key: [c for c in calls if c.kind != "info" or c.f != "get"] for key, calls in found.items()}


def _unknown(begun: dict[str, Any]) -> Call:
    return Call(begun["f"], begun["value"], None, "info", begun["time"], NEVER, begun["process"])


def step(state: State, call: Call) -> tuple[bool, State]:
    """Whether the call can take effect now, and what the row has then."""
    is_known = call.kind == "ok"
    match call.f:
        case "get":
            return state == call.found, state
        case "put":
            return True, call.given
        case "erase":
            return True, None
        case "absent":
            if call.kind == "fail":
                return state is not None, state
            return state is None or not is_known, call.given if state is None else state
        case "swap":
            before, after = call.given
            if call.kind == "fail":
                return state != before, state
            return state == before or not is_known, after if state == before else state
        case "add":
            total = (state or 0) + call.given
            return not is_known or total == call.found, total
        case _:
            raise AssertionError(f"there is no call {call.f}")


class _Event:
    """A beginning or an end, in the list of those that are left. `end`: of a beginning, its end."""

    __slots__ = ("after", "before", "call", "end", "number")

    def __init__(self, number: int, call: Call | None) -> None:
        self.number = number
        self.call = call
        self.before: _Event | None = None
        self.after: _Event | None = None
        self.end: _Event | None = None

    def lift(self) -> None:
        """Take the call out of the list, both events of it."""
        assert self.end is not None
        for each in (self, self.end):
            assert each.before is not None
            each.before.after = each.after
            if each.after is not None:
                each.after.before = each.before

    def put_back(self) -> None:
        assert self.end is not None
        for each in (self.end, self):
            assert each.before is not None
            each.before.after = each
            if each.after is not None:
                each.after.before = each


def _events(calls: Sequence[Call]) -> _Event:
    """What happened in the order of time, behind a head. Of two at the same moment the beginning comes first: the calls
    then were under way together."""
    times: list[tuple[int, int, _Event]] = []
    for number, call in enumerate(calls):
        begin, end = _Event(number, call), _Event(number, None)
        begin.end = end
        times += [(call.began, 0, begin), (call.ended, 1, end)]
    head = last = _Event(-1, None)
    for _, _, event in sorted(times, key=lambda each: each[:2]):
        last.after, event.before = event, last
        last = event
    return head


def is_linearizable(calls: Sequence[Call], state: State = None) -> bool:
    head = _events(calls)
    done = 0
    tried: set[tuple[int, State]] = set()
    path: list[tuple[_Event, State]] = []
    at = head.after
    while head.after is not None:
        assert at is not None
        if at.call is not None:
            can, then = step(state, at.call)
            taken = done | 1 << at.number
            if can and (taken, then) not in tried:
                tried.add((taken, then))
                path.append((at, state))
                state, done = then, taken
                at.lift()
                at = head.after
                continue
            at = at.after
            continue
        # The end of a call that is not taken yet: what was taken last was wrong.
        if not path:
            return False
        at, state = path.pop()
        done ^= 1 << at.number
        at.put_back()
        at = at.after
    return True


def check_history(lines: Iterable[str]) -> list[str]:
    """What is wrong, in words: the rows whose calls cannot have happened one after another, with those calls."""
    problems = []
    for key, calls in sorted(read_history(lines).items()):
        if not is_linearizable(calls):
            told = sorted(calls, key=lambda call: call.began)
            problems.append(f"row {key}:\n" + "\n".join(f"  {call}" for call in told))
    return problems
