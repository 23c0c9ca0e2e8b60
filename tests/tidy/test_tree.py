"""The rules, on this repository."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.tidy import compares, effects, shape, suites, texts, uses, waiting
from tests.tidy.sources import PACKAGE, ROOT, TESTS, Source, kept_files, read, rooms

pytestmark = pytest.mark.xdist_group("tree")
"""On one worker, so that each file is parsed once."""


@pytest.fixture(scope="module")
def package() -> list[Source]:
    return read(PACKAGE)


@pytest.fixture(scope="module")
def tests() -> list[Source]:
    return read(TESTS)


@pytest.mark.parametrize(
    "rule", [shape.too_long, shape.busy_init, effects.clock_or_chance, effects.threads, effects.waits_by_address]
)
def test_modules(package: list[Source], rule: Callable[[Source], list[str]]) -> None:
    assert package
    assert [complaint for source in package for complaint in rule(source)] == []


@pytest.mark.parametrize(
    "rule",
    [
        shape.swollen_assembly,
        shape.names_with_two_homes,
        shape.duplicated_bodies,
        shape.crowded_folders,
        shape.unmade_packages,
        uses.unused_names,
        uses.unused_methods,
        compares.blind_writes,
        waiting.unlisted_waits,
        waiting.waits_under_locks,
        waiting.unlisted_repeats,
    ],
)
def test_the_package_as_a_whole(package: list[Source], rule: Callable[[Iterable[Source]], list[str]]) -> None:
    assert rule(package) == []


def test_every_adapter_is_held_to_its_port() -> None:
    adapters, ports = read(PACKAGE / "adapters"), read(PACKAGE / "ports")
    assert uses.unproven_adapters(adapters, ports, read(TESTS / "contract")) == []


def test_docstrings(package: list[Source]) -> None:
    assert [complaint for source in package for complaint in texts.riddles(source)] == []


@pytest.mark.parametrize("room", rooms(), ids=lambda room: room.name)
def test_rooms(room: Path) -> None:
    assert shape.bad_room(room) == []


@pytest.mark.parametrize("rule", [suites.without_tests, suites.silent_skips, effects.sleeping_tests])
def test_tests(tests: list[Source], rule: Callable[[Source], list[str]]) -> None:
    assert [complaint for source in tests for complaint in rule(source)] == []


def test_words() -> None:
    found = []
    for file in kept_files():
        content = file.read_bytes()
        if b"\0" not in content:
            found += texts.banned_words(file.relative_to(ROOT).as_posix(), content.decode("utf-8"))
    assert found == []


def test_the_lock_has_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(line for extra in project["optional-dependencies"].values() for line in extra),
    ]
    locked = set(re.findall(r"^([a-z0-9._-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    names = {re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0].lower().replace("_", "-") for line in wanted}
    assert names - locked == set(), "run make lock"
