"""The player notices what it is there to notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.player import alike, play, play_file


def python(code: str, said: str | None = None) -> str:
    return f"```python\n{code}\n```\n" + ("" if said is None else f"```text\n{said}\n```\n")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "document",
    [
        python("print(1)", "1"),
        python("x = 1") + python("print(x)", "1"),
        python("print('a', 117623743457591296)", "a 117623743457460224"),
        python("print(*'abc', sep='\\n')", "a\n...\nc"),
        "```console\n$ echo one; echo two >&2\none\ntwo\n$ true\n```\n",
        "```console\n$ echo one \\\n  two\none two\n```\n",
        "```sh\necho anything\npip install ./nothing\n```\n",
        "```console\n$ pip install ./nothing\n```\n",
        "```text\nno code at all\n```\n",
    ],
)
def test_what_is_true(document: str) -> None:
    assert play(document).complaints == []


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        (python("print(1)", "2"), "says"),
        (python("print(1)"), "no text block"),
        (python("1 / 0"), "ZeroDivisionError"),
        (python("print(1)", ""), "says"),
        (python("", "1"), "says"),
        ("```console\n$ echo one\n```\n", "says"),
        ("```console\n$ echo one; exit 3\none\n```\n", "exit code 3"),
        ("```sh\nfalse\ntrue\n```\n", "exit code 1"),
    ],
)
def test_what_is_not(document: str, complaint: str) -> None:
    assert [complaint in each for each in play(document).complaints] == [True]


def test_nothing_is_played_behind_a_failure() -> None:
    played = play(python("1 / 0") + python("open('made', 'w')"))
    assert len(played.complaints) == 1
    assert not Path("made").exists()


def test_what_differs_is_compared_by_its_looks_only_where_it_may() -> None:
    assert alike("3 rows, 10.5 KiB, 2026-11-16 02:21:34.940", "3 rows, 9 B, 2027-01-01 00:00:00.001")
    assert not alike("3 rows, 10.5 KiB", "4 rows, 10.5 KiB")
    assert not alike("txn 117623743457591296", "txn 3")
    assert not alike("a.b", "axb")


def test_writing_puts_what_was_printed_into_the_document() -> None:
    path = Path("document.md")
    path.write_text(python("print(1)", "2") + "```console\n$ echo one\n$ echo two\n2\n```\n" + python("print(3)", "3"))
    assert len(play_file(path.absolute(), write=True)) == 3
    assert path.read_text() == (
        python("print(1)", "1") + "```console\n$ echo one\none\n$ echo two\ntwo\n```\n" + python("print(3)", "3")
    )
    assert play_file(path.absolute()) == []
