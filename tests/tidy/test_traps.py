"""The table of traps names what plays each of them, and that is there: a test, a story or a fault that a list has, or a
bug that is planted. What is not built cannot fall into its traps yet, and is said to be so."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
TABLE = TESTS / "cluster" / "README.md"
TRAPS = {f"T{number}" for number in range(1, 62)}
NOT_BUILT = {
    "T46": "tablets do not move",
    "T54": "there are no streams of changes",
    "T55": "there are no streams of changes",
}
_ROW = re.compile(r"^\| (T\d+) \| .* \| (.*) \|$", re.MULTILINE)
_UNBUILT = re.compile(r"^\| (T\d+) \| .* \| not built: (.*) \|$", re.MULTILINE)
_PLAYED = re.compile(r"`([\w/]+)\.py::(\w+)`")
_LISTS = re.compile(r"STORIES|FAULTS|PLANTED\w*")


def unplayed(text: str, tests: Path) -> list[str]:
    """The rows that name nothing, and what is named and is not there, or plays nothing."""
    unbuilt = {trap for trap, _ in _UNBUILT.findall(text)}
    found: list[str] = []
    for trap, cell in _ROW.findall(text):
        named = _PLAYED.findall(cell)
        found += [] if named or trap in unbuilt else [trap]
        found += [f"{trap}: {path}.py::{name}" for path, name in named if not _plays(tests, path, name)]
    return found


def _plays(tests: Path, path: str, name: str) -> bool:
    module = tests / f"{path}.py"
    if not module.exists():
        return False
    if name.startswith("test_"):
        return re.search(rf"^(async )?def {name}\(", module.read_text(), re.MULTILINE) is not None
    return name in _listed(import_module(f"{tests.name}.{path.replace('/', '.')}"))


def _listed(module: Any) -> set[str]:
    """The functions in a module's lists of stories, faults and planted bugs. What a function has made is that one."""
    return {
        played.__qualname__.partition(".")[0]
        for name, value in vars(module).items()
        if _LISTS.fullmatch(name)
        for each in (value.values() if isinstance(value, dict) else value)
        for played in _functions(each)
    }


def _functions(listed: Any) -> Iterator[Any]:
    found = [listed, *(getattr(listed, name, None) for name in ("tell", "patch"))]
    yield from (each for each in found if hasattr(each, "__qualname__"))


def test_every_trap_is_in_the_table() -> None:
    assert {trap for trap, _ in _ROW.findall(TABLE.read_text())} == TRAPS


def test_what_the_table_names_is_there() -> None:
    assert unplayed(TABLE.read_text(), TESTS) == []


def test_what_is_not_built_is_said_to_be_so() -> None:
    assert dict(_UNBUILT.findall(TABLE.read_text())) == NOT_BUILT


def test_a_bad_table_is_told() -> None:
    text = "| T1 | a story | nobody |\n| T2 | another | `tidy/test_traps.py::test_not`, `tidy/gone.py::test_it` |\n"
    assert unplayed(text, TESTS) == ["T1", "T2: tidy/test_traps.py::test_not", "T2: tidy/gone.py::test_it"]


def test_what_only_helps_plays_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that no list has is played by nobody, whatever it is called."""
    (tmp_path / "played").mkdir()
    (tmp_path / "played" / "some_stories.py").write_text(
        "def told() -> None: ...\ndef helps() -> None: ...\nSTORIES = {'told': told}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "| T1 | a story | `some_stories.py::told`, `some_stories.py::helps` |\n| T2 | none | not built: no |\n"
    try:
        assert unplayed(text, tmp_path / "played") == ["T1: some_stories.py::helps"]
    finally:
        sys.modules.pop("played.some_stories", None)
        sys.modules.pop("played", None)
