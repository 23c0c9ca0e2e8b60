"""The table of traps names what plays each of them, and that is there."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
TABLE = TESTS / "cluster" / "README.md"
TRAPS = {f"T{number}" for number in (*range(1, 46), *range(47, 54), *range(56, 60))}
_ROW = re.compile(r"^\| (T\d+) \| .* \| (.*) \|$", re.MULTILINE)
_PLAYED = re.compile(r"`([\w/]+\.py)::(\w+)`")


def unplayed(text: str, tests: Path) -> list[str]:
    """The rows that name nothing, and what is named and is not there."""
    found: list[str] = []
    for trap, cell in _ROW.findall(text):
        named = _PLAYED.findall(cell)
        found += [] if named else [trap]
        for path, name in named:
            module = tests / path
            if not module.exists() or not re.search(rf"^(async )?def {name}\(", module.read_text(), re.MULTILINE):
                found.append(f"{trap}: {path}::{name}")
    return found


def test_every_trap_is_in_the_table() -> None:
    assert {trap for trap, _ in _ROW.findall(TABLE.read_text())} >= TRAPS


def test_what_the_table_names_is_there() -> None:
    assert unplayed(TABLE.read_text(), TESTS) == []


def test_a_bad_table_is_told() -> None:
    text = "| T1 | a story | nobody |\n| T2 | another | `tidy/test_traps.py::no_such_test`, `tidy/gone.py::test_it` |\n"
    assert unplayed(text, TESTS) == ["T1", "T2: tidy/test_traps.py::no_such_test", "T2: tidy/gone.py::test_it"]
