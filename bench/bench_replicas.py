"""What copies cost, and what they are good for: durable puts with 1, 2 and 3 replicas, how long nobody can write when a
member is lost, and how long one takes to catch up with what it missed. Beside it etcd, Kudu, Cassandra and Postgres.

    bench_replicas.py [--seconds 2] [--rounds 3] [--callers 1,64] [--many 20000] [--watch 20] [--missed-mb 1000]
                      [--only puts,lost,catch-up] [--replicas 1,2,3] [--peers etcd,kudu,postgres,cassandra]
                      [--minutes 15]

Three nodes with one shard each (`stelae up`); a write needs 1 of 1 replica, 2 of 2, 2 of 3. Each peer has three members
on the same disk, and a put has been synced by two of the three at least when it returns: etcd always; Kudu with three
replicas and --log_force_fsync_all; Cassandra with three replicas, QUORUM and commitlog_sync: batch; Postgres with two
standbys of which one must have synced (synchronous_commit=on, synchronous_standby_names = ANY 1). Ours waits for every
member that counts: for three disks, where they wait for two, as long as nobody is left out. All traffic is on
127.0.0.1. Contenders run one after the other, each asked by a process of its own.

Lost is the member that leads, killed with -9 (ours: with its node) or stopped (SIGSTOP) while one caller puts row after
row; shown is the longest time without a put that succeeded. Cassandra has no leader: any member. Postgres elects none
by itself, so nothing is shown. What a member misses is as much as is asked for, or what is written in a minute. What
has not been begun when the minutes are over is named, and not done.

Peers are installed by whoever runs this: `postgres` and `etcd` on PATH; --kudu, --cassandra; the Python packages
`psycopg[binary]`, `JPype1` and `cassandra-driver`; Java 17. What cannot be run is named, with the reason, and the rest
goes on.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from bench_failover import kill_node, stop_shard, wait_whole
from harness import Row, report, write_facts
from java_servers import serve_cassandra
from kudu_server import serve_kudu
from made_rows import batch_of, key_of, seconds
from remote_clients import MANY, WRITTEN
from remote_load import PUT, Load, Measure
from remote_servers import StelaeServer, serve_etcd, serve_postgres, serve_stelae
from replica_clients import COPIES, LARGE_VALUE, Copies, etcd_status
from rich.console import Console
from rich.table import Table
from server_processes import HOST, Server, add_homes, answer_of, client_module
from spark_peers import PeerFailed, Refusal

import stelae

PEERS = ("etcd", "kudu", "postgres", "cassandra")
"""The one that takes longest comes last: it is left out if there is no time."""
PUTS, LOST, CATCH_UP = "puts", "lost", "catch-up"
NEEDED = {1: 1, 2: 2, 3: 2}
"""By the number of replicas: how many a write needs."""
SINGLE_MAX = 1.5
"""A single put may take so many times what that of the fastest peer does."""
_OURS = "ours, 2 of 3 replicas"
_BEFORE_S = 2.0
_MISSED_S_MAX = 60.0
_PART_S_MAX = {PUTS: 60.0, LOST: 80.0, CATCH_UP: 180.0}
"""What each takes at most, as a rule: as much must be left of the time to begin it."""
_AGAIN_S = 5.0
_NO_LAG = {
    "kudu": "its client does not say how far a replica is behind",
    "cassandra": "it sends what was missed as hints, at a rate that is a setting",
}
console = Console(width=150)

# -- in the client's process

_client: Copies


def _connect(kind: str, endpoint: str, pids: Sequence[int]) -> None:
    global _client  # noqa: PLW0603 - there is one client in the process
    try:
        _client = COPIES[kind](endpoint, pids)
    except Exception as error:
        if kind == "stelae":
            raise
        raise PeerFailed(f"{type(error).__name__}: {error}") from None  # what Java raises does not travel


def _drive(callers: int, seconds_: float) -> Load:
    return _client.drive(PUT, callers, seconds_)


def _put_many(round_: int, count: int) -> Load:
    rows = pa.table(batch_of((round_ + 1) * count, count, 1))
    measure = Measure(_client.servers)
    return measure.end(count, [seconds(lambda: _client.put_many(rows))])


def _leader_port() -> int | None:
    return _client.leader_port()


def _watch(seconds_: float) -> list[float]:
    return _client.watch(seconds_)


def _write_missed(wanted_bytes: int) -> int:
    """So many bytes in large rows, or what could be written in a bounded time."""
    chance, written, until_s = np.random.default_rng(7), 0, time.monotonic() + _MISSED_S_MAX
    while written < wanted_bytes and time.monotonic() < until_s:
        keys = [key_of(10**9 + written + number) for number in range(1_000)]
        _client.put_many(pa.table({"id": keys, "field0": [chance.bytes(LARGE_VALUE) for _ in keys]}))
        written += len(keys) * LARGE_VALUE
    return written


# -- the contenders


class Contender:
    """A server of several members, and a process that asks it."""

    def __init__(self, kind: str, server: Server, asking: ProcessPoolExecutor) -> None:
        self.kind, self.server, self.asking = kind, server, asking

    def tell(self, job: Callable[..., Any], *args: Any) -> Any:
        try:
            return answer_of(self.asking.submit(job, *args))
        except Exception as error:
            if self.kind == "stelae":
                raise
            raise PeerFailed(f"{type(error).__name__}: {error}") from error

    def find_leader(self) -> Callable[[bool], Callable[[], None]]:
        """What takes it away, killed or stopped, and gives what brings it back."""
        if isinstance(self.server, StelaeServer):
            server = self.server
            with stelae.connect(server.endpoint, timeout_s=60.0) as db:
                wait_whole(db.table(WRITTEN))
                leads = db.table(WRITTEN).tablets()[0].server
            assert leads is not None
            return lambda is_killed: (kill_node if is_killed else stop_shard)(server, leads)
        port = self.tell(_leader_port)
        member = next(each for each in self.server.members if port in (None, each.port))

        def lose(is_killed: bool) -> Callable[[], None]:
            if is_killed:
                member.kill()
                return member.start
            member.signal(signal.SIGSTOP)
            return lambda: member.signal(signal.SIGCONT)

        return lose

    def miss(self, wanted_bytes: int) -> tuple[int, float]:
        """One that does not lead is killed, so many bytes are written, it is started again: how many these were, and
        the seconds until it has them."""
        if isinstance(self.server, StelaeServer):
            return self._miss_ours(self.server, wanted_bytes)
        leads = self.tell(_leader_port) if self.kind == "etcd" else self.server.members[0].port
        member = next(each for each in self.server.members if each.port != leads)
        member.kill()
        written = self.tell(_write_missed, wanted_bytes)
        is_level = self._etcd_level if self.kind == "etcd" else self._postgres_level
        begun_s = time.monotonic()
        member.start(lambda: is_level(leads, member.port))
        return written, time.monotonic() - begun_s

    def _miss_ours(self, server: StelaeServer, wanted_bytes: int) -> tuple[int, float]:
        with stelae.connect(server.endpoint, timeout_s=60.0) as db:
            table = db.table(MANY)
            (tablet,) = table.tablets()
            undo = kill_node(server, tablet.replicas[0][0])
            written = self.tell(_write_missed, wanted_bytes)
            begun_s = time.monotonic()
            undo()
            wait_whole(table)
            return written, time.monotonic() - begun_s

    @staticmethod
    def _etcd_level(leads: int, port: int) -> bool:
        ours, theirs = etcd_status(f"{HOST}:{port}"), etcd_status(f"{HOST}:{leads}")
        return bool(ours and theirs and int(ours["raftAppliedIndex"]) >= int(theirs["raftAppliedIndex"]))

    def _postgres_level(self, leads: int, port: int) -> bool:
        asked = "select count(*) from pg_stat_replication where flush_lsn >= pg_current_wal_lsn()"
        with client_module("psycopg", "psycopg[binary]").connect(self.server.endpoint) as connection:
            (level,) = connection.execute(asked).fetchone()
        assert leads != port
        return bool(level == len(self.server.members) - 1)


@contextmanager
def _serve_ours(replicas: int) -> Iterator[StelaeServer]:
    with serve_stelae(nodes=3) as server:
        yield replace(server, title=f"ours, {NEEDED[replicas]} of {replicas} replicas")


@contextmanager
def _asked(kind: str, server: Server, replicas: int) -> Iterator[Contender]:
    endpoint = server.endpoint
    if kind == "stelae":
        endpoint = json.dumps({"connect": endpoint, "replicas": replicas, "min_replicas": NEEDED[replicas]})
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as asking:
        answer_of(asking.submit(_connect, kind, endpoint, server.pids))
        yield Contender(kind, server, asking)


# -- what is measured


def measure(
    contender: Contender, said: argparse.Namespace, refusals: list[Refusal], replicas: int, found: dict[str, Any]
) -> None:
    """Added to `found`, by what was done: loads, seconds without service, seconds to catch up."""
    title = contender.server.title

    def is_next(part: str) -> bool:
        """Whether it is asked for, and there is time for it."""
        is_wanted = part in said.only and (part == PUTS or replicas == 3)
        if is_wanted and time.monotonic() + _PART_S_MAX[part] > said.until_s:
            refusals.append(Refusal(f"{title}, {part}", f"too little was left of {said.minutes:g} minutes"))
            return False
        return is_wanted

    if is_next(PUTS):
        contender.tell(_put_many, said.rounds, said.many)  # the first one opens connections: it does not count
        for round_ in range(said.rounds):
            for callers in said.callers:
                load = contender.tell(_drive, callers, said.seconds)
                _add(found, f"put, {callers} at once" if callers > 1 else "put", load)
            _add(found, f"put_many of {said.many:,}", contender.tell(_put_many, round_, said.many))
    if is_next(LOST):
        if contender.kind == "postgres":
            refusals.append(Refusal(f"{title}, a lost member", "it does not choose another primary by itself"))
        else:
            for how in ("killed", "stopped"):
                found[f"the leader is {how}"] = time_lost(contender, how == "killed", said.watch)
    if is_next(CATCH_UP):
        if contender.kind in _NO_LAG:
            refusals.append(Refusal(f"{title}, catching up", _NO_LAG[contender.kind]))
        else:
            missed, took_s = contender.miss(said.missed_mb * 1_000_000)
            found["a member catches up"] = {"missed_bytes": missed, "seconds": took_s}


def _add(found: dict[str, Any], what: str, load: Load) -> None:
    found[what] = found[what] + load if what in found else load


def time_lost(contender: Contender, is_killed: bool, watch_s: float) -> float | None:
    """The longest time between two puts that succeeded, of which the later came after the loss; None: none came."""
    lose = contender.find_leader()
    watching = contender.asking.submit(_watch, _BEFORE_S + watch_s)
    time.sleep(_BEFORE_S)
    begun_s = time.monotonic()
    undo = lose(is_killed)
    try:
        put_s = answer_of(watching)
    finally:
        undo()
    time.sleep(_AGAIN_S)
    gaps_s = [later_s - before_s for before_s, later_s in pairwise(put_s) if later_s > begun_s]
    return max(gaps_s, default=None)


# -- what was found


def show(found: dict[str, dict[str, Any]]) -> None:
    table = Table(title="stelae bench: replicas, durable puts")
    table.add_column("what")
    table.add_column("contender")
    for heading in ("p50 ms", "p99 ms", "per second", "server µs each", "caller µs each"):
        table.add_column(heading, justify="right")
    lost = Table("what", "contender", "seconds", title="stelae bench: replicas, a member is lost")
    for what in dict.fromkeys(what for each in found.values() for what in each):
        for title, value in ((title, each[what]) for title, each in found.items() if what in each):
            if isinstance(value, Load):
                times = (f"{value.quantile_s(part) * 1e3:.3f}" for part in (0.5, 0.99))
                spent = (f"{spent_s / value.count * 1e6:.1f}" for spent_s in (value.server_s, value.caller_s))
                table.add_row(what, title, *times, f"{value.per_s:,.0f}", *spent)
            elif isinstance(value, dict):
                missed = f"{what} with {value['missed_bytes'] / 1e6:,.0f} MB"
                lost.add_row(missed, title, f"{value['seconds']:.1f}")
            else:
                lost.add_row(what, title, "none came" if value is None else f"{value:.2f}")
        table.add_section()
    for each in (table, lost):
        if each.row_count:
            console.print(each)


def ratios(found: dict[str, dict[str, Any]]) -> list[Row]:
    """Ours with three replicas against each peer: seconds of 1,000 puts, or of one put_many's thousand rows."""
    ours = found.get(_OURS, {})
    rows = []
    for title, each in found.items():
        for what, value in each.items() if not title.startswith("ours") else ():
            mine = ours.get(what)
            if isinstance(value, Load) and isinstance(mine, Load):
                wanted = round(1 / SINGLE_MAX, 2) if what == "put" else 1.0
                rows.append(Row(f"1,000 rows by {what}", 1_000 / mine.per_s, 1_000 / value.per_s, title, wanted))
            elif isinstance(value, float) and isinstance(mine, float):
                rows.append(Row(what, mine, value, title))
    return rows


