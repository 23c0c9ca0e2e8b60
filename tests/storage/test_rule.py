"""The rule against the words it is written in: every moment at which anything can change is gone through."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stelae.model.hybrid import COUNTER_MAX, TXN_MAX, micros_of, millis_of, pack
from stelae.model.ids import TS_MAX, TS_MIN, Micros, Txn
from stelae.model.purge import (
    AllOf,
    AnyOf,
    MaxAge,
    MaxHistory,
    PastPolicy,
    PurgePolicy,
    Purging,
    Reigns,
    parse_purge,
    purges,
    purges_newest,
)
from stelae.storage.merge.alive import purged_alone
from stelae.storage.merge.rule import Erased, Written, counts_versions, survivors
from tests.effort import examples
from tests.storage.workloads import POLICIES, START

START_MS = millis_of(START)
TXNS = [pack(START_MS + ms, counter) for ms in (0, 1, 2, 5, 11, 40) for counter in (0, 1)]
TIMES = [
    *(Micros(micros_of(START) + us) for us in (-20_000, -1, 0, 1, 1_000, 2_000, 2_001, 5_000, 11_000, 60_000)),
    Micros(0),
    TS_MIN,
    TS_MAX,
]

puts = st.builds(Written, st.sampled_from(TIMES), st.sampled_from(TXNS), st.none())
erasures = st.builds(Erased, st.sampled_from(TIMES), st.sampled_from(TXNS), st.booleans())
policies = st.sampled_from([None if text is None else parse_purge(text) for text in POLICIES])


@st.composite
def reigns(draw: st.DrawFn) -> Reigns:
    """Ends between commits, at them, and before and after all of them."""
    moments = [txn + late for txn in TXNS for late in (-1, 0)] + [pack(START_MS + 60)]
    ends = draw(st.lists(st.sampled_from(moments), min_size=1, max_size=3, unique=True))
    return Reigns(tuple(PastPolicy(draw(policies), Txn(end)) for end in sorted(ends)), draw(policies))


def ages_of(policy: PurgePolicy | None) -> Iterator[int]:
    match policy:
        case None | MaxHistory():
            return
        case MaxAge(age_us):
            yield age_us
        case AllOf(parts) | AnyOf(parts):
            for part in parts:
                yield from ages_of(part)


def by_the_words(
    versions: Sequence[Written], erased: Sequence[Erased], purging: Purging, read_us: Micros
) -> list[Written]:
    """Nothing but the definition: time goes on from moment to moment, and at each the policy of that time takes what it
    is true of, for good."""
    alive: list[Written] = []
    commits = sorted({*(put.txn for put in versions), *(erasure.txn for erasure in erased)})

    def reign(policy: PurgePolicy | None, until: Txn, end_us: int) -> None:
        def purge_until(end_us: int) -> None:
            for at_us in sorted({turn for turn in turns if turn < end_us} | {end_us}):
                alive.sort(key=lambda put: (put.ts, put.txn), reverse=True)
                judged = [policy and purges(policy, newer, at_us - put.ts) for newer, put in enumerate(alive)]
                alive[:] = [put for put, is_gone in zip(alive, judged, strict=True) if not is_gone]

        turns = {put.ts + age_us + late for put in versions for age_us in ages_of(policy) for late in (0, 1)}
        while commits and commits[0] <= until:
            txn = commits.pop(0)
            purge_until(micros_of(txn))
            for last, _, is_exact in (erasure for erasure in erased if erasure.txn == txn):
                alive[:] = [put for put in alive if put.ts > last or (is_exact and put.ts != last)]
            alive.extend(put for put in versions if put.txn == txn)
            purge_until(micros_of(txn))
        purge_until(end_us)

    if isinstance(purging, Reigns):
        for past in purging.past:
            reign(past.policy, past.until, micros_of(past.until))
    reign(purging.now if isinstance(purging, Reigns) else purging, TXN_MAX, read_us)
    return alive


def numbered(versions: Sequence[Written]) -> list[Written]:
    """Each told from the others by what it holds."""
    unique = dict.fromkeys((put.ts, put.txn) for put in versions)
    return [Written(ts, txn, number) for number, (ts, txn) in enumerate(unique)]


@pytest.mark.parametrize("purging", [policies, reigns()], ids=["one policy", "several"])
@given(st.data(), st.lists(puts, max_size=7), st.lists(erasures, max_size=4), st.integers(0, 70_000), st.randoms())
@settings(max_examples=examples(300))
def test_survivors_are_what_the_words_say(
    purging: st.SearchStrategy[Purging],
    data: st.DataObject,
    some: list[Written],
    erased: list[Erased],
    after_us: int,
    random: Random,
) -> None:
    versions, policy = numbered(some), data.draw(purging)
    last = max((*(put.txn for put in versions), *(erasure.txn for erasure in erased)), default=START)
    if isinstance(policy, Reigns):
        last = max(last, policy.past[-1].until)
    read_us = Micros(micros_of(last) + after_us)
    expected = by_the_words(versions, erased, policy, read_us)
    assert list(survivors(versions, erased, policy, read_us)) == expected
    random.shuffle(versions)
    random.shuffle(erased)
    assert list(survivors(versions, erased, policy, read_us)) == expected


@given(st.lists(puts, min_size=1, max_size=5), st.lists(erasures, max_size=3), policies | reigns(), st.data())
@settings(max_examples=examples(150))
def test_a_version_held_twice_is_one(
    some: list[Written], erased: list[Erased], policy: Purging, data: st.DataObject
) -> None:
    versions = numbered(some)
    again = data.draw(st.lists(st.sampled_from(versions), max_size=4))
    read_us = Micros(micros_of(TXNS[-1]))
    once = survivors(versions, erased, policy, read_us)
    assert list(survivors([*versions, *again], erased, policy, read_us)) == list(once)


def at(ms: int, ts_ms: int | None = None) -> Written:
    """A put committed at a millisecond, by default with the commit's own time."""
    return Written(Micros(1000 * (ms if ts_ms is None else ts_ms)), pack(ms), ms)


