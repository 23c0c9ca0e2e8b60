"""Peers of the cluster bench: each is started, measured by a process of its own, and ended, one after the other.

A process of its own: Java, by which two of them are asked, can be started once in a process.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from cluster_calls import Calls
from cluster_measuring import Measured, Span, console, measure_rows, measure_tables, measure_tablets
from cluster_peers import CALLS
from java_servers import serve_cassandra, serve_hbase
from kudu_server import serve_kudu
from processor_time import Took
from server_processes import Server, answer_of
from spark_peers import PeerFailed, Refusal

PEERS = ("kudu", "cassandra", "hbase")
NO_TABLETS = "its tables have no tablets that a user makes"
Job = Callable[[Calls, Sequence[int]], Measured]


@dataclass
class Contenders:
    """`homes`: where each was installed. `refusals`: what could not be run, with the reason; added to."""

    wanted: Sequence[str]
    homes: dict[str, Path | None]
    refusals: list[Refusal] = field(default_factory=list)

    def measured(self, what: str, job: Job) -> dict[str, Measured]:
        """By title of those that could do it."""
        serve: dict[str, Callable[[Path | None], AbstractContextManager[Server]]] = {
            "kudu": serve_kudu,
            "cassandra": serve_cassandra,
            "hbase": serve_hbase,
        }
        found: dict[str, Measured] = {}
        for kind in self.wanted:
            console.print(f"[dim]{kind}: {what} ...[/]")
            try:
                with serve[kind](self.homes.get(kind)) as server:
                    found[server.title] = Measured(took=_asked(kind, server, job))
            except PeerFailed as error:
                self.refusals.append(Refusal(f"{kind}, {what}", str(error)))
        return found

    def rows(self, rows: int, tablets: int, span: Span) -> dict[str, Measured]:
        return self.measured("rows", partial(measure_rows, rows=rows, tablets=tablets, span=span))

    def tables(self) -> dict[str, Measured]:
        return self.measured("tables", measure_tables)

    def tablets(self, count: int) -> dict[str, Measured]:
        return self.measured(f"{count:,} tablets", partial(_measure_tablets, count=count))


def _measure_tablets(calls: Calls, pids: Sequence[int], count: int) -> Measured:
    if not calls.has_tablets:
        raise PeerFailed(NO_TABLETS)
    measured = measure_tablets(calls, pids, count)
    measured.once("drop", lambda: calls.drop("many"))
    return measured


def _asked(kind: str, server: Server, job: Job) -> dict[str, Took]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as asking:
        took: dict[str, Took] = answer_of(asking.submit(_ask, kind, server.endpoint, server.pids, job), server)
        return took


def _ask(kind: str, endpoint: str, pids: Sequence[int], job: Job) -> dict[str, Took]:
    """In the client's process."""
    try:
        calls = CALLS[kind](endpoint)
        try:
            return job(calls, pids).took
        finally:
            calls.close()
    except PeerFailed:
        raise
    except Exception as error:  # noqa: BLE001 - what Java raises does not travel
        raise PeerFailed(f"{type(error).__name__}: {error}") from None
