"""Whether a process lives: known by its id and by when it began, for the system gives ids out again."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Event

import msgspec

from stelae.model.errors import PermissionDenied

_PROC = Path("/proc")
_BOOT = _PROC / "sys" / "kernel" / "random" / "boot_id"
_ENDED = ("Z", "X")
_STATE, _THREADS, _BEGAN = 0, 17, 19
"""Where they stand behind the name of the program in `/proc/PID/stat`."""
_LOOK_S = 0.05
_nap = Event()


class ProcessMark(msgspec.Struct, frozen=True):
    """One process, and no other that gets its id later. `began`: when, in the system's own words."""

    pid: int
    began: str


def mark_process(pid: int) -> ProcessMark | None:
    """None: there is none of that id, or it has ended and only waits for its parent to notice."""
    began = _began_proc(pid) if _BOOT.exists() else _began_ps(pid)
    return None if began is None else ProcessMark(pid, began)


def is_alive(mark: ProcessMark) -> bool:
    return mark_process(mark.pid) == mark


def send_signal(mark: ProcessMark, number: signal.Signals) -> bool:
    """Whether it lived, and got the signal. No other process gets it, whoever has the id by now. PermissionDenied if
    it is another user's."""
    fd = _open_process(mark)
    if fd is None:
        return False
    try:
        if fd < 0:
            os.kill(mark.pid, number)
        else:
            signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return False
    except PermissionError as error:
        raise PermissionDenied(f"process {mark.pid} belongs to another user: it cannot be ended") from error
    finally:
        if fd >= 0:
            os.close(fd)
    return True


def wait_for_end(mark: ProcessMark, timeout_s: float) -> bool:
    """Whether it has ended, within so many seconds."""
    fd = _open_process(mark)
    if fd is None:
        return True
    if fd >= 0:
        try:
            return bool(select.select([fd], [], [], timeout_s)[0])
        finally:
            os.close(fd)
    for _ in range(max(1, int(timeout_s / _LOOK_S))):
        if not is_alive(mark):
            return True
        _nap.wait(_LOOK_S)
    return False


def _open_process(mark: ProcessMark) -> int | None:
    """A descriptor of the process; -1 where the system has none of them; None if it does not live."""
    fd = -1
    if hasattr(os, "pidfd_open"):
        try:
            fd = os.pidfd_open(mark.pid)
        except ProcessLookupError:
            return None
    # Looked at behind opening: whose descriptor it is does not change any more.
    if is_alive(mark):
        return fd
    if fd >= 0:
        os.close(fd)
    return None


def _began_proc(pid: int) -> str | None:
    try:
        said = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    fields = said.rpartition(b")")[2].decode().split()
    # The first thread of a killed process is gone before the others are, which have its files and locks until then.
    has_ended = fields[_STATE] in _ENDED and int(fields[_THREADS]) <= 1
    return None if has_ended else f"{_boot()}/{fields[_BEGAN]}"


@cache
def _boot() -> str:
    """Ticks are counted from the machine's start: after another one they mean another time."""
    return _BOOT.read_text("ascii").strip()


def _began_ps(pid: int) -> str | None:
    """When a process began, by `ps`: for systems that have no /proc."""
    with suppress(OSError):
        said = subprocess.run(["ps", "-o", "state=,lstart=", "-p", str(pid)], capture_output=True, check=False)  # noqa: S603, S607 - a number
        state, _, began = said.stdout.decode().strip().partition(" ")
        if began and not state.startswith(_ENDED):
            return began.strip()
    return None
