"""What differs between kinds of stores is told in one place, with a reason; nothing else does."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.client.places import DIFFERENT, OF_DIRECTORIES, PLACES, kinds_of


def all_tests() -> dict[str, tuple[str, str]]:
    """The module and the text of each test."""
    found = {}
    for file in Path(__file__).parent.glob("test_*.py"):
        text = file.read_text("utf-8")
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found[node.name] = file.stem, ast.get_source_segment(text, node) or ""
    return found


def test_what_is_listed_is_there_and_has_a_reason() -> None:
    tests = all_tests()
    for listed in (OF_DIRECTORIES, *DIFFERENT.values()):
        assert listed.keys() <= tests.keys()
        assert all(listed.values())
    assert DIFFERENT.keys() <= PLACES.keys()
    assert {kind for name in tests for kind in kinds_of(name)} == PLACES.keys()


def test_who_opens_a_directory_is_listed() -> None:
    calls = ("stelae.open(", "stelae.aio.open(")
    openers = {name for name, (_, text) in all_tests().items() if any(call in text for call in calls)}
    assert openers - {"test_who_opens_a_directory_is_listed"} == OF_DIRECTORIES.keys()