def _as_facts(value: Any) -> Any:
    if isinstance(value, Load):
        spread = {"p50_s": value.quantile_s(0.5), "p99_s": value.quantile_s(0.99)}
        return {name: each for name, each in asdict(value).items() if name != "took_s"} | spread
    return value


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    def words(text: str) -> list[str]:
        return [word for word in text.split(",") if word]

    def numbers(text: str) -> list[int]:
        return [int(word) for word in words(text)]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each load, in each round; a third more warms up")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--callers", type=numbers, default=[1, 64], help="at once: 1,64")
    parser.add_argument("--many", type=int, default=20_000, help="rows of a put_many")
    parser.add_argument("--watch", type=float, default=20.0, help="seconds for which puts go on after a member is lost")
    parser.add_argument("--missed-mb", type=int, default=1_000, help="what a member misses")
    parser.add_argument("--minutes", type=float, default=15.0, help="nothing is begun that would end later")
    parser.add_argument("--replicas", type=numbers, default=[1, 2, 3], help="of ours")
    parser.add_argument("--only", type=words, default=[PUTS, LOST, CATCH_UP], help="some of puts,lost,catch-up")
    parser.add_argument("--peers", type=words, default=list(PEERS), help=f"some of {','.join(PEERS)}; '' for none")
    add_homes(parser, "kudu", "cassandra")
    found = parser.parse_args(arguments)
    found.until_s = time.monotonic() + 60.0 * found.minutes
    for option, choices in (("peers", PEERS), ("only", (PUTS, LOST, CATCH_UP)), ("replicas", tuple(NEEDED))):
        if unknown := [str(each) for each in getattr(found, option) if each not in choices]:
            parser.error(f"--{option}: there is no {', '.join(unknown)}; choose from {', '.join(map(str, choices))}")
    return found


