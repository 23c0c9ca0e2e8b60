"""Taking turns at the queries: who is asked when, what counts, and whether it is right."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from processor_time import Took
from spark_peers import PeerFailed, Refusal
from tpch_queries import Answer, difference
from tpch_world import console

OURS, PARQUET = "ours", "plain Parquet"
PROCESSOR, WALL = "processor_s", "wall_s"
_LEAST_S = 0.01
"""As fine as processor time is counted."""


class Contender(Protocol):
    def ask(self, sql: str) -> tuple[Took, Answer]: ...


@dataclass(frozen=True, slots=True)
class Found:
    """Of one state. `opening`: to open all frames for the first time, when what was changed is merged; then again, and
    Parquet's. `took`: by the query's number and the contender's title."""

    state: str
    opening: Took
    opening_again: Took
    parquet_opening: Took
    took: dict[int, dict[str, Took]]

    @property
    def peers(self) -> list[str]:
        """Those that answered all queries."""
        all_of = [set(by_title) for by_title in self.took.values()]
        return sorted(set.intersection(*all_of) - {OURS, PARQUET})

    def ratios(self, of: str, one: str = OURS, other: str = PARQUET) -> dict[int, float]:
        """`of`: PROCESSOR or WALL."""
        return {number: getattr(took[one], of) / getattr(took[other], of) for number, took in self.took.items()}

    def mean(self, of: str, one: str = OURS, other: str = PARQUET) -> float:
        """The geometric one."""
        return statistics.geometric_mean(self.ratios(of, one, other).values())


def taken(
    state: str,
    queries: Mapping[int, str],
    wanted: Mapping[int, Answer],
    contenders: Mapping[str, Contender],
    rounds: int,
    refusals: list[Refusal],
) -> dict[int, dict[str, Took]]:
    """The medians of the rounds. In each all queries are asked of all contenders, who take turns; one round before them
    does not count: Java compiles what runs often, and generated code is kept."""
    times: dict[int, dict[str, list[Took]]] = {number: {} for number in queries}
    running = dict(contenders)
    for turn in range(rounds + 1):
        for number, sql in queries.items():
            for title in list(running)[:: 1 if turn % 2 else -1]:
                try:
                    took = _asked(running[title], sql, wanted[number], f"query {number}, {state}, {title}")
                except PeerFailed as error:
                    refusals.append(Refusal(f"{title}, {state}, query {number}", str(error)))
                    del running[title]
                    continue
                if turn:
                    times[number].setdefault(title, []).append(took)
            if turn:
                _say(f"{state}, round {turn}, query {number}", times[number])
    return {
        number: {title: _median(each) for title, each in by_title.items() if title in running}
        for number, by_title in times.items()
    }


def _asked(contender: Contender, sql: str, wanted: Answer, what: str) -> Took:
    took, answer = contender.ask(sql)
    if wrong := difference(answer, wanted):
        raise SystemExit(f"{what}: {wrong}")
    return took


def _say(what: str, times: Mapping[str, Sequence[Took]]) -> None:
    took = ", ".join(f"{title} {each[-1].processor_s:.2f} s" for title, each in sorted(times.items()))
    console.print(f"[dim]  {what}: {took} of processor time[/]")


def _median(took: Sequence[Took]) -> Took:
    processor_s = statistics.median(each.processor_s for each in took)
    return Took(statistics.median(each.wall_s for each in took), max(processor_s, _LEAST_S))
