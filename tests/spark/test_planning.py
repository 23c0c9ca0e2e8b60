"""What is read natively and what is merged: each condition, and that the two together are what a scan gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import stelae
from stelae.client.api.database import Database
from stelae.model.hybrid import micros_of
from stelae.service.tickets import HeldTable, overlay_ticket
from stelae.spark.reading.plans import PlanLimits
from tests.effort import tries
from tests.spark.emulation import FEW, SMALL, carried_out, compact, hold, planned
from tests.spark.same import plain_rows
from tests.spark.tables import KEYS, RandomTable

WAYS: dict[str, tuple[bool, PlanLimits]] = {
    "by tasks": (False, SMALL),
    "overlaid": (True, SMALL),
    "some of both": (True, FEW),
}


class _Seen:
    """What plans were made of, in all."""

    def __init__(self) -> None:
        self.native = self.merged = self.hidden = self.overlays = self.beside = 0

    def compare(self, world: RandomTable, held: HeldTable, asked: dict[str, Any], way: str) -> None:
        """That a plan carried out is what a scan gives."""
        overlaid, limits = WAYS[way]
        question, plan = planned(held, limits, overlaid=overlaid, **asked)
        expected = world.table.scan(at=held.txn, **asked).to_arrow()
        assert plain_rows(carried_out(question, held, plan)) == plain_rows(expected), (way, asked)
        self.native += len(plan.native)
        self.merged += len(plan.merged)
        self.hidden += sum(len(read.hidden) for read in plan.native)
        self.overlays += sum(overlay_ticket(name) is not None for read in plan.native for name in read.files)
        self.beside += sum(each.beside is not None for part in plan.merged for each in part.tablets)


@pytest.mark.parametrize("key", list(KEYS))
@pytest.mark.parametrize("steady", [True, False], ids=["steady", "wild"])
def test_plans_of_random_tables(tmp_path: Path, key: str, steady: bool) -> None:
    seen = {way: _Seen() for way in WAYS}
    for seed in range(tries(3)):
        with stelae.open(tmp_path / str(seed)) as db:
            world = RandomTable(db, 1_000 * len(key) + seed, key, steady=steady)
            world.write(range(80))
            world.steps(12)
            held = hold(db, world.rng.choice(world.txns[-5:]))
            for asked in world.questions():
                for way, found in seen.items():
                    found.compare(world, held, asked, way)
    if steady:
        assert all(found.native and found.hidden for found in seen.values())
    else:
        assert seen["by tasks"].merged
        assert seen["overlaid"].overlays
        assert seen["overlaid"].merged < seen["by tasks"].merged


@pytest.mark.parametrize("key", list(KEYS))
def test_rows_that_other_groups_have_are_read_beside(tmp_path: Path, key: str) -> None:
    """What one group has is read natively all the same."""
    seen = {way: _Seen() for way in WAYS}
    for seed in range(tries(2)):
        with stelae.open(tmp_path / str(seed)) as db:
            world = RandomTable(db, 3_000 * len(key) + seed, key, steady=True, beside=True)
            world.write(range(80))
            world.more()
            world.steps(10)
            held = hold(db)
            for asked in world.questions():
                for way, found in seen.items():
                    found.compare(world, held, asked, way)
    assert seen["by tasks"].native
    assert seen["by tasks"].beside
    assert not seen["overlaid"].beside
    assert seen["overlaid"].overlays


# -- each condition by itself


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with stelae.open(tmp_path / "db") as opened:
        yield opened


_COLUMNS = {"n": "int32", "s": "string", "d": "int32 default 7"}


def _create(db: Database, purge: str | None = None, more: bool = False) -> Any:
    groups: list[Any] = [stelae.columns("data", _COLUMNS, purge=purge)]
    if more:
        groups += [stelae.columns("more", {"extra": "string"}), stelae.cells("events", families=["click"])]
    table = db.create_table("t", key={"id": "string"}, groups=groups, splits=["m"])
    _write(table, "abcxyz")
    return table


def _write(table: Any, keys: Iterable[str], **values: Any) -> None:
    table.put_many([{"id": key, "n": 1, "s": key, "d": 2} | values for key in keys])
    table.flush()


def _counts(
    db: Database, limits: PlanLimits = SMALL, at: int | None = None, *, overlaid: bool = False, **asked: Any
) -> tuple[int, int, int]:
    """How many files are read natively, in how many of them something is hidden, and how many tablets are merged."""
    held = hold(db, at)
    question, plan = planned(held, limits, overlaid=overlaid, **asked)
    expected = db.table("t").scan(at=held.txn, **asked).to_arrow()
    assert plain_rows(carried_out(question, held, plan)) == plain_rows(expected)
    files = sum(len(read.files) for read in plan.native)
    hidden = sum(any(each.bits) for read in plan.native for each in read.hidden)
    return files, hidden, sum(len(part.tablets) for part in plan.merged)


def _in_turn(*steps: Callable[[Any], Any]) -> Callable[[Any], None]:
    def run(table: Any) -> None:
        for step in steps:
            step(table)

    return run


def _split(table: Any) -> None:
    table.split("b")


def _erased(table: Any) -> None:
    table.erase("a")
    table.flush()


def _twice_in_memory(table: Any) -> None:
    table.put({"id": "a", "n": 5, "s": "", "d": 1})
    _write(table, "a")


def _in_part(table: Any) -> None:
    table.put({"id": "a", "n": 5})
    table.flush()


def _key_alone(table: Any) -> None:
    table.put({"id": "q"})
    table.flush()


_CASES: dict[str, tuple[Callable[[Any], Any], tuple[int, int, int]]] = {
    "nothing happened": (lambda table: None, (2, 0, 0)),
    "unflushed rows of another tablet's": (lambda table: table.put({"id": "p", "n": 1}), (2, 0, 1)),
    "a file beside": (lambda table: _write(table, "kl"), (3, 0, 0)),
    "a file over it": (lambda table: _write(table, "b"), (3, 1, 0)),
    "a file over it with a new row": (lambda table: _write(table, ["b", "bb"]), (3, 1, 0)),
    "two over it": (_in_turn(lambda table: _write(table, "bc"), lambda table: _write(table, "b")), (4, 2, 0)),
    "an older time over it": (lambda table: table.put_many([{"id": "b", "n": 1, "s": "", "d": 1}], ts=5), (2, 0, 1)),
    "erasures": (_erased, (2, 0, 1)),
    "two versions in one file": (_twice_in_memory, (2, 0, 1)),
    "a column left out": (_in_part, (2, 0, 1)),
    "a key alone": (_key_alone, (2, 0, 1)),
    "split": (_split, (2, 0, 0)),
    "split, and one half written": (
        _in_turn(_split, lambda table: _write(table, "b")),
        (3, 1, 0),
    ),
    "split, and one half erased": (_in_turn(_split, _erased), (2, 0, 1)),
}


@pytest.mark.parametrize("case", list(_CASES))
def test_what_dirties_a_tablet(db: Database, case: str) -> None:
    happens, expected = _CASES[case]
    happens(_create(db))
    assert _counts(db) == expected


_OVERLAID: dict[str, tuple[int, int, int]] = {
    "unflushed rows of another tablet's": (3, 0, 0),
    "an older time over it": (3, 1, 0),
    "erasures": (2, 1, 0),
    "two versions in one file": (3, 1, 0),
    "a column left out": (3, 1, 0),
    "a key alone": (3, 0, 0),
    "split, and one half erased": (2, 1, 0),
}
"""What is otherwise as it is without overlays."""


@pytest.mark.parametrize("case", list(_CASES))
def test_rows_that_were_touched_lie_in_one_more_file(db: Database, case: str) -> None:
    happens, expected = _CASES[case]
    happens(_create(db))
    assert _counts(db, overlaid=True) == _OVERLAID.get(case, expected)


@pytest.mark.parametrize(
    "asked, expected",
    [
        ({}, (3, 2, 0)),
        ({"columns": ["n"]}, (2, 0, 0)),
        ({"columns": ["id"]}, (2, 0, 0)),
        ({"columns": ["n", "extra"]}, (3, 2, 0)),
        ({"columns": ["extra"]}, (3, 2, 0)),
        ({"columns": ["click:"]}, (2, 0, 0)),
        ({"columns": ["n"], "where": "extra = 'a'"}, (3, 2, 0)),
        ({"columns": ["n"], "where": "n > 1.5"}, (0, 0, 2)),
        ({"columns": ["n"], "where": "s is null", "rows": "having"}, (0, 0, 2)),
        ({"columns": ["n"], "start": "b"}, (2, 0, 0)),
    ],
    ids=lambda each: str(each) if isinstance(each, dict) else "",
)
def test_rows_that_other_groups_have_lie_in_one_more_file(
    db: Database, asked: dict[str, Any], expected: tuple[int, int, int]
) -> None:
    table = _create(db, more=True)
    table.put_many([{"id": key, "extra": key} for key in "ay"])
    table.flush()
    assert _counts(db, overlaid=True, **asked) == expected


@pytest.mark.parametrize("families", [["click", "view"], ["*"]], ids=str)
def test_a_small_table_of_cells_lies_in_one_file(db: Database, families: list[str]) -> None:
    """What has more cells than that is left to tasks."""
    table = db.create_table("t", key={"id": "string"}, groups=[stelae.cells("events", families=families)], splits=["m"])
    table.put_many([{"id": f"{key}{number}", f"click:{number % 3}": b"1"} for key in "az" for number in range(25)])
    table.put({"id": "k", "view:all": b"v"})
    table.put({"id": "only its key"})
    table.flush()
    table.erase("a3")
    for asked in ({}, {"columns": ["click:"]}, {"columns": ["click:"], "rows": "having"}, {"columns": ["id"]}):
        assert _counts(db, overlaid=True, **asked) == (1, 0, 0)
        assert _counts(db, replace(SMALL, overlay_rows_small=10), overlaid=True, **asked)[0] == 0
    some = _counts(db, replace(SMALL, overlay_rows_small=40), overlaid=True, columns=["click:"])
    assert some[0] == 1
    assert some[2] > 0
    held = hold(db)
    _, plan = planned(held, overlaid=True, history=2)
    assert not plan.native


def test_tablets_of_which_much_was_touched_are_left_to_tasks(db: Database) -> None:
    table = _create(db)
    _in_part(table)
    # One row of the three that are read there.
    assert _counts(db, replace(SMALL, overlay_rows_small=0, overlay_share=0.2), overlaid=True) == (2, 0, 1)
    assert _counts(db, replace(SMALL, overlay_rows_small=0, overlay_share=0.4), overlaid=True) == (3, 1, 0)
    assert _counts(db, replace(SMALL, overlay_rows_max=0), overlaid=True) == (2, 0, 1)


@pytest.mark.parametrize(
    "change", [_in_part, _erased, lambda table: _write(table, "a")], ids=["in part", "erased", "whole"]
)
def test_history_that_a_compaction_keeps_is_merged_alone(db: Database, change: Callable[[Any], Any]) -> None:
    """Of the one file there is then, all other rows are read as they lie."""
    table = _create(db)
    _write(table, [f"b{number}" for number in range(40)])
    change(table)
    compact(db)
    files, hidden, merged = _counts(db, overlaid=True)
    assert (hidden, merged) == (1, 0)
    assert files <= 3
    assert _counts(db)[2] == 1


@pytest.mark.parametrize(
    "change", [_in_part, _erased, lambda table: _write(table, "a")], ids=["in part", "erased", "whole"]
)
@pytest.mark.parametrize("columns", [None, ["id"], ["n"]], ids=str)
def test_a_snapshot_from_before_a_compaction_is_read_from_its_file(
    db: Database, change: Callable[[Any], Any], columns: list[str] | None
) -> None:
    """But for the rows that were changed after it, or were not there yet."""
    table = _create(db)
    _write(table, [f"b{number}" for number in range(40)])
    before = db.now()
    change(table)
    _write(table, ["later"])
    compact(db)
    files, hidden, merged = _counts(db, at=before, overlaid=True, columns=columns)
    assert (hidden, merged) == (1, 0)
    assert files <= 3


@pytest.mark.parametrize(
    "purge, after, hidden, count",
    [
        ("max-age=1h", None, 1, 46),
        ("max-age=1h or max-history=2", None, 1, 46),
        ("max-age=1h and max-history=2", None, 0, 47),
        ("max-history=2", None, 0, 47),
        ("max-age=1h", "max-history=1", 1, 46),
        ("max-age=1h", "max-age=300d", 1, 46),
        ("max-age=300d", "max-age=1h", 1, 46),
        ("max-history=1", "max-age=1h or max-age=2h and max-history=1", 1, 46),
    ],
)
def test_rows_that_were_purged_by_their_age_are_merged_alone(
    db: Database, purge: str, after: str | None, hidden: int, count: int
) -> None:
    """The rest of their file is read as it lies, whatever the policy is made of."""
    table = _create(db, purge)
    day_ago_us = micros_of(db.now()) - 86_400_000_000
    table.put_many([{"id": f"b{number}", "n": 1, "s": "", "d": 2} for number in range(40)])
    table.put({"id": "b-old", "n": 5, "s": "", "d": 1}, ts=day_ago_us)
    table.flush()
    if after is not None:
        db.alter_table("t", purge={"data": after})
    table = db.table("t")
    for asked in ({}, {"columns": ["id"]}, {"columns": ["n"], "where": "d = 1"}):
        assert _counts(db, overlaid=True, **asked)[1:] == (hidden, 0)
    assert table.count() == count
    # A time that the file reaches beyond is told record by record, too.
    assert _counts(db, overlaid=True, where=f"time > {day_ago_us + 1}")[2] == 0


def test_the_same_question_about_the_same_files_has_one_overlay(db: Database) -> None:
    _erased(table := _create(db))
    _in_part(table)
    held = hold(db)

    def overlays(columns: list[str] | None) -> set[str]:
        plan = planned(held, overlaid=True, columns=columns)[1]
        return {name for read in plan.native for name in read.files if overlay_ticket(name)}

    assert overlays(None) == overlays(None)
    assert len(overlays(None) | overlays(["n", "s"])) == 2


@pytest.mark.parametrize(
    "asked, expected",
    [
        ({"columns": ["n"]}, (2, 0, 2)),
        ({"columns": ["n"], "rows": "having"}, (2, 0, 0)),
        ({"columns": ["id"]}, (2, 0, 2)),
        ({"columns": ["n", "extra"]}, (2, 0, 2)),
        ({"columns": ["extra"]}, (2, 0, 4)),
        ({"columns": ["extra"], "rows": "having"}, (2, 0, 0)),
        ({"columns": ["click:"]}, (2, 0, 2)),
        ({"columns": ["click:"], "rows": "having"}, (0, 0, 0)),
        ({"columns": ["n"], "where": "s is null"}, (2, 0, 2)),
        ({"columns": ["n"], "where": "s is null", "rows": "having"}, (0, 0, 2)),
        ({"columns": ["n"], "where": "s = 'a'"}, (2, 0, 0)),
        ({"columns": ["n"], "where": "extra = 'a'"}, (2, 0, 2)),
        ({"columns": ["n"], "where": "n > 1.5"}, (0, 0, 2)),
        ({"columns": ["n"], "where": "row > 'b' or n = 1"}, (2, 0, 2)),
        ({"columns": ["n"], "start": "b"}, (2, 0, 1)),
        ({"columns": ["n"], "start": "n"}, (1, 0, 1)),
        ({"columns": ["n"], "prefix": "\x7f"}, (0, 0, 0)),
        ({"columns": ["n"], "where": "time < 5"}, (0, 0, 2)),
    ],
    ids=lambda each: str(each) if isinstance(each, dict) else "",
)
def test_what_is_asked_for_decides_too(db: Database, asked: dict[str, Any], expected: tuple[int, int, int]) -> None:
    table = _create(db, more=True)
    table.put_many([{"id": key, "extra": key} for key in "ay"])
    table.flush()
    assert _counts(db, **asked) == expected


def test_rows_that_exist_by_their_key_alone_are_read_beside(db: Database) -> None:
    table = _create(db, more=True)
    table.put_many([{"id": key, "extra": key} for key in "ay"])
    table.put({"id": "q"})
    table.flush()
    assert _counts(db, columns=["extra"]) == (2, 0, 4)
    assert _counts(db, columns=["n"]) == (2, 0, 3)


def test_a_range_too_small_for_a_filter_is_merged(db: Database) -> None:
    _create(db)
    limits = PlanLimits(filtered_bytes_min=1 << 30)
    assert _counts(db, limits, columns=["n"], start="b") == (1, 0, 1)
    assert _counts(db, limits, columns=["n"]) == (2, 0, 0)


def test_no_more_rows_are_looked_through_than_allowed(db: Database) -> None:
    table = _create(db)
    _write(table, "b")
    _write(table, "y")
    assert _counts(db, PlanLimits(hidden_rows_max=8)) == (4, 2, 0)
    assert _counts(db, PlanLimits(hidden_rows_max=7)) == (2, 1, 1)


@pytest.mark.parametrize("purge, native", [("max-history=1", 2), ("max-age=1h", 2), ("max-age=1us", 0)])
def test_a_policy_that_may_hide_rows_is_judged_by_the_merge(db: Database, purge: str, native: int) -> None:
    _create(db, purge)
    assert _counts(db)[0] == native


def test_older_snapshots_do_not_look_at_newer_files(db: Database) -> None:
    table = _create(db)
    before = db.now()
    _write(table, "b")
    _erased(table)
    assert _counts(db, at=before) == (2, 0, 0)
    assert _counts(db) == (3, 1, 1)


def test_nothing_from_before_a_truncation_is_read(db: Database) -> None:
    table = _create(db)
    before = db.now()
    db.truncate_table("t")
    assert _counts(db) == (0, 0, 0)
    assert _counts(db, at=before) == (2, 0, 0)
    _write(table, "b")
    assert _counts(db) == (1, 0, 0)


@pytest.mark.parametrize(
    "change, columns, expected",
    [
        ({"rename_columns": {"n": "m"}}, ["m", "s"], (3, 0, 0)),
        ({"widen": {"n": "int64"}}, ["n"], (3, 0, 0)),
        ({"add": {"data": {"new": "int32 default 5"}}}, ["n", "new"], (3, 0, 0)),
        ({"add": {"data": {"new": "int32"}}}, ["new"], (3, 0, 0)),
        ({"drop": ["s"]}, ["n", "d"], (3, 0, 0)),
    ],
    ids=str,
)
def test_files_of_other_schemas(
    db: Database, change: dict[str, Any], columns: list[str], expected: tuple[int, int, int]
) -> None:
    _create(db)
    table = db.alter_table("t", **change)
    names = table.scan().to_arrow().column_names
    table.put_many([{name: "g" if name in ("id", "s") else 3 for name in names}])
    assert _counts(db, columns=columns) == expected


def test_parts_are_cut_and_packed(db: Database) -> None:
    table = _create(db)
    _erased(table)
    table.erase("x")
    table.flush()
    held = hold(db)
    one = planned(held, PlanLimits(parts=1, part_bytes_min=1 << 20))[1]
    assert [len(part.tablets) for part in one.merged] == [2]
    two = planned(held, PlanLimits(parts=2, part_bytes_min=1, part_bytes_max=1))[1]
    assert [len(part.tablets) for part in two.merged] == [1, 1]
