"""The 22 queries of TPC-H on tables that live, against plain Parquet with the same rows, in the same Spark session.

    bench_tpch.py [--scale 1] [--states clean,whole,narrow,erased,inserted,compacted] [--queries 1,6,14] [--rounds 3]
                  [--master local[2]] [--memory 4g] [--explain]

The states: `clean`, as loaded; `whole`, 5% of lineitem's rows replaced in every column; `narrow`, 5% changed in one
column; `erased`, 0.1% of orders erased with their lines; `inserted`, 1% more orders with their lines; `compacted`, all
of these one after the other, and then compacted. Ratios are ours over Parquet's, so less is better: of processor time
(this process, its Java and its workers) and of seconds. Every answer of everybody is compared with DuckDB's.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import duckdb
import pyspark
from harness import Row, write_facts, write_rows
from processor_time import Took
from rich.table import Table
from tpch_data import STATES
from tpch_queries import NUMBERS, difference, sql_of
from tpch_world import Frames, World, console, opened

OURS, PARQUET = "ours", "plain Parquet"
WANTED = {"clean": 1.0, "whole": 1.1, "narrow": 1.15, "erased": 1.05}
"""The geometric mean of processor time over Parquet's, all 22 queries, at scale 1."""


@dataclass(frozen=True, slots=True)
class Found:
    """Of one state. `open_s`: to open all frames for the first time, and again."""

    state: str
    open_s: tuple[float, float]
    parquet_open_s: tuple[float, float]
    took: dict[int, dict[str, Took]] = field(default_factory=dict)

    def ratios(self, of: str) -> dict[int, float]:
        """`of`: processor_s or wall_s."""
        return {
            number: max(getattr(took[OURS], of), _LEAST_S) / max(getattr(took[PARQUET], of), _LEAST_S)
            for number, took in self.took.items()
        }

    def mean(self, of: str) -> float:
        return statistics.geometric_mean(self.ratios(of).values())


_LEAST_S = 0.01
"""As fine as processor time is counted."""


# -- measuring


def measured_state(world: World, state: str, numbers: Sequence[int], rounds: int, *, explain: bool) -> Found:
    world.prepare(state)
    first, ours = _opened(world, state)
    again, ours = _opened(world, state)
    parquet_first, parquet = _opened_parquet(world, state)
    parquet_again, parquet = _opened_parquet(world, state)
    found = Found(state, (first, again), (parquet_first, parquet_again))
    if explain:
        for number in numbers:
            plan = ours.explain(sql_of(number, world.scale))
            console.print(f"-- query {number}, {state}\n{plan}", markup=False, highlight=False)
    found.took.update(_taken(world, state, numbers, {OURS: ours, PARQUET: parquet}, rounds))
    return found


def _opened(world: World, state: str) -> tuple[float, Frames]:
    start = time.perf_counter()
    frames = world.frames(state)
    frames.show()
    return time.perf_counter() - start, frames


def _opened_parquet(world: World, state: str) -> tuple[float, Frames]:
    start = time.perf_counter()
    frames = world.parquet_frames(state)
    frames.show()
    return time.perf_counter() - start, frames


def _taken(
    world: World, state: str, numbers: Sequence[int], contenders: Mapping[str, Frames], rounds: int
) -> dict[int, dict[str, Took]]:
    """The medians of the rounds. In each all queries are asked of all contenders, who take turns; one round before them
    does not count: Java compiles what runs often, and generated code is kept (see `tpch_world`)."""
    wanted = {number: world.truth.answer(state, sql_of(number, world.scale)) for number in numbers}
    times: dict[int, dict[str, list[Took]]] = {number: {title: [] for title in contenders} for number in numbers}
    for turn in range(rounds + 1):
        for number in numbers:
            for title in list(contenders)[:: 1 if turn % 2 else -1]:
                took, answer = contenders[title].ask(sql_of(number, world.scale))
                if wrong := difference(answer, wanted[number]):
                    raise SystemExit(f"query {number}, {state}, {title}: {wrong}")
                if turn:
                    times[number][title].append(took)
            _say_turn(state, turn, number, times[number])
    return {number: {title: _median(each) for title, each in by.items()} for number, by in times.items()}


def _say_turn(state: str, turn: int, number: int, times: Mapping[str, Sequence[Took]]) -> None:
    if turn:
        took = ", ".join(f"{title} {each[-1].processor_s:.2f} s" for title, each in times.items())
        console.print(f"[dim]  {state}, round {turn}, query {number}: {took} of processor time[/]")


