"""The page of errors tells of every error that users can meet."""

from __future__ import annotations

import ast
import re

import pytest

import stelae
from stelae.client.calls.retries import Attempts
from stelae.service.deadlines import Deadline
from stelae.sim.clock import SimClock
from stelae.sim.rng import SimRng
from tests.docs.player import ROOT
from tests.tidy.sources import PACKAGE, Source, read

ERRORS = sorted(
    name
    for name in set(stelae.__all__) - {"aio", "schema"}
    if isinstance(getattr(stelae, name), type) and issubclass(getattr(stelae, name), stelae.StelaeError)
)
PAGE = (ROOT / "docs" / "errors.md").read_text("utf-8")
TOLD = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
NEVER_REACH_USERS = {
    "BadBytes": "the bytes of a catalog's version: whoever reads the update log tells Corruption",
    "BrokenCatalog": "a catalog that breaks its own rules: whoever reads the update log tells Corruption",
    "ChangeInDoubt": "tserver finds out what became of a change; where it cannot wait, it tells Unavailable",
    "Compacted": "what was asked of a metastore is gone from its history: registry begins with what is there",
    "Deposed": "what a master is told that another one has followed; its callers are told Unavailable",
    "DoneInPart": "a server cuts the write there, and answers for each part",
    "LeaseExpired": "a lease of the metastore ran out: registry takes another",
    "MessageRefused": "a ProtocolError, which is what users know it by",
    "MissingFile": "a NotFound of files: the tablet is looked at as it is now; what it needs then is Corruption",
    "NotCached": "whoever asked for what is in memory alone takes the long way",
    "NotInThisState": "a TabletAway",
    "PartsLeft": "the call goes on with the rest of its rows, or tells UnknownOutcome",
    "RecordsChanged": "an Unavailable: a master that knows what is not so any more reads it again",
    "StaleSchema": "clients make the block anew; at the deadline they tell Unavailable",
    "TabletAway": "clients try again; at the deadline they tell Unavailable",
    "UndecidedConflict": "a Conflict that tserver waits for until it is one, or none",
    "WouldBeHidden": "update and increment write with a later time",
    "_Unfit": "put_many finds the row that it is about",
}
"""Errors that stay between the rooms, and why."""


def errors_of(sources: list[Source]) -> set[str]:
    """The names of all classes that derive from StelaeError."""
    bases: dict[str, set[str]] = {}
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef):
                bases.setdefault(node.name, set()).update(each.id for each in node.bases if isinstance(each, ast.Name))
    found = {"StelaeError"}
    while more := {name for name, of in bases.items() if of & found} - found:
        found |= more
    return found


def test_every_error_is_exported_or_stays_inside_for_a_reason() -> None:
    assert errors_of(read(PACKAGE)) == {*ERRORS, *NEVER_REACH_USERS}


def test_an_error_that_nobody_exports_is_found() -> None:
    bad = Source("x.py", "class Odd(StelaeError): ...\nclass Odder(Odd): ...\nclass Even(Exception): ...")
    assert errors_of([bad]) == {"StelaeError", "Odd", "Odder"}


def test_every_error_has_a_row_and_nothing_else_has() -> None:
    assert sorted(TOLD) == sorted(set(ERRORS) - {"StelaeError", "Retryable"})


@pytest.mark.parametrize("name", TOLD)
def test_what_is_repeated_is_said(name: str) -> None:
    section = PAGE[: PAGE.index(f"| `{name}` |")].rpartition("\n## ")[2].partition("\n")[0]
    assert issubclass(getattr(stelae, name), stelae.Retryable) == ("(repeated)" in section)


@pytest.mark.parametrize("name", TOLD)
def test_what_is_told_at_once_is_said(name: str) -> None:
    kind = getattr(stelae, name)
    if not issubclass(kind, stelae.Retryable):
        return
    attempts = Attempts(Deadline(SimClock(), 30.0), SimRng(1))
    try:
        attempts.delay_s(kind("no"))
        is_told_at_once = False
    except kind:
        is_told_at_once = True
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |"))
    assert ("Told at once" in row) == is_told_at_once
    assert (f"`{name}`" in PAGE[: PAGE.index("\n## ")]) == is_told_at_once


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_shows_where_users_import_it_from(name: str) -> None:
    kind = getattr(stelae, name)
    assert (kind.__module__, kind.__qualname__) == ("stelae", name)
