"""Processes of tests, stopped for certain."""

from __future__ import annotations

import os
import signal
import subprocess


def stop(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """It takes no further step when this returns: the threads of a process stop a little later than `kill` returns."""
    os.kill(process.pid, signal.SIGSTOP)
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
