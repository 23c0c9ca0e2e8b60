"""`stelae demo`, as a person runs it: it tells its story, leaves what it was asked to leave, and nothing when it is
interrupted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import stelae

_SPARK_CALLS = ("bash", "cat", "dirname", "env", "head", "ps", "sh", "tr", "uname")
_END_S_MAX = 60.0
_COMMAND = [sys.executable, "-c", "from stelae.cli.app import main; main()", "demo"]


def started(*arguments: str | Path, temporary: Path, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*_COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary), **variables},
        start_new_session=True,
    )


def is_running(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_it_runs_and_leaves_what_it_was_asked_to(tmp_path: Path) -> None:
    demo = started("--rows", "3000", "--no-spark", "--keep", tmp_path / "kept", temporary=tmp_path)
    told, complaints = demo.communicate()
    assert demo.returncode == 0, complaints
    assert "3,000 rows in" in told
    assert "Conflict" in told
    assert "its states, newest first: sent, paid, placed; with at= it is still placed" in told
    assert "acknowledged rows are there" in told
    assert "the counter is 400" in told
    assert "whole: 2 tables" in told
    assert "\x1b" not in told
    assert max(len(line) for line in told.splitlines()) < 400
    with stelae.open(tmp_path / "kept", read_only=True) as kept:
        assert kept.tables() == ["counters", "orders"]
        assert kept.table("orders").count(stelae.col("customer") != "customer-killed") == 3_300
    again = started("--keep", tmp_path / "kept", temporary=tmp_path)
    assert "is there already" in again.communicate()[1]
    assert again.returncode == 1


@pytest.mark.parametrize(
    ("moment", "interrupt"),
    [
        pytest.param("== 2.", os.killpg, id="among-single-rows"),
        pytest.param(" owns the store", os.killpg, id="with-a-writer"),
        pytest.param(" owns the store", os.kill, id="with-a-writer-that-is-not-told"),
        pytest.param("== 5.", os.killpg, id="while-a-process-starts"),
        pytest.param(" attaches", os.kill, id="with-a-second-process-that-is-not-told"),
    ],
)
def test_interrupted_it_leaves_nothing(tmp_path: Path, moment: str, interrupt: Callable[[int, int], None]) -> None:
    demo = started("--rows", "3000", "--no-spark", temporary=tmp_path, PYTHONUNBUFFERED="1")
    assert demo.stdout is not None
    has_come = any(moment in line for line in demo.stdout)
    if has_come:
        interrupt(demo.pid, signal.SIGINT)
    try:
        _, complaints = demo.communicate(timeout=_END_S_MAX)
    except subprocess.TimeoutExpired:
        os.killpg(demo.pid, signal.SIGKILL)
        raise
    assert (has_come, demo.returncode) == (True, 130), complaints
    assert "Traceback" not in complaints
    assert not is_running(demo.pid)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spark
def test_with_spark_and_without_java_on_the_path(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in _SPARK_CALLS:
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    demo = started("--rows", "2000", temporary=tmp_path, PATH=str(tools), JAVA_HOME="")
    told, complaints = demo.communicate()
    assert demo.returncode == 0, complaints
    assert "best customers" in told
