"""Purge policies parse, print, and say what to delete."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.model.errors import InvalidSchema
from stelae.model.hybrid import pack
from stelae.model.ids import Micros, Txn
from stelae.model.purge import (
    AGE_US_MAX,
    POLICY_LENGTH_MAX,
    AllOf,
    AnyOf,
    MaxAge,
    MaxHistory,
    PastPolicy,
    PurgePolicy,
    Reigns,
    parse_duration,
    parse_purge,
    print_duration,
    purges,
    purges_newest,
)

leaves: st.SearchStrategy[PurgePolicy] = st.integers(1, 1000).map(MaxHistory) | st.integers(1, AGE_US_MAX).map(MaxAge)


def _all_of(inner: st.SearchStrategy[PurgePolicy]) -> st.SearchStrategy[PurgePolicy]:
    return st.lists(inner.filter(lambda p: not isinstance(p, AllOf)), min_size=2, max_size=3).map(
        lambda parts: AllOf(tuple(parts))
    )


def _any_of(inner: st.SearchStrategy[PurgePolicy]) -> st.SearchStrategy[PurgePolicy]:
    return st.lists(inner.filter(lambda p: not isinstance(p, AnyOf)), min_size=2, max_size=3).map(
        lambda parts: AnyOf(tuple(parts))
    )


policies = st.recursive(leaves, lambda inner: _all_of(inner) | _any_of(inner), max_leaves=6)


@given(policies)
def test_print_and_parse_back(policy: PurgePolicy) -> None:
    assert parse_purge(str(policy)) == policy


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("max-history=3", "max-history=3"),
        ("MAX-AGE = 7D", "max-age=1w"),
        ("max-age=604800000000", "max-age=1w"),
        ("max-age=90m and max-history=100", "max-age=90m and max-history=100"),
        ("max-age=1500ms", "max-age=1500ms"),
        ("max-age=7", "max-age=7us"),
        ("(max-age=1d or max-history=2) and max-age=2d", "(max-age=1d or max-history=2) and max-age=2d"),
        ("max-age=1d or (max-history=2 and max-age=2d)", "max-age=1d or max-history=2 and max-age=2d"),
        ("((max-history=1))", "max-history=1"),
    ],
)
def test_canonical_text(text: str, canonical: str) -> None:
    assert str(parse_purge(text)) == canonical


@pytest.mark.parametrize(
    ("policy", "newer", "age_us", "deleted"),
    [
        ("max-history=3", 2, 10**12, False),
        ("max-history=3", 3, 0, True),
        ("max-age=1s", 0, 1_000_000, False),
        ("max-age=1s", 0, 1_000_001, True),
        ("max-age=1s and max-history=3", 3, 0, False),
        ("max-age=1s and max-history=3", 3, 2_000_000, True),
        ("max-age=1s or max-history=3", 3, 0, True),
        ("max-age=1s or max-history=3", 0, 0, False),
    ],
)
def test_what_is_deleted(policy: str, newer: int, age_us: int, deleted: bool) -> None:
    assert purges(parse_purge(policy), newer, age_us) is deleted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected max-history=K or max-age=T, found the end"),
        ("max-history", "'max-history' is neither"),
        ("max-history=0", "from 1 to"),
        ("max-history=3d", "count of versions"),
        ("max-age=0", "from 1us to 200 years"),
        ("max-age=1y", "'max-age=1y' is neither"),
        ("max-age=1.5d", "'max-age=1.5d' is neither"),
        ("max-age=300000w", "200 years"),
        ("max-age=1d max-history=3", "expected 'and' or 'or' before max-history=3"),
        ("max-age=1d and", "found the end"),
        ("and max-age=1d", "found and"),
        ("(max-age=1d", "not closed"),
        ("max-age=1d)", "before )"),
        ("(" * 100 + "max-age=1d" + ")" * 100, "at most 32 deep"),
        ("max-age=" + "9" * 4000 + "d", "200 years"),
        ("max-age=1d" + " or max-age=1d" * 400, "at most 4096 characters"),
        ("(max-age=1)" + "or(max-age=1)" * 300, "at most 4096 characters"),
        (" " * 1_000_000, "at most 4096 characters"),
        (5, "a purge policy is text, as in 'max-history=3', not 5"),
        (None, "not None"),
        (b"max-age=1d", "not b'max-age=1d'"),
    ],
)
def test_a_bad_policy_says_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        parse_purge(text)
    assert message in str(caught.value)


def test_the_longest_policy_parses_back() -> None:
    text = " or ".join(["max-age=1us"] * 273)
    assert 4000 < len(text) <= POLICY_LENGTH_MAX
    assert str(parse_purge(f"{text}\n")) == text


@pytest.mark.parametrize("bad", [5, None, b"1s", pytest.param(10**5000, id="huge")])
def test_a_duration_is_text(bad: object) -> None:
    with pytest.raises(InvalidSchema, match="a duration is text"):
        parse_duration(bad)  # type: ignore[arg-type]


@given(st.integers(0, AGE_US_MAX))
def test_durations_print_and_parse_back(duration_us: int) -> None:
    assert parse_duration(print_duration(duration_us)) == duration_us


@pytest.mark.parametrize("bad", ["", "d", "-1s", "1.5h", "1 year", "9" * 30])
def test_what_is_no_duration(bad: str) -> None:
    with pytest.raises(InvalidSchema, match="is not a duration"):
        parse_duration(bad)


def test_a_snapshot_goes_by_the_policies_that_had_begun() -> None:
    first, second = PastPolicy(MaxHistory(1), Txn(5)), PastPolicy(None, Txn(8))
    several = Reigns((first, second), MaxAge(7))
    assert several.at(Txn(0)) == several.at(Txn(5)) == MaxHistory(1)
    assert several.at(Txn(6)) == several.at(Txn(8)) == Reigns((first,), None)
    assert several.at(Txn(9)) == several


@pytest.mark.parametrize(
    ("ts", "txn_ms", "read_us", "is_gone"),
    [
        (6_000, 6, 10_000, False),  # not too old when the first policy ended
        (4_999, 6, 10_000, True),  # too old
        (4_999, 11, 10_000, False),  # committed when it was over
        (4_999, 10, 10_000, True),  # just before
        (4_999, 11, 25_000, True),  # too old for the second one
        (5_000, 11, 25_000, False),
    ],
)
def test_the_newest_version_goes_by_the_policies_of_its_time(ts: int, txn_ms: int, read_us: int, is_gone: bool) -> None:
    past = (PastPolicy(None, pack(3)), PastPolicy(MaxAge(5_000), pack(10)), PastPolicy(MaxHistory(1), pack(12)))
    now = MaxAge(20_000)
    assert purges_newest(Reigns(past, now), Micros(ts), pack(txn_ms), Micros(read_us)) is is_gone
    assert purges_newest(now, Micros(ts), pack(txn_ms), Micros(read_us)) is (read_us - ts > 20_000)
    assert not purges_newest(Reigns(past[:1], None), Micros(ts), pack(txn_ms), Micros(read_us))
