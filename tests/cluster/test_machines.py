"""What `machines` makes wrong with a shard's process is so for it, and for nobody else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.cluster.machines import Machine, machines
from tests.effort import HANG_S

_PROGRAM = """
import json, sys, time
from stelae.adapters.logfiles.local import LocalLogFiles
from stelae.model.errors import StelaeError

def wrote():
    try:
        file = LocalLogFiles(sys.argv[-1]).create(f"{time.time_ns():016x}.log")
        file.append(b"x" * 100)
        file.sync()
    except StelaeError as error:
        return type(error).__name__
    return ""

print(json.dumps({"wall_s": time.time(), "monotonic_s": time.monotonic(), "wrote": wrote()}))
"""


def _run(environment: Mapping[str, str], directory: Path, kind: str = "shard") -> Any:
    command = [sys.executable, "-c", _PROGRAM, kind, "--dir", str(directory)]
    done = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=HANG_S)
    return json.loads(done.stdout)


def test_clocks_leap_and_go_at_other_rates(tmp_path: Path) -> None:
    with machines(tmp_path, 2) as (made, environment):
        wrong, right = made["node-1/0"], made["node-2/0"]
        wrong.set_clock(ahead_s=-5_000.0)
        assert 4_000 < time.time() - _run(environment, wrong.directory)["wall_s"] < 6_000
        assert abs(time.time() - _run(environment, right.directory)["wall_s"]) < 500
        assert abs(time.time() - _run(environment, wrong.directory, "master")["wall_s"]) < 500
        before = _run(environment, wrong.directory)
        wrong.set_clock(rate=1e6)
        after = _run(environment, wrong.directory)
        assert after["monotonic_s"] - before["monotonic_s"] > 10_000
        assert after["wall_s"] - time.time() > 10_000
        wrong.set_clock()
        last = _run(environment, wrong.directory)
        assert last["monotonic_s"] > after["monotonic_s"]
        assert abs(time.time() - last["wall_s"]) < 500


def test_a_disk_gets_full_and_has_room_again(tmp_path: Path) -> None:
    with machines(tmp_path, 1) as (made, environment):
        _check_room(made["node-1/0"], environment)


def test_where_nothing_can_be_mounted_the_process_itself_refuses(tmp_path: Path) -> None:
    with machines(tmp_path, 1) as (_, environment):
        directory = tmp_path / "node-9" / "shard-0"
        os.makedirs(directory)
        _check_room(Machine(directory, is_mounted=False), environment)


def _check_room(machine: Machine, environment: Mapping[str, str]) -> None:
    assert not _run(environment, machine.directory)["wrote"]
    with machine.full_disk():
        assert _run(environment, machine.directory)["wrote"] == "DiskFull"
        assert not _run(environment, machine.directory.with_name("elsewhere"))["wrote"]
    assert not _run(environment, machine.directory)["wrote"]
