"""Machines of their own for the nodes of a real cluster: each shard's disk may get full, and its clocks may be wrong.

A disk is a small one that is mounted, where that is allowed; elsewhere the shard's process itself refuses to write to
its directory. Clocks are those of the shard's process: what Python tells of the time (`machine/sitecustomize.py`). The
library libfaketime was tried for that, and is of no use: waits for locks with a limit never end under it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path

from tests.cluster.machine.sitecustomize import CLOCK, SLOTS_AT

DISK_BYTES = 48 * 2**20
_PIECE = bytes(2**16)


class Machine:
    """What one shard runs on. `directory`: of the shard."""

    def __init__(self, directory: Path, *, is_mounted: bool) -> None:
        self.directory = directory
        self._is_mounted = is_mounted
        self._slot = 0
        self._ahead_s, self._rate, self._since_s, self._shown_s = 0.0, 1.0, 0.0, 0.0
        self._clock = directory.with_name(f"{directory.name}.clock")
        self._clock.write_bytes(bytes(SLOTS_AT + 2 * CLOCK.size))
        self._write_clock()

    def set_clock(self, *, ahead_s: float = 0.0, rate: float = 1.0) -> None:
        """From now on. The wall clock leaps to where it is ahead of the true one by so much; the monotonic one goes on
        from what it shows, at that rate."""
        now_s = time.monotonic()
        self._shown_s += (now_s - self._since_s) * self._rate
        self._since_s, self._ahead_s, self._rate = now_s, ahead_s - self._shown_s + now_s, rate
        self._write_clock()

    def _write_clock(self) -> None:
        """The other slot first, then that it counts: whoever reads meanwhile sees the one or the other."""
        self._slot = 1 - self._slot
        with self._clock.open("r+b", buffering=0) as file:
            file.seek(SLOTS_AT + self._slot * CLOCK.size)
            file.write(CLOCK.pack(self._ahead_s, self._rate, self._since_s, self._shown_s))
            file.seek(0)
            file.write(bytes([self._slot]))

    def wipe_disk(self) -> None:
        """Nothing is left on it. No process of the shard may live."""
        for each in self.directory.iterdir():
            if each.is_dir():
                shutil.rmtree(each)
            else:
                each.unlink()

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """There is no room but what is taken already."""
        filler = (
            self.directory / "filler" if self._is_mounted else self.directory.with_name(f"{self.directory.name}.full")
        )
        try:
            with filler.open("wb", buffering=0) as file:
                while self._is_mounted and _takes(file.fileno(), _PIECE):
                    continue
            yield
        finally:
            filler.unlink()


def _takes(fd: int, data: bytes) -> bool:
    try:
        return os.write(fd, data) > 0
    except OSError:
        return False


@contextmanager
def machines(cluster: Path, nodes: int, shards: int = 1) -> Iterator[tuple[Mapping[str, Machine], Mapping[str, str]]]:
    """By the name of a shard, for a cluster in that directory that is not started yet, of so many nodes with so many
    shards each; and the environment that its processes are to have."""
    mounted: list[Path] = []
    try:
        made = {}
        for node, shard in product(range(1, nodes + 1), range(shards)):
            directory = cluster / f"node-{node}" / f"shard-{shard}"
            directory.mkdir(parents=True)
            is_mounted = _mount(directory)
            if is_mounted:
                mounted.append(directory)
            made[f"node-{node}/{shard}"] = Machine(directory, is_mounted=is_mounted)
        paths = [str(Path(__file__).parent / "machine"), os.environ.get("PYTHONPATH", "")]
        yield made, {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    finally:
        for directory in mounted:
            subprocess.run(["umount", "--lazy", str(directory)], check=True)


def _mount(directory: Path) -> bool:
    """Whether there is a small disk there now: it takes rights that not everybody has."""
    if sys.platform != "linux" or os.geteuid():
        return False
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0755", "stelae-test", str(directory)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
