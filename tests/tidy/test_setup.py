"""Set-up on a stranger's machine: which Python is taken, and the one line said when there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.tidy.sources import ROOT

# Answers the three questions that tools/find_python asks of a Python.
_FAKE = """\
#!/bin/sh
case $2 in
    *print*) echo {version} ;;
    *sys.exit*) exit {too_old} ;;
    *ensurepip*) exit {no_venv} ;;
esac
"""
_BROKEN = "#!/bin/sh\necho 'no such version' >&2\nexit 127\n"


class Machine:
    """A PATH with only these Pythons on it."""

    def __init__(self, directory: Path) -> None:
        self.bin = directory

    def add(self, name: str, version: str, *, too_old: bool = False, no_venv: bool = False) -> None:
        self.write(name, _FAKE.format(version=version, too_old=int(too_old), no_venv=int(no_venv)))

    def write(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def find(self, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(self.bin), **variables}
        return subprocess.run(
            [ROOT / "tools/find_python"], env=environment, capture_output=True, text=True, check=False
        )

    def refusal(self, **variables: str) -> str:
        done = self.find(**variables)
        assert done.returncode == 1
        assert done.stdout == ""
        (line,) = done.stderr.splitlines()
        return line


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_newest_is_taken(machine: Machine) -> None:
    machine.add("python3", "3.11")
    machine.add("python3.13", "3.13")
    assert machine.find().stdout == f"{machine.bin}/python3.13\n"


def test_one_that_does_not_run_or_makes_no_venv_is_passed_over(machine: Machine) -> None:
    machine.write("python3.14", _BROKEN)
    machine.add("python3.12", "3.12", no_venv=True)
    machine.add("python3.11", "3.11")
    assert machine.find().stdout == f"{machine.bin}/python3.11\n"


def test_the_one_asked_for_is_taken_or_refused(machine: Machine) -> None:
    machine.add("python3.13", "3.13")
    machine.add("mine", "3.12")
    machine.add("old", "3.8", too_old=True)
    assert machine.find(PYTHON="mine").stdout == f"{machine.bin}/mine\n"
    assert "old is 3.8" in machine.refusal(PYTHON="old")
    assert "PYTHON=gone does not run" in machine.refusal(PYTHON="gone")


def test_what_is_missing_is_said_in_one_line_with_the_remedy(machine: Machine) -> None:
    assert "there is no python3 on PATH: install one, or set PYTHON=" in machine.refusal()
    machine.add("python3", "3.9", too_old=True)
    assert "3.11 or later is needed, python3 is 3.9: install one" in machine.refusal()
    machine.add("python3.11", "3.11", no_venv=True)
    assert "python3.11 (3.11) has no venv with pip: install it" in machine.refusal()


def test_make_alone_lists_the_targets() -> None:
    make = shutil.which("make")
    assert make, "make is how this suite is started"
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
    listing = subprocess.run([make], cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    listed = [line.split()[1] for line in listing.splitlines()]
    assert [name for name in listed if name in ("setup", "demo", "test", "check", "bench", "soak")] == [
        "setup",
        "demo",
        "test",
        "check",
        "bench",
        "soak",
    ]