def erased(ms: int, ts_ms: int, *, is_exact: bool = False) -> Erased:
    return Erased(Micros(1000 * ts_ms), pack(ms), is_exact)


@pytest.mark.parametrize(
    ("versions", "erasures", "policy", "read_ms", "expected"),
    [
        pytest.param([], [], "max-history=1", 9, [], id="nothing"),
        pytest.param([at(1), at(2)], [], None, 9, [2, 1], id="newest first"),
        pytest.param([at(1, 5), at(2, 5)], [], None, 9, [2, 1], id="of one time the later commit is newer"),
        pytest.param([at(1, 7), at(2, 5)], [], None, 9, [1, 2], id="an older time that came later is older"),
        pytest.param([at(1), at(2)], [erased(3, 1)], None, 9, [2], id="up to a time, that time included"),
        pytest.param([at(1), at(2)], [erased(3, 2, is_exact=True)], None, 9, [1], id="exactly a time"),
        pytest.param([at(3, 1)], [erased(2, 5)], None, 9, [3], id="a later write with an old time is seen"),
        pytest.param([at(3)], [erased(3, 5)], None, 9, [3], id="nothing of its own commit"),
        pytest.param([at(1), at(2)], [erased(3, 2, is_exact=True)], "max-history=1", 9, [], id="no one comes back"),
        pytest.param([at(1), at(3)], [erased(2, 1)], "max-history=1", 9, [3], id="erased first, then put"),
        pytest.param(
            [at(1), at(2), at(4)], [erased(3, 2, is_exact=True)], "max-history=2", 9, [4, 1], id="room was made in time"
        ),
        pytest.param(
            [at(1), at(2), at(3)], [erased(4, 2, is_exact=True)], "max-history=2", 9, [3], id="room was made too late"
        ),
        pytest.param([at(1)], [], "max-age=8ms", 9, [1], id="exactly as old as it may be"),
        pytest.param([at(1)], [], "max-age=7ms", 9, [], id="too old"),
        pytest.param([at(1), at(5)], [], "max-history=1 and max-age=7ms", 8, [5, 1], id="only one of both is true"),
        pytest.param([at(1), at(5)], [], "max-history=1 and max-age=7ms", 9, [5], id="both are true"),
        pytest.param(
            [at(1), at(5)],
            [erased(8, 5, is_exact=True)],
            "max-history=1 and max-age=7ms",
            99,
            [1],
            id="both were never true at once",
        ),
        pytest.param(
            [at(1), at(5)],
            [erased(9, 5, is_exact=True)],
            "max-history=1 and max-age=7ms",
            99,
            [],
            id="both were true just before",
        ),
        pytest.param([at(1), at(5)], [], "max-history=1 or max-age=3ms", 9, [], id="either is enough"),
    ],
)
def test_examples(
    versions: list[Written], erasures: list[Erased], policy: str | None, read_ms: int, expected: list[int]
) -> None:
    parsed = None if policy is None else parse_purge(policy)
    read_us = Micros(1000 * read_ms)
    assert [put.held for put in survivors(versions, erasures, parsed, read_us)] == expected
    assert [put.held for put in by_the_words(versions, erasures, parsed, read_us)] == expected


