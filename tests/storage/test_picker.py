"""The picker: what it may pick, what it picks, and what that costs over ten thousand flushes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import log2
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.model.errors import InvalidArgument
from stelae.model.ids import Txn
from stelae.storage.upkeep.picker import FragmentInfo, Pick, PickerSettings, pick, pick_all
from tests.effort import examples

DEFAULTS = PickerSettings()


def _fragment(
    file: str,
    size: int,
    txn_min: int,
    txn_max: int | None = None,
    *,
    shared: bool = False,
    droppable: int = 0,
    erasures: int = 0,
) -> FragmentInfo:
    last = txn_min if txn_max is None else txn_max
    return FragmentInfo(file, size, size, erasures, Txn(txn_min), Txn(last), shared, droppable)


def _row(*sizes: int) -> list[FragmentInfo]:
    """Fragments a, b, c... of these sizes, oldest first, their txns apart."""
    return [_fragment(chr(ord("a") + n), size, 10 * n, 10 * n + 5) for n, size in enumerate(sizes)]


def _with(fragments: Sequence[FragmentInfo], *files: str, **changes: int) -> list[FragmentInfo]:
    return [replace(f, **changes) if f.file in files else f for f in fragments]  # type: ignore[arg-type]


def _story(found: Pick | None) -> str | None:
    if found is None:
        return None
    return f"{''.join(found.files)} {'rooted ' if found.rooted else ''}{found.reason}"


# --- examples


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], None),
        ([100], None),
        ([100, 100], None),
        ([100, 100, 100], None),
        ([100, 100, 100, 100], "abcd rooted similar sizes"),
        ([100, 90, 110, 80], "abcd rooted similar sizes"),
        ([1000, 10, 10, 10, 10], "bcde similar sizes"),
        ([10, 10, 10, 10, 1000], "abcd rooted similar sizes"),
        ([1000, 10, 10, 10, 10, 1000], "bcde similar sizes"),
        ([1000, 300, 100, 10], None),
        ([1000, 500, 250, 125], "abcd rooted similar sizes"),
        ([10, 10, 1000, 10, 10], None),
        # All at once is better than four, then seven.
        ([40, 40, 40, 10, 10, 10, 10], "abcdefg rooted similar sizes"),
        # Of two runs that gain the same, the cheaper; of two as cheap, the older.
        ([160, 40, 40, 40, 40, 5000, 10, 10, 10, 10], "ghij similar sizes"),
        ([10, 10, 10, 10, 5000, 10, 10, 10, 10], "abcd rooted similar sizes"),
        ([0, 0, 0, 0], "abcd rooted similar sizes"),
        ([16**n for n in range(12)], None),
        ([16**n for n in range(13)], "abcd rooted too many fragments"),
        ([10**6] * 2 + [1, 10**6] * 5 + [10], "abcdefghijklm rooted too many fragments"),
        ([10] * 20, "abcdefghijklmnop rooted too many fragments"),
    ],
    ids=lambda value: "" if isinstance(value, str) or value is None else "-".join(map(str, value)) or "none",
)
def test_sizes(sizes: list[int], expected: str | None) -> None:
    assert _story(pick(_row(*sizes), DEFAULTS)) == expected


@pytest.mark.parametrize(
    ("busy", "expected"),
    [
        ("", "abcdefgh rooted similar sizes"),
        ("a", "bcdefgh similar sizes"),
        ("h", "abcdefg rooted similar sizes"),
        ("d", "efgh similar sizes"),
        ("e", "abcd rooted similar sizes"),
        ("cf", None),
        ("abcdefgh", None),
        ("z", "abcdefgh rooted similar sizes"),
    ],
)
def test_nothing_busy_is_picked_or_reached_across(busy: str, expected: str | None) -> None:
    assert _story(pick(_row(*[10] * 8), DEFAULTS, busy=busy)) == expected


def test_what_is_busy_counts_as_what_it_becomes() -> None:
    few = PickerSettings(fan_in=6, read_amplification_max=6)
    fragments = _row(*[10] * 8)
    assert _story(pick(fragments, few, busy="abc")) is None
    assert _story(pick(fragments, few, busy="ac")) == "defgh too many fragments"
    assert _story(pick(fragments, few, busy="ab")) == "cdefgh too many fragments"


@pytest.mark.parametrize(
    ("fragments", "expected"),
    [
        (_with(_row(100), "a", droppable_bytes=30), "a rooted garbage"),
        (_with(_row(100), "a", droppable_bytes=29), None),
        (_with(_row(100, 100), "b", droppable_bytes=60), "ab rooted garbage"),
        (_with(_row(100, 100), "b", droppable_bytes=59), None),
        (_with(_row(100, 100), "a", droppable_bytes=90), "a rooted garbage"),
        (_with(_row(1000, 1), "b", droppable_bytes=800), "ab rooted garbage"),
        (_with(_row(100, 1000, 10, 10, 10, 10), "a", droppable_bytes=51), "a rooted garbage"),
        (_with(_row(100, 1000, 10, 10, 10, 10), "a", droppable_bytes=50), "cdef similar sizes"),
        (_with(_row(100, 100, 100), "c", droppable_bytes=5000), "abc rooted garbage"),
    ],
    ids=range(9),
)
def test_garbage(fragments: list[FragmentInfo], expected: str | None) -> None:
    assert _story(pick(fragments, DEFAULTS)) == expected


def test_garbage_stays_while_older_data_may_come_or_is_busy() -> None:
    fragments = _with(_row(100, 100), "a", "b", droppable_bytes=100)
    assert _story(pick(fragments, DEFAULTS)) == "ab rooted garbage"
    assert pick(fragments, DEFAULTS, has_prepared=True) is None
    assert pick(fragments, DEFAULTS, busy=["a"]) is None
    assert _story(pick(fragments, DEFAULTS, busy=["b"])) == "a rooted garbage"


@pytest.mark.parametrize(
    ("fragments", "expected"),
    [
        (_with(_row(100), "a", is_shared=True), "a rooted shared"),
        (_with(_row(100, 100), "b", is_shared=True), "b shared"),
        (_with(_row(100, 100, 100), "a", "b", is_shared=True), "ab rooted shared"),
        (_with(_row(100, 900, 100), "a", "c", is_shared=True), "a rooted shared"),
        (_with(_row(100, 1000, 10, 10, 10, 10), "a", is_shared=True), "cdef similar sizes"),
    ],
    ids=range(5),
)
def test_shared_files_are_made_own_when_nothing_better_is_to_do(
    fragments: list[FragmentInfo], expected: str | None
) -> None:
    assert _story(pick(fragments, DEFAULTS)) == expected


def _knotted(*intervals: tuple[int, int]) -> list[FragmentInfo]:
    return [_fragment(chr(ord("a") + n), 10, *interval) for n, interval in enumerate(intervals)]


@pytest.mark.parametrize(
    ("fragments", "options", "expected"),
    [
        # b and c overlap d: with the four goes what is tied to them.
        (_knotted((0, 9), (10, 30), (15, 20), (25, 40), (41, 50)), {}, "abcde rooted similar sizes"),
        (_knotted((0, 9), (10, 30), (15, 20), (25, 40), (41, 50)), {"busy": "d"}, None),
        (_knotted((0, 9), (10, 20), (20, 30), (31, 40), (41, 50), (51, 60), (61, 70)), {"busy": "c"}, "defg"),
        # A touch is an overlap: both hold txn 20.
        (_knotted((0, 9), (10, 20), (20, 30), (31, 40)), {"busy": "b"}, None),
        (_knotted((0, 100), (10, 20), (30, 40), (50, 60)), {"busy": "a"}, None),
    ],
    ids=range(5),
)
def test_knots(fragments: list[FragmentInfo], options: dict[str, str], expected: str | None) -> None:
    story = _story(pick(fragments, DEFAULTS, **options))  # type: ignore[arg-type]
    assert story == expected or (story or "").startswith(f"{expected} "), story


def test_a_knot_is_as_large_as_all_of_it() -> None:
    """The small one is tied to the large one, so it is no neighbour of the other small ones."""
    large = _fragment("large", 1000, 0, 20)
    tied = [_fragment("a", 10, 20), *[_fragment(file, 10, 21 + n) for n, file in enumerate("bcd")]]
    assert pick([large, *tied], DEFAULTS) is None
    assert _story(pick([replace(large, txn_max=Txn(19)), *tied], DEFAULTS)) == "abcd similar sizes"


def test_a_knot_too_wide_for_one_merge_is_cut() -> None:
    narrow = PickerSettings(fan_in=2, fan_in_max=3, read_amplification_max=2)
    knot = [_fragment(file, 10, n, 100) for n, file in enumerate("abcde")]
    assert _story(pick(knot, narrow)) == "abc too many fragments"
    assert _story(pick(_with(knot, "a", "b", size_bytes=1000), narrow)) == "cde too many fragments"
    assert _story(pick(knot[:3], narrow)) == "abc rooted too many fragments"


@pytest.mark.parametrize(
    ("fragments", "options", "expected"),
    [
        ([], {}, None),
        (_row(10), {}, None),
        (_row(10, 1000), {}, "ab rooted asked for"),
        (_row(10, 1000), {"has_prepared": True}, "ab asked for"),
        (_row(10, 1000), {"busy": "b"}, None),
        (_row(10, 1000), {"busy": "z"}, "ab rooted asked for"),
        (_row(*[1] * 20), {}, "abcdefghijklmnopqrst rooted asked for"),
        (_with(_row(10), "a", erasures=1), {}, "a rooted asked for"),
        (_with(_row(10), "a", erasures=1), {"has_prepared": True}, None),
        (_with(_row(10), "a", droppable_bytes=1), {}, "a rooted asked for"),
        (_with(_row(10), "a", is_shared=True), {}, "a rooted asked for"),
        (_with(_row(10), "a", is_shared=True), {"has_prepared": True}, "a asked for"),
        (_knotted((0, 9), (5, 7)), {}, "ab rooted asked for"),
    ],
    ids=range(13),
)
def test_asked_for(fragments: list[FragmentInfo], options: dict[str, object], expected: str | None) -> None:
    assert _story(pick_all(fragments, **options)) == expected  # type: ignore[arg-type]


def test_scores_tell_what_is_urgent() -> None:
    def score(*sizes: int, droppable: int = 0) -> float:
        found = pick(_with(_row(*sizes), "a", droppable_bytes=droppable), DEFAULTS)
        assert found
        return found.score

    assert score(10, 10, 10, 10) == 2
    assert score(7, 7, 7, 7) == 2
    assert score(1000, 500, 250, 125) < 2 < score(10, 10, 10, 10, 10)
    assert score(10, droppable=9) < score(10, droppable=10) == score(10, droppable=20)
    assert score(*[16**n for n in range(13)]) + 1 == score(*[16**n for n in range(14)])


@pytest.mark.parametrize("size", [3, 7, 1_000_003, 67_108_864, 2**50 - 1])
@pytest.mark.parametrize("fan_in", [2, 3, 5, 7])
def test_equal_sizes_are_even_enough_for_the_strictest(size: int, fan_in: int) -> None:
    strict = PickerSettings(fan_in=fan_in, evenness_min=1)
    assert pick(_row(*[size] * (fan_in - 1)), strict) is None
    assert _story(pick(_row(*[size] * fan_in), strict)) == f"{'abcdefg'[:fan_in]} rooted similar sizes"


@pytest.mark.parametrize(
    "make",
    [
        lambda: PickerSettings(fan_in=1),
        lambda: PickerSettings(fan_in=5, fan_in_max=4),
        lambda: PickerSettings(read_amplification_max=0),
        lambda: PickerSettings(evenness_min=0),
        lambda: PickerSettings(evenness_min=1.1),
        lambda: PickerSettings(garbage_fraction=0),
        lambda: PickerSettings(garbage_fraction=1.1),
        lambda: pick([_fragment("a", 1, 0), _fragment("a", 1, 1)], DEFAULTS),
        lambda: pick([_fragment("a", 1, 2, 1)], DEFAULTS),
        lambda: pick([_fragment("a", -1, 0)], DEFAULTS),
        lambda: pick_all([_fragment("a", 1, 0, droppable=-1)]),
    ],
    ids=range(11),
)
def test_what_cannot_be(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidArgument):
        make()


# --- properties

_sizes = st.one_of(st.integers(0, 12), st.integers(0, 40).map(lambda n: 2**n), st.sampled_from([10, 100]))


@st.composite
def _any_settings(draw: st.DrawFn) -> PickerSettings:
    fan_in = draw(st.integers(2, 5))
    return PickerSettings(
        fan_in=fan_in,
        fan_in_max=fan_in + draw(st.integers(0, 8)),
        read_amplification_max=draw(st.integers(1, 10)),
        evenness_min=draw(st.sampled_from([0.1, 0.5, 0.75, 1.0])),
        garbage_fraction=draw(st.sampled_from([0.1, 0.3, 1.0])),
    )


@st.composite
def _any_fragments(draw: st.DrawFn) -> list[FragmentInfo]:
    """Mostly apart, as flushes leave them; some reach far, as joins and schema changes do."""
    made = []
    for n in range(draw(st.integers(0, 18))):
        start = 10 * max(0, n - draw(st.sampled_from([0, 0, 0, 1, 4])))
        reach = draw(st.sampled_from([0, 0, 5, 5, 10, 35]))
        size = draw(_sizes)
        droppable = draw(st.sampled_from([0, 0, 0, size // 2, size]))
        made.append(
            _fragment(f"f{n}", size, start, start + reach, shared=draw(st.integers(0, 4)) == 0, droppable=droppable)
        )
    return draw(st.permutations(made))


def _overlap(one: FragmentInfo, other: FragmentInfo) -> bool:
    return one.txn_min <= other.txn_max and other.txn_min <= one.txn_max


def _tied_to(one: FragmentInfo, fragments: Sequence[FragmentInfo]) -> set[str]:
    tied, to_do = {one.file}, [one]
    while to_do:
        at = to_do.pop()
        new = [f for f in fragments if f.file not in tied and _overlap(at, f)]
        tied |= {f.file for f in new}
        to_do += new
    return tied


@settings(max_examples=examples(300))
@given(_any_fragments(), _any_settings(), st.sets(st.integers(0, 17), max_size=3), st.booleans())
def test_what_may_be_picked(
    fragments: list[FragmentInfo], chosen: PickerSettings, busy_numbers: set[int], has_prepared: bool
) -> None:
    busy = {f"f{n}" for n in busy_numbers}
    found = pick(fragments, chosen, busy=busy, has_prepared=has_prepared)
    assert found == pick(sorted(fragments, key=lambda f: f.file), chosen, busy=busy, has_prepared=has_prepared)
    if found is None:
        return
    inside = [f for f in fragments if f.file in found.files]
    outside = [f for f in fragments if f.file not in found.files]

    assert len(inside) == len(found.files) <= chosen.fan_in_max
    assert not busy.intersection(found.files)
    in_order = [f.file for f in sorted(fragments, key=lambda f: (f.txn_min, f.txn_max, f.file))]
    start = in_order.index(found.files[0])
    assert tuple(in_order[start : start + len(found.files)]) == found.files

    hull = _fragment("hull", 1, min(f.txn_min for f in inside), max(f.txn_max for f in inside))
    if any(_overlap(hull, f) for f in outside):
        tied = _tied_to(inside[0], fragments)
        assert len(tied) > chosen.fan_in_max
        assert tied.issuperset(found.files)
        assert not tied & busy
    assert found.rooted == (all(f.txn_min > hull.txn_max for f in outside) and not has_prepared)
    if len(inside) == 1:
        garbage = found.rooted and inside[0].droppable_bytes >= chosen.garbage_fraction * inside[0].size_bytes
        assert inside[0].is_shared or garbage


@settings(max_examples=examples(50))
@given(_any_fragments(), st.booleans())
def test_all_means_all(fragments: list[FragmentInfo], has_prepared: bool) -> None:
    found = pick_all(fragments, has_prepared=has_prepared)
    if found is None:
        assert len(fragments) < 2
    else:
        assert sorted(found.files) == sorted(f.file for f in fragments)
        assert found.rooted is not has_prepared


# --- over time


@dataclass
class _Tablet:
    """Fragments that are flushed and rewritten, and what that costs."""

    settings: PickerSettings
    fragments: list[FragmentInfo] = field(default_factory=list)
    flushed_bytes: int = 0
    rewritten_bytes: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    doublings: float = 0.0

    def flush(self, size_bytes: int) -> None:
        txn = self.flushed_bytes
        self.flushed_bytes += size_bytes
        self.fragments.append(_fragment(f"flush-{txn}", size_bytes, txn, self.flushed_bytes - 1))

    def compact(self, has_prepared: bool = False) -> int:
        """Rewrite until there is nothing to do; how often that was."""
        times = 0
        while found := pick(self.fragments, self.settings, has_prepared=has_prepared):
            self._rewrite(found)
            times += 1
        return times

    def _rewrite(self, found: Pick) -> None:
        inputs = [f for f in self.fragments if f.file in found.files]
        dropped = sum(f.droppable_bytes for f in inputs) if found.rooted else 0
        size = sum(f.size_bytes for f in inputs)
        merged = _fragment(
            f"rewrite-{self.reasons.total()}",
            max(0, size - dropped),
            min(f.txn_min for f in inputs),
            max(f.txn_max for f in inputs),
            droppable=0 if found.rooted else sum(f.droppable_bytes for f in inputs),
        )
        self.fragments = [f for f in self.fragments if f.file not in found.files] + [merged]
        self.rewritten_bytes += size
        self.reasons[found.reason] += 1
        self.doublings += sum(f.size_bytes * log2(size / f.size_bytes) for f in inputs if f.size_bytes)


def _run(sizes: Iterable[int], chosen: PickerSettings) -> _Tablet:
    tablet = _Tablet(chosen)
    for size in sizes:
        tablet.flush(size)
        tablet.compact()
        assert len(tablet.fragments) <= chosen.read_amplification_max
    return tablet


@settings(max_examples=examples(200))
@given(_any_fragments(), _any_settings(), st.booleans())
def test_picking_ends_with_few_fragments(
    fragments: list[FragmentInfo], chosen: PickerSettings, has_prepared: bool
) -> None:
    tablet = _Tablet(chosen, list(fragments))
    times = tablet.compact(has_prepared)
    assert len(tablet.fragments) <= chosen.read_amplification_max
    assert times <= 2 * len(fragments), "more rewrites than there were fragments to merge, and to clean"


@settings(max_examples=examples(150))
@given(st.lists(_sizes.filter(bool), max_size=60), _any_settings())
def test_any_flushes_leave_few_fragments(sizes: list[int], chosen: PickerSettings) -> None:
    """And what is rewritten is paid for by doublings, of which bytes have no more than there are to have."""
    tablet = _run(sizes, chosen)
    assert sum(f.size_bytes for f in tablet.fragments) == sum(sizes)
    assert tablet.doublings <= sum(size * log2(sum(sizes) / size) for size in sizes) * (1 + 1e-9)
    if not tablet.reasons["too many fragments"]:
        assert tablet.rewritten_bytes * (chosen.gain_min - 0.001) <= tablet.doublings


@pytest.mark.parametrize("flushes", [10, 100, 1_000, 10_000])
def test_equal_flushes_are_rewritten_a_logarithm_of_times(flushes: int) -> None:
    tablet = _run([64 << 20] * flushes, DEFAULTS)
    assert tablet.reasons.keys() <= {"similar sizes"}
    assert len(tablet.fragments) <= 9
    assert tablet.rewritten_bytes <= tablet.flushed_bytes * log2(flushes) / DEFAULTS.gain_min


@pytest.mark.parametrize(
    ("chosen", "rewrites_max"),
    [
        (PickerSettings(fan_in=8), 6),
        (PickerSettings(read_amplification_max=6), 11),
        (PickerSettings(fan_in=2, read_amplification_max=3), 25),
        (PickerSettings(evenness_min=1), 7),
    ],
    ids=["wide", "few", "very few", "even"],
)
def test_fewer_files_cost_more_rewrites(chosen: PickerSettings, rewrites_max: float) -> None:
    tablet = _run([64 << 20] * 2_000, chosen)
    assert tablet.rewritten_bytes <= rewrites_max * tablet.flushed_bytes


def _crumbs(rng: Random) -> list[int]:
    return [10**6 if n % 10 == 0 else rng.randint(1, 100) for n in range(1_000)]


@pytest.mark.parametrize(
    "sizes_of",
    [
        lambda rng: [int(2 ** rng.uniform(0, 20)) for _ in range(1_000)],
        lambda rng: list(range(1, 1_001)),
        lambda rng: list(range(1_000, 0, -1)),
        lambda rng: [10**9] + [1] * 1_000,
        lambda rng: [2 ** (40 - n % 40) for n in range(1_000)],
        _crumbs,
    ],
    ids=["any size", "growing", "shrinking", "after a load", "sawtooth", "crumbs between loads"],
)
def test_uneven_flushes_are_rewritten_a_logarithm_of_times(sizes_of: Callable[[Random], list[int]]) -> None:
    sizes = sizes_of(Random(7))
    tablet = _run(sizes, DEFAULTS)
    assert tablet.rewritten_bytes <= tablet.flushed_bytes * log2(len(sizes))


def test_a_large_file_is_left_alone_while_little_is_written() -> None:
    tablet = _run([10**12] + [10**6] * 2_000, DEFAULTS)
    assert max(f.size_bytes for f in tablet.fragments) == 10**12
    assert tablet.rewritten_bytes < 10**12


def test_after_a_join_the_histories_become_one() -> None:
    """Two tablets' fragments interleave in time; together they are too many, and one knot."""
    left = [_fragment(f"left-{n}", 100, 20 * n, 20 * n + 15) for n in range(12)]
    right = [_fragment(f"right-{n}", 100, 20 * n + 10, 20 * n + 25) for n in range(12)]
    tablet = _Tablet(DEFAULTS, left + right)
    tablet.compact()
    assert len(tablet.fragments) == 1
    assert tablet.rewritten_bytes < 2 * 2400