def _median(took: Sequence[Took]) -> Took:
    return Took(statistics.median(each.wall_s for each in took), statistics.median(each.processor_s for each in took))


# -- saying it


def print_state(found: Found) -> None:
    table = Table(title=f"TPC-H, {found.state}: ours over plain Parquet, less is better")
    for heading in ("query", "processor: ours", "Parquet", "ratio", "seconds: ours", "Parquet", "ratio"):
        table.add_column(heading, justify="right")
    processor, wall = found.ratios("processor_s"), found.ratios("wall_s")
    for number, took in found.took.items():
        ours, parquet = took[OURS], took[PARQUET]
        table.add_row(
            str(number),
            f"{ours.processor_s:.2f} s",
            f"{parquet.processor_s:.2f} s",
            f"{processor[number]:.2f}",
            f"{ours.wall_s:.2f} s",
            f"{parquet.wall_s:.2f} s",
            f"{wall[number]:.2f}",
        )
    table.add_section()
    table.add_row("geometric mean", "", "", _judged(found), "", "", f"{found.mean('wall_s'):.2f}")
    console.print(table)


def _judged(found: Found) -> str:
    mean, wanted = found.mean("processor_s"), WANTED.get(found.state)
    if wanted is None:
        return f"{mean:.2f}"
    return f"[{'green' if round(mean, 2) <= wanted else 'red'}]{mean:.2f}[/] (wanted: {wanted:g})"


def print_summary(all_found: Sequence[Found]) -> None:
    table = Table(title="TPC-H: geometric means, ours over plain Parquet; and seconds to open all 8 frames")
    for heading in ("state", "processor", "seconds", "opening", "again", "Parquet's opening", "again"):
        table.add_column(heading, justify="left" if heading == "state" else "right")
    for found in all_found:
        opening = (*found.open_s, *found.parquet_open_s)
        table.add_row(
            found.state, _judged(found), f"{found.mean('wall_s'):.2f}", *(f"{each:.2f} s" for each in opening)
        )
    console.print(table)


def rows_of(found: Found) -> list[Row]:
    return [
        Row(f"{found.state}, query {number}, {words}", getattr(took[OURS], of), getattr(took[PARQUET], of), PARQUET)
        for number, took in found.took.items()
        for of, words in (("processor_s", "processor time"), ("wall_s", "seconds"))
    ]


def facts_of(found: Found) -> dict[str, object]:
    return {
        "processor_over_parquet": round(found.mean("processor_s"), 3),
        "wanted": WANTED.get(found.state),
        "seconds_over_parquet": round(found.mean("wall_s"), 3),
        "open_s": found.open_s,
        "parquet_open_s": found.parquet_open_s,
    }


# -- the whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="of TPC-H; 1 is 6 million lines")
    parser.add_argument("--states", default=",".join(STATES), help="some of these, with commas between")
    parser.add_argument("--queries", default=",".join(map(str, NUMBERS)), help="some of these, with commas between")
    parser.add_argument("--rounds", type=int, default=3, help="that count; the median is taken")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--memory", default="4g", help="of the Java process")
    parser.add_argument("--explain", action="store_true", help="show how Spark plans each query on our tables")
    parser.add_argument("--name", default="tpch", help="of the file in bench/results")
    said = parser.parse_args()
    states, numbers = said.states.split(","), [int(number) for number in said.queries.split(",")]
    if unknown := [state for state in states if state not in STATES]:
        parser.error(f"--states: there is no {', '.join(unknown)}; there are {', '.join(STATES)}")
    if missing := [str(number) for number in numbers if number not in NUMBERS]:
        parser.error(f"--queries: there is no {', '.join(missing)}; there are {NUMBERS[0]} to {NUMBERS[-1]}")
    all_found: list[Found] = []
    with opened(said.scale, said.master, said.memory) as world:
        for state in states:
            console.print(f"[dim]{state} ...[/]")
            start = time.perf_counter()
            all_found.append(measured_state(world, state, numbers, said.rounds, explain=said.explain))
            console.print(f"[dim]{state} took {time.perf_counter() - start:.0f} s in all[/]")
            print_state(all_found[-1])
    print_summary(all_found)
    write_rows(said.name, [row for found in all_found for row in rows_of(found)])
    write_facts(
        said.name,
        {
            "spark": pyspark.__version__,
            "duckdb": duckdb.__version__,
            "cores": os.cpu_count(),
            "master": said.master,
            "scale": said.scale,
            "rounds": said.rounds,
            "states": {found.state: facts_of(found) for found in all_found},
        },
    )


if __name__ == "__main__":
    main()
