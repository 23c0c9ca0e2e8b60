"""A process beside the tests that has stores for them: directories that it has open, and clusters that it serves.

    beside = Beside()
    beside.own(directory)                  # stelae.open(directory) attaches from now on
    address = beside.serve(directory)      # stelae.connect(address)

One process for a whole run: what starting Python costs is paid once.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import stelae
from tests.cluster_of_threads import Cluster
from tests.effort import HANG_S

ROOT = Path(__file__).parent.parent


class Beside:
    """Each call returns when it is done there. One caller at a time."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.beside"]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def own(self, directory: Path) -> None:
        self._ask("own", directory)

    def serve(self, directory: Path) -> str:
        """Where its master is asked."""
        address: str = self._ask("serve", directory)
        return address

    def restart(self, directory: Path) -> None:
        """A directory is closed and opened again; of a cluster the shards."""
        self._ask("restart", directory)

    def crash(self, directory: Path) -> None:
        """As `restart`, but nothing is put in order before."""
        self._ask("crash", directory)

    def end(self, directory: Path) -> None:
        self._ask("end", directory)

    def _ask(self, what: str, directory: Path) -> Any:
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([what, str(directory)]) + "\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline() or '{"failed": "the process is gone"}')
        assert "failed" not in answer, answer["failed"]
        return answer["done"]

    def close(self) -> None:
        self.process.communicate(timeout=HANG_S)


class _Stores:
    """What is asked for, in the process beside."""

    def __init__(self) -> None:
        self._open: dict[str, stelae.Database | Cluster] = {}

    def own(self, directory: str) -> None:
        self._open[directory] = stelae.open(directory)

    def serve(self, directory: str) -> str:
        cluster = self._open[directory] = Cluster(Path(directory), shard_count=2)
        return cluster.address

    def restart(self, directory: str) -> None:
        match self._open[directory]:
            case Cluster() as cluster:
                cluster.end_shards()
                cluster.begin_shards()
            case database:
                database.close()
                self.own(directory)

    def crash(self, directory: str) -> None:
        match self._open[directory]:
            case Cluster() as cluster:
                cluster.abandon_shards()
                cluster.begin_shards()
            case database:
                store: Any = database._session.backend
                store.abandon()
                self.restart(directory)

    def end(self, directory: str) -> None:
        self._open.pop(directory).close()


def main() -> None:
    stores = _Stores()
    for line in sys.stdin:
        what, directory = json.loads(line)
        try:
            answer = {"done": getattr(stores, what)(directory)}
        except Exception as error:  # noqa: BLE001 - the other side is told, whatever it is
            answer = {"failed": repr(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