def main() -> None:
    said = options_of()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("asked to end: what was started is ended"))
    serve: dict[str, Callable[[], AbstractContextManager[Server]]] = {
        "etcd": partial(serve_etcd, members=3),
        "kudu": partial(serve_kudu, said.kudu, servers=3),
        "cassandra": partial(serve_cassandra, said.cassandra, members=3),
        "postgres": partial(serve_postgres, standbys=2),
    }
    found: dict[str, dict[str, Any]] = {}
    refusals: list[Refusal] = []
    console.print(f"load of the machine before: {os.getloadavg()[0]:.1f}")
    for replicas in said.replicas:
        with _serve_ours(replicas) as ours, _asked("stelae", ours, replicas) as contender:
            measure(contender, said, refusals, replicas, found.setdefault(ours.title, {}))
    for kind in said.peers:
        console.print(f"[dim]{kind} ...[/]")
        try:
            with serve[kind]() as server, _asked(kind, server, 3) as contender:
                measure(contender, said, refusals, 3, found.setdefault(server.title, {}))
        except PeerFailed as error:
            refusals.append(Refusal(kind, str(error)))
    console.print(f"load of the machine after: {os.getloadavg()[0]:.1f}")
    show(found)
    if rows := ratios(found):
        report("replicas", rows)
    for refusal in refusals:
        console.print(f"[yellow]not run:[/] {refusal}")
    facts = {title: {what: _as_facts(value) for what, value in each.items()} for title, each in found.items()}
    write_facts("replicas", {"contenders": facts, "not_run": [str(refusal) for refusal in refusals]})


if __name__ == "__main__":
    main()
