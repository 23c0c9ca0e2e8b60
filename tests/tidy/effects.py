"""Rules on what may come from outside: time, chance and threads reach a room through its ports alone."""

from __future__ import annotations

import ast

from tests.tidy.names import resolved
from tests.tidy.sources import Source

_CLOCKS = (
    "time.",
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "datetime.datetime.today",
    "datetime.date.today",
)
_CHANCE = ("random.", "secrets.", "uuid.uuid1", "uuid.uuid4", "uuid.uuid6", "uuid.uuid7", "os.urandom", "os.getrandom")
_CHANCE_OF_LIBRARIES = ("numpy.random.", "pyarrow.compute.random")
_THREADS = ("threading.Thread", "threading.Timer", "concurrent.futures.ThreadPoolExecutor", "_thread.")
_PROCESSES = ("concurrent.futures.ProcessPoolExecutor", "multiprocessing.")
_BY_ADDRESS = ("concurrent.futures.wait", "concurrent.futures.as_completed")
_NEVER_SIMULATED = ("adapters", "spark", "launch", "cli")


def clock_or_chance(source: Source) -> list[str]:
    """Only adapters read a clock or draw at random; sim may make a `random.Random(seed)`, and name its type."""
    if source.room == "adapters":
        return []
    seeded = _seeded_generators(source.tree) if source.room == "sim" else set()
    return [
        f"{source.path}:{line}: {name}: take a Clock or Rng as a parameter; only adapters have the real ones"
        for line, name, node in resolved(source.tree)
        if _within(name, _CLOCKS + _CHANCE + _CHANCE_OF_LIBRARIES) and node not in seeded
    ]


def threads(source: Source) -> list[str]:
    """Only adapters start threads and processes, and the simulation those it simulates by; locks are for everyone."""
    if source.room == "adapters" or source.path.startswith("sim/threads/"):
        return []
    return [
        f"{source.path}:{line}: {name}: take an Executor as a parameter; only adapters start threads"
        for line, name, _ in resolved(source.tree)
        if _within(name, _THREADS + _PROCESSES)
    ]


def waits_by_address(source: Source) -> list[str]:
    """What the simulation runs does nothing in the order of addresses, which no two runs have in common."""
    if source.room in _NEVER_SIMULATED:
        return []
    return [
        f"{source.path}:{line}: {name}: it takes futures by their addresses; use `storage.log.futures.wait_for`"
        for line, name, _ in resolved(source.tree)
        if _within(name, _BY_ADDRESS)
    ]


def sleeping_tests(source: Source) -> list[str]:
    return [
        f"{source.path}:{line}: time.sleep: wait for the event itself, or use the simulated clock"
        for line, name, _ in resolved(source.tree)
        if name == "time.sleep"
    ]


def _within(name: str, banned: tuple[str, ...]) -> bool:
    return any(name == entry or name.startswith(entry if entry.endswith(".") else f"{entry}.") for entry in banned)


def _seeded_generators(tree: ast.Module) -> set[ast.expr]:
    """Uses of `random.Random` that are given a seed, or are a type and not a call."""
    unseeded = {
        node.func for node in ast.walk(tree) if isinstance(node, ast.Call) and not node.args and not node.keywords
    }
    return {node for _, name, node in resolved(tree) if name == "random.Random" and node not in unseeded}
