"""Every verb explains itself, and says what it found to programs too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from stelae.cli.app import app
from tests.cli.running import run


def verbs(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if not hasattr(command, "list_commands"):
        yield words
        return
    for name in command.list_commands(None):
        yield from verbs(command.get_command(None, name), (*words, name))


VERBS = sorted(verbs(typer.main.get_command(app)))
WITHOUT_STORE = [
    *((verb,) for verb in ("bench", "demo", "inspect", "up", "down", "master")),
    ("node", "run"),
    ("node", "drain"),
    ("cluster", "show"),
    ("topology", "remove"),
]


def test_all_verbs_are_there() -> None:
    assert {" ".join(verb) for verb in VERBS} >= {
        *("get", "put", "erase", "scan", "import", "check", "bench", "inspect", "demo"),
        *("up", "down", "master", "node run", "node drain", "cluster show", "topology remove"),
        *(f"table {verb}" for verb in ("list", "create", "describe", "alter", "drop", "recall", "truncate")),
        *(f"namespace {verb}" for verb in ("list", "create", "drop")),
        *(f"zone {verb}" for verb in ("list", "create", "alter", "drop")),
        *(f"tablet {verb}" for verb in ("list", "split", "join")),
        *(f"catalog {verb}" for verb in ("log", "show", "diff")),
    }


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_help(verb: tuple[str, ...]) -> None:
    result = run(*verb, "--help")
    assert result.exit_code == 0
    assert f"Example: stelae {' '.join(verb)}" in " ".join(result.stdout.split())
    if verb != ("demo",):
        assert "--json" in result.stdout
    if verb not in WITHOUT_STORE:
        assert "--path" in result.stdout
    assert "\x1b" not in result.stdout


def test_brackets_in_help_are_no_markup() -> None:
    shown = " ".join(run("table", "create", "--help").stdout.split())
    assert "NAME TYPE [not null] [default VALUE]" in shown


@pytest.mark.parametrize("words", [["nothing"], ["get"], ["scan", "t", "--limit", "x"], ["table", "create", "t"]])
def test_wrong_usage(words: list[str]) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert "Usage: " in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_parameters_show_as_people_know_them(verb: tuple[str, ...]) -> None:
    shown = run(*verb, "--help").stdout
    for odd in ("<bool>", "<str>", "<int", "<path", "{TABLE}", "[x>="):
        assert odd not in shown
