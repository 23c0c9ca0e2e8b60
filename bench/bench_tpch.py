"""The 22 queries of TPC-H on tables that live, against plain Parquet with the same rows, in the same Spark session.

    bench_tpch.py [--scale 1] [--states clean,whole,narrow,erased,inserted,compacted] [--queries 1,6,14] [--rounds 3]
                  [--peers delta,iceberg] [--master local[2]] [--memory 3g] [--explain]

The states: `clean`, as loaded; `whole`, 5% of lineitem's rows replaced in every column; `narrow`, 5% changed in one
column; `erased`, 0.1% of orders erased with their lines; `inserted`, 1% more orders with their lines; `compacted`, all
of these one after the other, and then compacted. Ratios are ours over the other's, so less is better: of processor time
(this process, its Java and its workers) and of seconds. Every answer of everybody is compared with DuckDB's. The data
comes from `tpchgen-cli`; Delta and Iceberg, which do the same by MERGE, run as in `bench_spark.py`, if they can.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import duckdb
import pyspark
import spark_peers
from harness import write_facts, write_rows
from processor_time import Took
from spark_peers import PeerFailed, Refusal
from tpch_data import STATES
from tpch_measuring import OURS, PARQUET, Contender, Found, taken
from tpch_peers import PeerTables
from tpch_queries import NUMBERS, sql_of
from tpch_tables import facts_of, print_peers, print_state, print_summary, rows_of
from tpch_world import Frames, World, console, opened

PEERS = ("delta", "iceberg")


def measured_state(
    world: World,
    peers: Sequence[PeerTables],
    refusals: list[Refusal],
    state: str,
    numbers: Sequence[int],
    rounds: int,
    *,
    explain: bool,
) -> Found:
    world.prepare(state)
    _, first = _opened(world, lambda: world.frames(state))
    ours, again = _opened(world, lambda: world.frames(state))
    parquet, parquet_opening = _opened(world, lambda: world.parquet_frames(state))
    if explain:
        for number in numbers:
            plan = ours.explain(sql_of(number, world.scale))
            console.print(f"-- query {number}, {state}\n{plan}", markup=False, highlight=False)
    contenders: dict[str, Contender] = {OURS: ours, PARQUET: parquet} | _ready(peers, state, refusals)
    queries = {number: sql_of(number, world.scale) for number in numbers}
    wanted = {number: world.truth.answer(state, sql) for number, sql in queries.items()}
    took = taken(state, queries, wanted, contenders, rounds, refusals)
    return Found(state, first, again, parquet_opening, took)


def _opened(world: World, frames: Callable[[], Frames]) -> tuple[Frames, Took]:
    found: list[Frames] = []

    def open_all() -> None:
        found.append(frames())
        found[0].show()

    took = world.processes.measured(open_all)
    return found[0], took


def _ready(peers: Sequence[PeerTables], state: str, refusals: list[Refusal]) -> dict[str, Contender]:
    """Those that could do what the state wants."""
    ready: dict[str, Contender] = {}
    for tables in peers:
        start = time.perf_counter()
        try:
            tables.open(state)
        except PeerFailed as error:
            refusals.append(Refusal(f"{tables.peer.title}, {state}", str(error)))
            continue
        ready[tables.peer.title] = tables
        console.print(f"[dim]  {tables.peer.title} is {state} after {time.perf_counter() - start:.1f} s[/]")
    return ready


def arguments() -> tuple[argparse.Namespace, list[str], list[int], list[str]]:
    """What was said, the states, the queries, and the peers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="of TPC-H; 1 is 6 million lines")
    parser.add_argument("--states", default=",".join(STATES), help="some of these, with commas between")
    parser.add_argument("--queries", default=",".join(map(str, NUMBERS)), help="some of these, with commas between")
    parser.add_argument("--rounds", type=int, default=3, help="that count; the median is taken")
    parser.add_argument("--peers", default="", help="besides plain Parquet: delta,iceberg")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--memory", default="3g", help="of each Java process")
    parser.add_argument("--explain", action="store_true", help="show how Spark plans each query on our tables")
    parser.add_argument("--name", default="tpch", help="of the file in bench/results")
    said = parser.parse_args()
    states, numbers = said.states.split(","), [int(number) for number in said.queries.split(",")]
    if unknown := [state for state in states if state not in STATES]:
        parser.error(f"--states: there is no {', '.join(unknown)}; there are {', '.join(STATES)}")
    if missing := [str(number) for number in numbers if number not in NUMBERS]:
        parser.error(f"--queries: there is no {', '.join(missing)}; there are {NUMBERS[0]} to {NUMBERS[-1]}")
    kinds = said.peers.split(",") if said.peers else []
    if strangers := [kind for kind in kinds if kind not in PEERS]:
        parser.error(f"--peers: there is no {', '.join(strangers)}; there are {', '.join(PEERS)}")
    return said, states, numbers, kinds


def main() -> None:
    said, states, numbers, kinds = arguments()
    all_found: list[Found] = []
    with (
        opened(said.scale, said.master, said.memory) as world,
        spark_peers.running(kinds, world.directory / "peers", said.master, said.memory) as (peers, refusals),
    ):
        tables = [PeerTables(peer, world) for peer in peers]
        for state in states:
            console.print(f"[dim]{state} ...[/]")
            start = time.perf_counter()
            found = measured_state(world, tables, refusals, state, numbers, said.rounds, explain=said.explain)
            console.print(f"[dim]{state} took {time.perf_counter() - start:.0f} s in all[/]")
            print_state(found)
            all_found.append(found)
    print_summary(all_found)
    if peers:
        print_peers(all_found)
    if refusals:
        console.print("Could not be run:")
        for refusal in refusals:
            console.print(f"- {refusal}")
    write_rows(said.name, [row for found in all_found for row in rows_of(found)])
    facts: dict[str, Any] = {"spark": pyspark.__version__, "duckdb": duckdb.__version__, "cores": os.cpu_count()}
    facts |= {"master": said.master, "scale": said.scale, "rounds": said.rounds}
    facts |= {"states": {found.state: facts_of(found) for found in all_found}}
    write_facts(said.name, facts | {"could_not_run": [str(refusal) for refusal in refusals]})


if __name__ == "__main__":
    main()
