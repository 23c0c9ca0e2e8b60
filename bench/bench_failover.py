"""How long tablets are not served when the shard that leads them is gone: killed with its node, or stopped, or killed
alone, so that its node starts it again. And how a member catches up with what it has missed.

    bench_failover.py [--tablets 200] [--rounds 2] [--missed-mb 0]

Three nodes with one shard each, three replicas of each tablet, two of which a write needs; all processes are those that
users run (`stelae up`), on 127.0.0.1. Timed is from the signal until a row of each tablet that the shard led was
written; *elected* is when the master has chosen the last of the next leaders, as its log says. The limit is a lease
(9 s) and two seconds; what is shown is the share of it that was taken.

--missed-mb 1000: one that does not lead is killed with its node, so much is written by put_many (for 5 minutes at
most), and it is started again. Shown are the time until it counts as a member again, the most memory that it and the
leader had meanwhile, and the longest put of a program that writes row after row all the time.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import numpy as np
from harness import write_facts
from remote_servers import StelaeServer, serve_stelae
from rich.console import Console
from rich.table import Table

import stelae
from stelae.adapters.ownership import read_owner
from stelae.model.errors import Retryable, UnknownOutcome
from stelae.registry.leases.held import LEASE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT_S = LEASE_S + 2.0
PATIENCE_S = 120.0
MISSED_S_MAX = 300.0
LARGE_BYTES = 10_000
LARGE_ROWS = 1_000
Undo = Callable[[], None]
Stop = Callable[[StelaeServer, str], Undo]
console = Console(width=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tablets", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--missed-mb", type=int, default=0)
    said = parser.parse_args()
    console.print(f"load of the machine before: {os.getloadavg()[0]:.1f}")
    facts: dict[str, Any] = {"tablets": said.tablets}
    with serve_stelae(nodes=3) as server, stelae.connect(server.endpoint, timeout_s=PATIENCE_S) as db:
        db.create_zone("copies", replicas=3, min_replicas=2)
        if said.rounds:
            facts["failovers"] = _lose_leaders(server, db, said.tablets, said.rounds)
        if said.missed_mb:
            facts["catching_up"] = _catch_up(server, db, said.missed_mb * 1_000_000)
    console.print(f"load of the machine after: {os.getloadavg()[0]:.1f}")
    write_facts("failover", facts)


# -- leaders that are lost


def _lose_leaders(server: StelaeServer, db: stelae.Database, tablets: int, rounds: int) -> list[dict[str, Any]]:
    splits = [10 * number for number in range(1, tablets)]
    groups = [stelae.columns("g", {"v": "int64"})]
    table = db.create_table("t", key={"k": "int64"}, groups=groups, zone="copies", splits=splits)
    ways = {"killed with its node": kill_node, "stopped": stop_shard, "killed, and started again": kill_shard}
    found = []
    shown = Table(
        "what happened", "tablets that it led", "elected, s", "written, s", f"of the limit of {LIMIT_S:.0f} s"
    )
    for _ in range(rounds):
        for how, stop in ways.items():
            lost = {"how": how, **_time_failover(server, table, stop)}
            part = f"{lost['written_s'] / LIMIT_S:.2f}"
            shown.add_row(how, str(lost["led"]), f"{lost['elected_s']:.1f}", f"{lost['written_s']:.1f}", part)
            found.append(lost)
    console.print(shown)
    return found


def _time_failover(server: StelaeServer, table: stelae.Table, stop: Stop) -> dict[str, Any]:
    wait_whole(table)
    led = Counter(tablet.server for tablet in table.tablets())
    victim = max(led, key=lambda name: led[name])
    rows = [{"k": 10 * at, "v": 1} for at, tablet in enumerate(table.tablets()) if tablet.server == victim]
    begun_s, began_s = time.monotonic(), time.time()
    undo = stop(server, victim)
    while True:
        try:
            table.put_many(rows)
            break
        except (Retryable, UnknownOutcome):
            continue
    took_s = time.monotonic() - begun_s
    undo()
    return {"led": led[victim], "elected_s": _last_election(server) - began_s, "written_s": took_s}


def _last_election(server: StelaeServer) -> float:
    """When the master chose a leader last, in seconds since 1970."""
    lines = (server.directory / "master-1" / "log.txt").read_text().splitlines()
    last = next(line for line in reversed(lines) if " leader_elected " in line)
    return datetime.strptime(last.split("Z ", 1)[0], "%Y-%m-%dT%H:%M:%S.%f").replace(tzinfo=UTC).timestamp()


def kill_node(server: StelaeServer, victim: str) -> Undo:
    node = victim.partition("/")[0]
    for pid in (_pid(server.directory / node), _shard_pid(server, victim)):
        os.kill(pid, signal.SIGKILL)
    return server.start_again


def stop_shard(server: StelaeServer, victim: str) -> Undo:
    pid = _shard_pid(server, victim)
    os.kill(pid, signal.SIGSTOP)
    return lambda: os.kill(pid, signal.SIGCONT)


def kill_shard(server: StelaeServer, victim: str) -> Undo:
    os.kill(_shard_pid(server, victim), signal.SIGKILL)
    return lambda: None


def _shard_pid(server: StelaeServer, shard: str) -> int:
    return _pid(server.directory / shard.partition("/")[0] / "shard-0")


def _pid(directory: Path) -> int:
    owner = read_owner(directory)
    assert owner is not None
    return owner.pid


def wait_whole(table: stelae.Table, patience_s: float = PATIENCE_S) -> None:
    """Until every tablet has all its replicas again, and none is behind."""
    until_s = time.monotonic() + patience_s
    while not _is_whole(table.tablets()):
        assert time.monotonic() < until_s, "replicas do not come back"
        time.sleep(0.2)


def _is_whole(shown: Sequence[stelae.TabletInfo]) -> bool:
    """What nobody leads is not shown: the tablets must reach from the first row to the last."""
    is_well = all(len(each.replicas) == 2 and not sum(lag for _, lag in each.replicas) for each in shown)
    begins, ends = [*(each.start for each in shown), None], [b"", *(each.stop for each in shown)]
    return is_well and begins == ends


# -- what was missed


def _catch_up(server: StelaeServer, db: stelae.Database, wanted_bytes: int) -> dict[str, Any]:
    groups = [stelae.columns("g", {"v": "binary"})]
    table = db.create_table("large", key={"k": "int64"}, groups=groups, zone="copies")
    (tablet,) = table.tablets()
    assert tablet.server is not None
    leads, misses = tablet.server, tablet.replicas[0][0]
    undo = kill_node(server, misses)
    begun_s = time.monotonic()
    written = _write_large(table, wanted_bytes)
    wrote_s = time.monotonic() - begun_s
    lead_pid = _shard_pid(server, leads)
    found: dict[str, Any] = {"missed_bytes": written, "writing_s": wrote_s, "leader_writing": _peak_bytes(lead_pid)}
    Path(f"/proc/{lead_pid}/clear_refs").write_text("5")  # what it had at most is counted anew
    with _writing(server) as longest_s:
        begun_s = time.monotonic()
        undo()
        found["started_s"] = time.monotonic() - begun_s
        wait_whole(table, MISSED_S_MAX)
        found["whole_s"] = time.monotonic() - begun_s
    found |= {"longest_put_s": longest_s[0], "leader_catching_up": _peak_bytes(lead_pid)}
    found["member_catching_up"] = _peak_bytes(_shard_pid(server, misses))
    shown = Table("a member that missed", f"{written / 1e6:,.0f} MB, written in {wrote_s:.0f} s")
    shown.add_row("its process serves again after", f"{found['started_s']:.1f} s")
    shown.add_row("it counts again after", f"{found['whole_s']:.1f} s")
    shown.add_row("longest put meanwhile", f"{longest_s[0] * 1e3:,.0f} ms")
    shown.add_row("leader's memory, at most, while it was written", f"{found['leader_writing'] / 1e6:,.0f} MB")
    shown.add_row("leader's memory, at most, meanwhile", f"{found['leader_catching_up'] / 1e6:,.0f} MB")
    shown.add_row("its own memory, at most", f"{found['member_catching_up'] / 1e6:,.0f} MB")
    console.print(shown)
    return found


def _write_large(table: stelae.Table, wanted_bytes: int) -> int:
    chance, written, until_s = np.random.default_rng(7), 0, time.monotonic() + MISSED_S_MAX
    while written < wanted_bytes and time.monotonic() < until_s:
        first = written // LARGE_BYTES
        table.put_many([{"k": first + at, "v": chance.bytes(LARGE_BYTES)} for at in range(LARGE_ROWS)])
        written += LARGE_ROWS * LARGE_BYTES
    return written


@contextmanager
def _writing(server: StelaeServer) -> Iterator[list[float]]:
    """Another program writes row after row; gives the time of the longest, once it has ended."""
    longest_s, is_over = [0.0], Event()

    def write() -> None:
        with stelae.connect(server.endpoint, timeout_s=PATIENCE_S) as db:
            table = db.table("large")
            while not is_over.is_set():
                begun_s = time.monotonic()
                table.put({"k": -1, "v": b"small"})
                longest_s[0] = max(longest_s[0], time.monotonic() - begun_s)

    thread = Thread(target=write)
    thread.start()
    try:
        yield longest_s
    finally:
        is_over.set()
        thread.join()


def _peak_bytes(pid: int) -> int:
    """The most memory that a process had."""
    (line,) = [each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("VmHWM")]
    return int(line.split()[1]) * 1_024


if __name__ == "__main__":
    main()
