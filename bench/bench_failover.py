"""How long tablets are not served when the shard that leads them is gone: killed with its node, or stopped.

    bench_failover.py [--tablets 200] [--rounds 2]

Three nodes with one shard each, three replicas of each tablet, two of which a write needs; all processes are those that
users run (`stelae up`), on 127.0.0.1. Timed is from the signal until a row of each tablet that the shard led was
written. The limit is a lease (9 s) and two seconds; what is shown is the share of it that was taken.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from harness import write_facts
from remote_servers import StelaeServer, serve_stelae
from rich.console import Console
from rich.table import Table

import stelae
from stelae.adapters.ownership import read_owner
from stelae.model.errors import Retryable, UnknownOutcome
from stelae.registry.leases.held import LEASE_S

LIMIT_S = LEASE_S + 2.0
PATIENCE_S = 120.0
Undo = Callable[[], None]
Stop = Callable[[StelaeServer, str], Undo]
console = Console(width=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tablets", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=2)
    said = parser.parse_args()
    shown = Table("what happened", "tablets that it led", "seconds", f"of the limit of {LIMIT_S:.0f} s")
    facts: dict[str, list[float]] = {}
    with serve_stelae(nodes=3) as server, stelae.connect(server.endpoint, timeout_s=PATIENCE_S) as db:
        db.create_zone("copies", replicas=3, min_replicas=2)
        splits = [10 * number for number in range(1, said.tablets)]
        groups = [stelae.columns("g", {"v": "int64"})]
        table = db.create_table("t", key={"k": "int64"}, groups=groups, zone="copies", splits=splits)
        for _ in range(said.rounds):
            for how, stop in (("killed with its node", kill_node), ("stopped", stop_shard)):
                count, took_s = _time_failover(server, table, stop)
                shown.add_row(how, str(count), f"{took_s:.1f}", f"{took_s / LIMIT_S:.2f}")
                facts.setdefault(how, []).append(took_s / LIMIT_S)
    console.print(shown)
    write_facts("failover", {"tablets": said.tablets, "of_the_limit": facts})


def _time_failover(server: StelaeServer, table: stelae.Table, stop: Stop) -> tuple[int, float]:
    wait_whole(table)
    led = Counter(tablet.server for tablet in table.tablets())
    victim = max(led, key=lambda name: led[name])
    rows = [{"k": 10 * at, "v": 1} for at, tablet in enumerate(table.tablets()) if tablet.server == victim]
    begun_s = time.monotonic()
    undo = stop(server, victim)
    while True:
        try:
            table.put_many(rows)
            break
        except (Retryable, UnknownOutcome):
            continue
    took_s = time.monotonic() - begun_s
    undo()
    return led[victim], took_s


def kill_node(server: StelaeServer, victim: str) -> Undo:
    node = victim.partition("/")[0]
    for pid in (_pid(server.directory / node), _pid(server.directory / node / "shard-0")):
        os.kill(pid, signal.SIGKILL)
    return server.start_again


def stop_shard(server: StelaeServer, victim: str) -> Undo:
    pid = _pid(server.directory / victim.partition("/")[0] / "shard-0")
    os.kill(pid, signal.SIGSTOP)
    return lambda: os.kill(pid, signal.SIGCONT)


def _pid(directory: Path) -> int:
    owner = read_owner(directory)
    assert owner is not None
    return owner.pid


def wait_whole(table: stelae.Table) -> None:
    """Until every tablet has all its replicas again, and none is behind."""
    until_s = time.monotonic() + PATIENCE_S
    while any(len(each.replicas) < 2 or sum(lag for _, lag in each.replicas) for each in table.tablets()):
        assert time.monotonic() < until_s, "replicas do not come back"
        time.sleep(0.2)


if __name__ == "__main__":
    main()
