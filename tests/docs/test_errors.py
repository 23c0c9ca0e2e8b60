"""The page of errors tells of every error that users can meet."""

from __future__ import annotations

import re

import pytest

import stelae
from tests.docs.player import ROOT

ERRORS = sorted(
    name
    for name in set(stelae.__all__) - {"aio"}
    if isinstance(getattr(stelae, name), type) and issubclass(getattr(stelae, name), stelae.StelaeError)
)
PAGE = (ROOT / "docs" / "errors.md").read_text("utf-8")
TOLD = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)


def test_every_error_has_a_row_and_nothing_else_has() -> None:
    assert sorted(TOLD) == sorted(set(ERRORS) - {"StelaeError", "Retryable"})


@pytest.mark.parametrize("name", TOLD)
def test_what_is_repeated_is_said(name: str) -> None:
    section = PAGE[: PAGE.index(f"| `{name}` |")].rpartition("\n## ")[2].partition("\n")[0]
    assert issubclass(getattr(stelae, name), stelae.Retryable) == ("(repeated)" in section)


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_shows_where_users_import_it_from(name: str) -> None:
    kind = getattr(stelae, name)
    assert (kind.__module__, kind.__qualname__) == ("stelae", name)
