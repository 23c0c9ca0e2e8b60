"""What a check says of files that nobody needs: they are counted, and are a problem only while nothing removes them."""

from __future__ import annotations

from stelae.client.remote.cluster.sums import with_unneeded
from stelae.model.errors import Unavailable
from stelae.registry.masters.unneeded import UnneededFiles
from stelae.service.reports import CheckReport, Problem

FOUND = CheckReport((Problem("log", "log", "is torn"),), {"fragments": 2})


def test_files_that_nobody_needs_are_counted() -> None:
    report = with_unneeded(FOUND, UnneededFiles(3, 4_000))
    assert report == CheckReport(FOUND.problems, {"fragments": 2, "unneeded fragments": 3})


def test_it_is_said_why_they_stay() -> None:
    put_off = UnneededFiles(3, 4_000, "shard node-1/0 does not say which files it needs", 90.4)
    report = with_unneeded(FOUND, put_off)
    assert report.counts["unneeded fragments"] == 3
    *others, last = report.problems
    assert others == list(FOUND.problems)
    assert last.what == "files"
    for said in ("3 of them, of 4000 bytes", "put off for 90 s", "shard node-1/0 does not say", "mend what it says"):
        assert said in last.words


def test_a_collection_that_was_put_off_is_no_problem_if_there_is_nothing_to_collect() -> None:
    assert with_unneeded(FOUND, UnneededFiles(0, 0, "why", 5.0)).problems == FOUND.problems


def test_a_master_that_cannot_say_is_a_problem() -> None:
    report = with_unneeded(FOUND, Unavailable("no master leads"))
    assert report.counts == FOUND.counts
    assert "was not found out: no master leads. Check again" in report.problems[-1].words
