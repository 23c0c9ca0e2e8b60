"""What programs asked of a simulated cluster and were told, and whether it can be true.

Rows are judged one by one (`tests.histories.checker`): each call took effect once, at one moment between its beginning
and its end, or, if nobody knows, at most once after its beginning. Txns are judged by time: a call that began after
another was answered has a greater one, a read that began then is not at an older one.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

from stelae.model.errors import (
    AlreadyExists,
    Conflict,
    DiskFailed,
    DiskFull,
    PartialWrite,
    Retryable,
    SnapshotTooOld,
    UnknownOutcome,
)
from tests.histories.checker import NEVER, Call, is_linearizable

T = TypeVar("T")
Rows = tuple[tuple[str, Any], ...]


@dataclass(slots=True)
class Asked:
    """One call on a row. Without an end nobody knows what became of it."""

    who: str
    f: str
    row: str
    given: Any
    began: int
    kind: str = "info"
    found: Any = None
    ended: int = NEVER
    txn: int | None = None

    @property
    def call(self) -> Call:
        return Call(self.f, self.given, self.found, self.kind, self.began, self.ended)

    def __str__(self) -> str:
        end = "?" if self.ended == NEVER else self.ended
        return f"  {self.began}-{end} {self.who}: {self.f} {self.given} -> {self.kind} {self.found} at {self.txn}"


@dataclass(slots=True)
class Made:
    """Something of the catalog. `is_there`: None if nobody knows."""

    is_there: bool | None


@dataclass
class History:
    """`tables`, `columns`: what one operator made and dropped, by name."""

    asked: list[Asked] = field(default_factory=list)
    tables: dict[str, Made] = field(default_factory=dict)
    columns: dict[str, Made] = field(default_factory=dict)
    snapshots: dict[int, Rows] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    calls_left: dict[str, int] = field(default_factory=dict)
    _times: Any = field(default_factory=lambda: count(1))
    _values: Any = field(default_factory=lambda: count(1))

    def value(self) -> int:
        """One that is put once."""
        return next(self._values)

    def record(self, who: str, f: str, given: Mapping[str, Any], job: Callable[[], T]) -> T | None:
        """Do the job, which concerns these rows. It returns what each row has, or what all writes have: their txn."""
        asked = [Asked(who, f, row, value, next(self._times)) for row, value in given.items()]
        self.asked += asked
        try:
            found = job()
        except (Conflict, AlreadyExists):
            # An increment has no condition of its own: at its deadline it is told what kept it from happening.
            self._end(asked, "none" if f == "add" else "fail")
        except (UnknownOutcome, PartialWrite):
            self._end(asked, "info")
        except (Retryable, SnapshotTooOld):
            self._end(asked, "none")
        else:
            for each in asked:
                each.kind, each.ended = "ok", next(self._times)
                self._take(each, found)
            self.outcomes[f"{f} ok"] += 1
            return found
        return None

    def _end(self, asked: list[Asked], kind: str) -> None:
        for each in asked:
            each.kind = kind
            self.outcomes[f"{each.f} {kind}"] += 1
            each.ended = NEVER if kind == "info" else next(self._times)

    @staticmethod
    def _take(each: Asked, found: Any) -> None:
        match each.f:
            case "get":
                values, each.txn = found
                each.found = values.get(each.row)
            case "add":
                each.found = found
            case _:
                each.txn = found

    def change(self, of: dict[str, Made], name: str, *, is_there: bool, job: Callable[[], object]) -> None:
        """Do what makes something, or takes it away."""
        made = of.setdefault(name, Made(False))
        before, made.is_there = made.is_there, None
        try:
            job()
        except (UnknownOutcome, DiskFull, DiskFailed):
            # A disk that fails or is full is told as it is, though the catalog has the change.
            self.outcomes["ddl info"] += 1
        except Retryable:
            self.outcomes["ddl none"] += 1
            made.is_there = before
        else:
            self.outcomes["ddl ok"] += 1
            made.is_there = is_there

    def see(self, of: dict[str, Made], there: list[str], what: str) -> None:
        for name, made in of.items():
            if made.is_there is not None:
                assert made.is_there == (name in there), f"{what} {name}: {made}, but there are {there}"

    def keep_snapshot(self, txn: int, rows: Rows) -> None:
        before = self.snapshots.setdefault(txn, rows)
        assert before == rows, f"the snapshot {txn} has changed: {before} were {rows}"

    def see_versions(self, row: str, versions: list[Any], *, is_counter: bool) -> None:
        """All that is left of a row's values, newest first: each was written once. A counter has grown one by one, as
        often as that was acknowledged, and more often only if nobody knows."""
        values = [value for value in versions if value is not None]
        assert len(set(values)) == len(values), f"row {row}: a value was written twice: {versions}"
        if is_counter:
            assert values == sorted(values, reverse=True), f"row {row} did not grow one by one: {versions}"
            adds = [each.kind for each in self.asked if each.f == "add" and each.row == row]
            least, most = adds.count("ok"), adds.count("ok") + adds.count("info")
            newest = values[0] if values else 0
            assert least <= newest <= most, f"row {row} is {newest}, of {least} to {most} increments"

    def lines(self) -> Iterator[str]:
        """Written out for other checkers, in the form that `tests.histories.checker` tells of. Calls at once are of
        different processes there; one that nobody knows the end of is the last of its process."""
        moments: list[tuple[int, bool, int]] = []
        for number, each in enumerate(self.asked):
            moments.append((each.began, False, number))
            if each.ended != NEVER:
                moments.append((each.ended, True, number))
        idle: list[int] = []
        processes: dict[int, int] = {}
        for time, is_end, number in sorted(moments):
            each = self.asked[number]
            if not is_end:
                processes[number] = idle.pop() if idle else len(processes)
            event = {"process": processes[number], "f": each.f, "key": each.row, "time": time}
            if is_end:
                idle.append(processes[number])
                yield json.dumps({**event, "type": each.kind, "value": each.found})
            else:
                yield json.dumps({**event, "type": "invoke", "value": each.given})

    def check(self) -> None:
        by_row: dict[str, list[Asked]] = defaultdict(list)
        for each in self.asked:
            if each.kind != "none" and not (each.kind == "info" and each.f == "get"):
                by_row[each.row].append(each)
        for row, asked in by_row.items():
            words = "\n".join(str(each) for each in asked)
            assert is_linearizable([each.call for each in asked]), f"row {row} cannot have been so:\n{words}"
            _check_txns(row, asked)


def _check_txns(row: str, asked: list[Asked]) -> None:
    known = [each for each in asked if each.txn is not None and each.kind == "ok"]
    for first in known:
        for then in known:
            if first.ended < then.began and first.txn is not None and then.txn is not None:
                is_right = first.txn < then.txn if then.f != "get" else first.txn <= then.txn
                assert is_right, f"row {row}: the txn of{then}\n comes before that of{first}"
