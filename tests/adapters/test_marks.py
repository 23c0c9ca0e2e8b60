"""Marks: what was noted last is read again, also after kill -9; damage leaves the one before; nothing goes back."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stelae.adapters.marks import Mark

KILLED = """
import os, signal, sys
from stelae.adapters.marks import Mark
mark = Mark(sys.argv[1])
for number in range(1, 100):
    mark.note((7, number))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_noted_last_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.mark"
    mark = Mark(path)
    assert mark.read() is None
    for reached in ((1, 5), (1, 9), (2, 0)):
        mark.note(reached)
        assert mark.read() == Mark(path).read() == reached
    mark.close()
    mark.close()
    assert mark.read() == (2, 0)
    mark.note((3, 1))
    assert Mark(path).read() == (3, 1)
    mark.close()


def test_a_killed_process_leaves_it_exact(tmp_path: Path) -> None:
    path = tmp_path / "a.mark"
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert Mark(path).read() == (7, 99)


def test_a_damaged_slot_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "a.mark"
    mark = Mark(path)
    mark.note((1, 1))
    mark.note((1, 2))
    mark.close()
    whole = path.read_bytes()
    found = set()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        found.add(Mark(path).read())
    assert found == {(1, 1), (1, 2)}
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert Mark(path).read() in (None, (1, 1), (1, 2))
    mark = Mark(path)  # of a file that was cut
    mark.note((1, 3))
    assert Mark(path).read() == (1, 3)
    mark.close()


def test_one_that_comes_later_and_knows_less_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.mark"
    first, second = Mark(path), Mark(path)
    first.note((5, 0))
    second.note((4, 0))
    assert Mark(path).read() == (5, 0)
    second.note((6, 0))
    assert Mark(path).read() == (6, 0)
    first.close()
    second.close()


def test_where_no_file_can_be_made_nothing_is_noted(tmp_path: Path) -> None:
    mark = Mark(tmp_path / "no" / "a.mark")
    mark.note((1, 1))
    assert mark.read() is None
    mark.close()


def test_a_file_that_was_cut_meanwhile_is_written_again(tmp_path: Path) -> None:
    """A mark that is mapped into memory would end the process here."""
    path = tmp_path / "a.mark"
    mark = Mark(path)
    mark.note((1, 1))
    os.truncate(path, 0)
    mark.note((1, 2))
    mark.note((1, 3))
    assert Mark(path).read() == (1, 3)
    path.unlink()
    mark.note((1, 4))
    assert Mark(path).read() is None
    mark.close()


def test_a_mark_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.mark"
    mark = Mark(path)
    mark.note((1, 1))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("stelae.adapters.marks.os.pwrite", full)
        mark.note((1, 2))
        with pytest.raises(OSError, match="was not written"):
            mark.sync_now()
    assert Mark(path).read() == (1, 1)
    mark.note((1, 3))
    assert Mark(path).read() == (1, 3)
    mark.close()