@given(policies)
@example(AllOf((MaxAge(1), AnyOf((MaxAge(2), MaxHistory(1))))))
@example(AllOf((MaxAge(1), AnyOf((MaxAge(2), MaxAge(3))))))
def test_counting_policies_are_told_from_others(policy: PurgePolicy | None) -> None:
    """What counts no versions says the same, however many are newer."""
    counts = policy is not None and any(
        purges(policy, 0, age_us) != purges(policy, 10**9, age_us) for age_us in (0, 1, 2, 3, 4, 10**9)
    )
    assert counts_versions(policy) == (policy is not None and "max-history" in str(policy))
    assert counts_versions(policy) or not counts


def through(*past: tuple[str | None, int], now: str | None = None) -> Reigns:
    """Policies, and the millisecond whose end was the end of each."""
    parsed = [None if text is None else parse_purge(text) for text, _ in past]
    ends = [pack(ms, COUNTER_MAX) for _, ms in past]
    return Reigns(
        tuple(PastPolicy(policy, end) for policy, end in zip(parsed, ends, strict=True)),
        None if now is None else parse_purge(now),
    )


@pytest.mark.parametrize(
    ("versions", "erasures", "reigns", "expected"),
    [
        pytest.param(
            [at(1), at(2), at(4)], [], through(("max-history=1", 3), now="max-history=3"), [4, 2], id="loosened"
        ),
        pytest.param([at(1), at(2), at(4)], [], through(("max-history=1", 3)), [4, 2], id="taken away"),
        pytest.param(
            [at(1), at(2), at(4)], [], through(("max-history=3", 3), now="max-history=1"), [4], id="tightened"
        ),
        pytest.param([at(1)], [], through(("max-age=2ms", 4)), [], id="too old at the end of the reign"),
        pytest.param([at(1)], [], through(("max-age=3ms", 4)), [1], id="not yet too old at the end of the reign"),
        pytest.param([at(5, 1)], [], through(("max-age=2ms", 4)), [5], id="an old time that came after the reign"),
        pytest.param(
            [at(1), at(2)],
            [erased(4, 2, is_exact=True)],
            through(("max-history=1", 3)),
            [],
            id="what the past had taken does not come back when its successor goes",
        ),
        pytest.param(
            [at(1), at(2)],
            [erased(3, 2, is_exact=True)],
            through((None, 3), now="max-history=1"),
            [1],
            id="what was alone when the policy came stays",
        ),
        pytest.param(
            [at(1), at(2)],
            [erased(4, 2, is_exact=True)],
            through((None, 3), now="max-history=1"),
            [],
            id="a new policy takes what it finds before the next commit does anything",
        ),
        pytest.param(
            [at(1), at(2), at(3)],
            [],
            through(("max-history=2", 3), ("max-history=1", 4), now="max-history=3"),
            [3],
            id="a policy counts, though nothing was committed in its time",
        ),
    ],
)
def test_examples_of_altered_policies(
    versions: list[Written], erasures: list[Erased], reigns: Reigns, expected: list[int]
) -> None:
    for some in (versions, versions[::-1]):
        assert [put.held for put in survivors(some, erasures, reigns, Micros(9_000))] == expected
    assert [put.held for put in by_the_words(versions, erasures, reigns, Micros(9_000))] == expected


@given(reigns())
def test_several_policies_count_if_one_does(several: Reigns) -> None:
    each = [several.now, *(past.policy for past in several.past)]
    assert counts_versions(several) == any(counts_versions(policy) for policy in each)


@pytest.mark.parametrize("purging", [policies, reigns()], ids=["one policy", "several"])
@given(st.data(), st.lists(puts, min_size=1, max_size=7))
@settings(max_examples=examples(200))
def test_versions_that_are_alone_are_judged_all_at_once(
    purging: st.SearchStrategy[Purging], data: st.DataObject, some: list[Written]
) -> None:
    policy, read_us = data.draw(purging), Micros(data.draw(st.sampled_from(TIMES[:-3])))
    ts, txn = np.array([put.ts for put in some], np.int64), np.array([put.txn for put in some], np.int64)
    expected = [policy is not None and purges_newest(policy, put.ts, put.txn, read_us) for put in some]
    assert purged_alone(policy, ts, txn, read_us).tolist() == expected
