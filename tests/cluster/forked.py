"""A cluster whose processes are forked by one that has imported everything: to kill one and to start it again costs
tenths of a second, so it can be done often.

Run as a program it is that process: it is told, line by line, what to start, and answers with the new process's id.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import stelae
from tests.cluster.driver import load_once
from tests.cluster.traps import set_trap
from tests.cluster_of_threads import NODE
from tests.effort import HANG_S

ROOT = Path(__file__).parents[2]
DRIVER = "driver.pid"
"""The file that says which process drives a load."""


class ForkedCluster:
    """`begin` starts what is not there, `kill` ends it with -9. Both wait until that is so. What there is: "master",
    "master-2" and so on, and "shard-0", "shard-1" and so on; "shard" is the first of these; and "driver", which is told
    what to load. `address`: of the first
    master; `collect_every_s`: how often masters collect files."""

    def __init__(self, root: Path, address: str, *, collect_every_s: float = 300.0) -> None:
        self._root = root
        self.address = address
        self._pids: dict[str, int] = {}
        command = [sys.executable, "-m", "tests.cluster.forked", str(root), address, str(collect_every_s)]
        pipe = subprocess.PIPE
        self._parent = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True, bufsize=1)

    def begin(self, what: str, *trap: str) -> None:
        """It serves when this returns. `trap`: where it ends by itself (`traps`); for a driver, what it loads."""
        self._pids[what] = self._ask("begin", [what, *trap])

    def wait(self, what: str) -> None:
        """Until it has ended by itself."""
        self._ask("wait", self._pids.pop(what))

    def kill(self, what: str) -> None:
        os.kill(self._pids[what], signal.SIGKILL)
        self._ask("wait", self._pids.pop(what))

    def _ask(self, what: str, about: Any) -> int:
        parent = self._parent
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdin.write(json.dumps([what, about]) + "\n")
        answer = parent.stdout.readline()
        assert answer, "the process that forks has ended"
        return int(answer)

    def close(self) -> None:
        for what in tuple(self._pids):
            self.kill(what)
        self._parent.communicate(timeout=HANG_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _fork(root: Path, address: str, collect_every_s: float, what: str, *trap: str) -> int:
    """The id of a process that serves."""
    ready, tell = os.pipe()
    pid = os.fork()
    if pid:
        os.close(tell)
        said = os.read(ready, 10)
        os.close(ready)
        if not said:
            raise SystemExit(f"the {what} did not start")
        return pid
    try:
        os.close(ready)
        if what == "driver":
            drive(root, address, tell, *trap)
            os._exit(0)
        if trap:
            set_trap(what, *trap)
        serving = _serve(root, address, collect_every_s, what)
        os.write(tell, b"ready")
        signal.pause()
        del serving
    finally:
        os._exit(1)


def drive(root: Path, address: str, tell: int, value: str, kind: str) -> None:
    """Load a value, as an addition or in place of what was there, and end."""
    (root / DRIVER).write_text(str(os.getpid()))
    with stelae.connect(address, timeout_s=HANG_S) as db:
        db.table("t")
        os.write(tell, b"ready")
        load_once(db, root, int(value), replaces=kind == "replaces")


def _serve(root: Path, address: str, collect_every_s: float, what: str) -> object:
    from stelae.launch.processes import LISTEN_DEFAULT, MasterOptions, MasterProcess, ShardOptions, ShardProcess

    metastore, store = f"sqlite://{root}/metastore", str(root / "store")
    if what.startswith("master"):
        name = f"master-{what.partition('-')[2] or 1}"
        listen = address if name == "master-1" else LISTEN_DEFAULT
        return MasterProcess(
            MasterOptions(name, root / name, metastore, store, listen, collect_every_s=collect_every_s)
        )
    number = int(what.partition("-")[2] or 0)
    place = root / f"shard-{number}"
    return ShardProcess(ShardOptions("node-1", place, metastore, store, node=NODE, number=number))


def _main() -> None:
    import stelae.launch.processes  # noqa: F401 - before the first fork
    from stelae.launch.local import LocalStore  # noqa: F401 - the same

    root, address, collect_every_s = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    for line in sys.stdin:
        what, about = json.loads(line)
        if what == "begin":
            print(_fork(root, address, collect_every_s, *about), flush=True)
        else:
            os.waitpid(about, 0)
            print(0, flush=True)


if __name__ == "__main__":
    _main()
