"""`stelae check`: its exit codes, and what it shows of a report."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest

import stelae
from tests.cli.running import Cli


@dataclass(frozen=True)
class Problem:
    what: str
    where: str
    words: str


@dataclass(frozen=True)
class Report:
    problems: tuple[Problem, ...] = ()
    counts: dict[str, int] = field(default_factory=lambda: {"tablets": 3, "fragments": 1200})


Checker = Callable[[Callable[[Path, Callable[[int, int], None]], Report]], None]


@pytest.fixture
def checker(monkeypatch: pytest.MonkeyPatch) -> Checker:
    """Puts a function in the place of the one that checks."""

    def put(check: Callable[[Path, Callable[[int, int], None]], Report]) -> None:
        def check_store(path: Path, progress: Callable[[int, int], None], *, store: str | None) -> Report:
            assert store is None
            return check(path, progress)

        module = ModuleType("stelae.launch.checking")
        module.check_store = check_store  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "stelae.launch.checking", module)

    return put


@pytest.mark.usefixtures("screen")
def test_a_whole_store(users: Cli, checker: Checker) -> None:
    def check(path: Path, progress: Callable[[int, int], None]) -> Report:
        assert path == users.path
        progress(1, 2)
        return Report()

    checker(check)
    assert users.done("check") == "whole (3 tablets, 1,200 fragments)\n"
    assert users.json("check") == {"whole": True, "problems": [], "counts": {"tablets": 3, "fragments": 1200}}


@pytest.mark.usefixtures("screen")
def test_problems(users: Cli, checker: Checker) -> None:
    checker(lambda *_: Report((Problem("fragment", "a[/b].parquet", "is gone"), Problem("log", "1.log", "is torn"))))
    shown = users.run("check")
    assert shown.exit_code == 1
    assert shown.stdout.splitlines()[:2] == ["fragment a[/b].parquet", "    is gone"]
    assert "2 problems (3 tablets, 1,200 fragments)" in shown.stdout
    told = users.run("check", "--json")
    assert told.exit_code == 1
    assert '"whole": false' in told.stdout
    assert '"words": "is torn"' in told.stdout


def test_a_real_store_before_and_after_damage(users: Cli) -> None:
    with stelae.open(users.path) as database:
        database.table("users").flush()
    assert users.done("check").startswith("whole (")
    for fragment in users.path.rglob("*.parquet"):
        data = bytearray(fragment.read_bytes())
        data[20] ^= 1
        fragment.write_bytes(data)
    told = users.run("check", "--json")
    assert told.exit_code == 1
    assert not json.loads(told.stdout)["whole"]
    assert "checksum" in json.loads(told.stdout)["problems"][0]["words"]


def test_what_cannot_be_checked(cli: Cli, users: Cli, checker: Checker, tmp_path: Path) -> None:
    def fail(path: Path, _: Callable[[int, int], None]) -> Report:
        raise stelae.Unavailable(f"{path} is open elsewhere")

    assert "no store in" in Cli(tmp_path / "none").refused("check", code=2)
    checker(fail)
    assert "is open elsewhere" in users.refused("check", code=2)
