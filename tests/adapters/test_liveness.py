"""Processes by their id and by when they began."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stelae.adapters import liveness
from stelae.adapters.liveness import ProcessMark, is_alive, mark_process, send_signal, wait_for_end
from stelae.model.errors import PermissionDenied
from tests.clusters import until
from tests.effort import HANG_S


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def test_a_process_that_ended_does_not_live_though_nobody_has_noticed(sleeper: subprocess.Popen[bytes]) -> None:
    mark = mark_process(sleeper.pid)
    assert mark is not None
    assert is_alive(mark)
    assert not wait_for_end(mark, 0)
    assert send_signal(mark, signal.SIGTERM)
    assert wait_for_end(mark, HANG_S)
    assert sleeper.returncode is None
    assert not is_alive(mark)
    assert mark_process(sleeper.pid) is None
    assert not send_signal(mark, signal.SIGKILL)


def test_another_that_has_the_id_gets_no_signal(sleeper: subprocess.Popen[bytes]) -> None:
    mark = mark_process(sleeper.pid)
    assert mark is not None
    for other in (ProcessMark(mark.pid, mark.began + "0"), ProcessMark(mark.pid, "")):
        assert not is_alive(other)
        assert not send_signal(other, signal.SIGKILL)
        assert wait_for_end(other, 0)
    assert is_alive(mark)


def test_without_descriptors_of_processes(sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    mark = mark_process(sleeper.pid)
    assert mark is not None
    assert not send_signal(ProcessMark(mark.pid, "another"), signal.SIGKILL)
    assert not wait_for_end(mark, 0)
    assert send_signal(mark, signal.SIGKILL)
    assert wait_for_end(mark, HANG_S)


@pytest.mark.skipif(shutil.which("ps") is None, reason="this system has no ps")
def test_by_ps(sleeper: subprocess.Popen[bytes]) -> None:
    began = liveness._began_ps(sleeper.pid)
    assert began
    assert liveness._began_ps(sleeper.pid) == began
    sleeper.kill()
    sleeper.wait()
    assert liveness._began_ps(sleeper.pid) is None


def test_a_process_of_another_user() -> None:
    if os.getuid() == 0:
        pytest.skip("root may end everybody's")
    mark = mark_process(1)
    assert mark is not None
    with pytest.raises(PermissionDenied, match="another user"):
        send_signal(mark, signal.SIGTERM)


_THREADED = """
import ctypes, threading
threading.Thread(target=input, daemon=True).start()
print("runs", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_lives_as_long_as_its_last_thread() -> None:
    """Its first thread is gone, which looks like an end; another one waits for a line."""
    with subprocess.Popen([sys.executable, "-c", _THREADED], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"runs\n"
        stat = Path(f"/proc/{process.pid}/stat")
        if not stat.exists():
            process.kill()
            pytest.skip("this system has no /proc")
        until(lambda: b") Z " in stat.read_bytes())
        mark = mark_process(process.pid)
        assert mark is not None
        assert not wait_for_end(mark, 0)
        process.kill()
        assert wait_for_end(mark, HANG_S)
