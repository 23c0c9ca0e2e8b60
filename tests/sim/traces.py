"""The traces of simulated runs, one hash for each seed: to be the same in every process, under every PYTHONHASHSEED.

python -m tests.sim.traces ledger:5 takeover:1    prints those of the first five seeds, and of the first
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from stelae.sim.loop import simulate
from stelae.sim.nemesis import SAFE, draw_settings
from stelae.sim.rng import SimRng
from stelae.sim.trace import Trace
from stelae.sim.world import run_world
from tests.client.remote import test_takeover
from tests.cluster.simulated import run_cluster, silent_remains
from tests.registry import test_simulated
from tests.sim.ledger import Ledger

LINES_MAX = 100_000


def _ledger(seed: int, trace: Trace) -> None:
    """The small service of these tests, on a whole world with all kinds of faults."""
    ledger = Ledger()
    settings = draw_settings(SimRng(seed))
    run = run_world(
        lambda world: ledger.disturbed(world, SAFE), seed, repeat="", settings=settings, trace_lines_max=LINES_MAX
    )
    trace.add("run", run.trace.encode())
    trace.lines.extend(run.trace_lines)


def _catalog(seed: int, trace: Trace) -> None:
    """Several processes on one catalog."""
    world = simulate(lambda loop: test_simulated.live(loop, seed), seed, trace=trace)
    trace.add("revision", b"%d" % world.server.revision)


def _takeover(seed: int, trace: Trace) -> None:
    """Programs that own a store, or are attached to it, and are killed."""
    story = test_takeover.Story(seed)
    story.world.loop._trace = trace
    try:
        for _ in range(25):
            story.step()
        story.finish()
        trace.add("disk", story.world.machine.disk.image())
        trace.add("files", repr([*story.world.machine.blobs.list()]).encode())
        trace.add("revision", b"%d" % story.world.machine.metastate.revision)
    finally:
        story.world.end()


def _cluster(seed: int, trace: Trace) -> None:
    """A master, a shard and programs, of the parts that users run."""
    with silent_remains():
        run = run_cluster(seed, LINES_MAX)
    trace.add("run", run.trace.encode())
    trace.lines.extend(run.trace_lines)


RUNS: dict[str, Callable[[int, Trace], None]] = {
    "ledger": _ledger,
    "catalog": _catalog,
    "takeover": _takeover,
    "cluster": _cluster,
}


def trace_of(what: str, seed: int) -> Trace:
    trace = Trace(LINES_MAX)
    RUNS[what](seed, trace)
    return trace


if __name__ == "__main__":
    for asked in sys.argv[1:]:
        name, _, count = asked.partition(":")
        for number in range(int(count)):
            print(name, number, trace_of(name, number).digest)
