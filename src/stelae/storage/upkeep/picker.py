"""Which fragments of one tablet and group to rewrite together. Values in, a pick out.

**What may be picked.** Fragments stand in the order of their first txn. A pick is a run of neighbours, so fragments
whose txn intervals were disjoint stay so. Intervals may overlap (after a join, a schema change, a bulk load): those
that do, directly or through others, form a knot, and a knot is picked whole or not at all, so that nothing outside a
pick overlaps it. The one exception is a knot of more than `fan_in_max` fragments: no merge is that wide, so runs inside
of it are picked until it fits. A knot with a busy fragment is not touched, and no run reaches across it.

**What pays.** Whoever reads merges all fragments, so few are good; whoever writes a byte again pays for it, so a
rewrite should bring it into a file much larger than the one it comes from. The *gain* of a pick is how often, in the
mean over its bytes, the size of the file that a byte lies in doubles: log2(total / size), weighted by size. Four equal
files gain 2, two gain 1, a large file with a crumb next to nothing. From its flush to a file of all bytes a byte can
gain log2(all / flush) and no more; so if every pick gains g, bytes are written again log2(all / flush) / g times at
most, whatever the sizes and their order.

A run pays if (in this order of naming the reason)
- there are more than `read_amplification_max` fragments, and it has two or more: the best gain is taken, however
  little it is. Ten thousand equal flushes never come to that: they leave nine files, each byte written 7.8 times again;
- it is rooted, and `garbage_fraction` of it can be dropped: one file is enough;
- it has `fan_in` files or more, of sizes even enough: `evenness_min` of the gain of `fan_in` equal ones;
- all of it is shared: one file is enough. So each tablet and group comes to own its files, and shared ones can go.
The best score wins: the gain, and something for garbage that goes and for shared bytes; of equals the one of smaller
files, then the older. Every pick leaves fewer fragments, or less garbage, or less that is shared. So picking ends, and
with nothing busy it ends with at most `read_amplification_max` fragments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import log2

from stelae.model.errors import InvalidArgument
from stelae.model.ids import Txn

_GAIN_OF_GARBAGE = 4.0
"""Dropping half of a run is worth as much as merging four equal files."""
_GAIN_OF_OWNING = 0.25
_GAIN_DIGITS = 3
"""Closer gains count as equal: a thousandth more is not worth a larger rewrite, and may be but the sum's rounding."""


@dataclass(frozen=True, slots=True)
class FragmentInfo:
    """A fragment as one tablet and group sees it; one for each file.

    `size_bytes` is the part inside this tablet. `droppable_bytes` estimates what goes, because of this fragment, once
    it and all that is older are rewritten together: what its erasures hide, what the purge policy takes, columns that
    are restricted away. It counts only what the horizon lets go now, else the same files would be picked for ever.
    A shared fragment reaches outside the tablet or the group, and its space comes back when the others let go too.
    A clean one holds for certain nothing that a rewrite would drop.
    """

    file: str
    size_bytes: int
    records: int
    erasures: int
    txn_min: Txn
    txn_max: Txn
    is_shared: bool = False
    droppable_bytes: int = 0
    is_clean: bool = False


@dataclass(frozen=True, slots=True)
class PickerSettings:
    """A larger `fan_in` writes less and leaves more files to read. See the module for the others."""

    fan_in: int = 4
    fan_in_max: int = 16
    read_amplification_max: int = 12
    evenness_min: float = 0.75
    garbage_fraction: float = 0.3

    def __post_init__(self) -> None:
        if not 2 <= self.fan_in <= self.fan_in_max:
            raise InvalidArgument(f"fan-in from {self.fan_in} to {self.fan_in_max} files: take 2 or more, in order")
        if self.read_amplification_max < 1:
            raise InvalidArgument(f"read_amplification_max is {self.read_amplification_max}: one file is the least")
        if not (0 < self.evenness_min <= 1 and 0 < self.garbage_fraction <= 1):
            raise InvalidArgument(
                f"evenness_min {self.evenness_min} and garbage_fraction {self.garbage_fraction} must be in (0, 1]"
            )

    @property
    def gain_min(self) -> float:
        return round(self.evenness_min * log2(self.fan_in), _GAIN_DIGITS)


@dataclass(frozen=True, slots=True)
class Pick:
    """Files to rewrite into one, oldest first. If rooted, nothing older is outside, so erasures can be dropped.

    Scores compare picks of different tablets: the greater is the more urgent.
    """

    files: tuple[str, ...]
    rooted: bool
    reason: str
    score: float


@dataclass(frozen=True, slots=True)
class _Run:
    """Neighbours in the order of txn. `garbage` and `shared` are fractions of its bytes."""

    start: int
    stop: int
    size_bytes: int
    rooted: bool
    gain: float
    garbage: float
    shared: float

    @property
    def count(self) -> int:
        return self.stop - self.start

    @property
    def score(self) -> float:
        return round(self.gain + _GAIN_OF_GARBAGE * self.garbage + _GAIN_OF_OWNING * self.shared, _GAIN_DIGITS)


def pick(
    fragments: Sequence[FragmentInfo],
    settings: PickerSettings,
    *,
    busy: Collection[str] = (),
    has_prepared: bool = False,
) -> Pick | None:
    """The best of what pays, or None. Busy files are being rewritten now; prepared loads may bring older data."""
    ordered = _in_order(fragments)
    knots = list(_knots(ordered))
    roots = [] if has_prepared else [stop for _, stop in knots]
    excess = max(0, _count_expected(ordered, busy) - settings.read_amplification_max)
    paying = [
        (run, reason)
        for bounds in _stretches(ordered, knots, busy, settings.fan_in_max)
        for run in _runs(ordered, bounds, roots, settings.fan_in_max)
        if (reason := _reason(run, settings, excess))
    ]
    if not paying:
        return None
    run, reason = min(paying, key=lambda candidate: _preference(candidate[0]))
    return Pick(_files(ordered, run), run.rooted, reason, run.score + excess)


def pick_all(
    fragments: Sequence[FragmentInfo],
    *,
    busy: Collection[str] = (),
    has_prepared: bool = False,
    must_drop: bool = False,
) -> Pick | None:
    """Everything, because someone asked for it. None if nothing would be gained by it, or a file is busy. `must_drop`:
    what may go must go, so only a file that is clean for certain stays as it is."""
    ordered = _in_order(fragments)
    if not ordered or any(fragment.file in busy for fragment in ordered):
        return None
    everything = len(ordered)
    run = next(_runs(ordered, [0, everything], [] if has_prepared else [everything], everything))
    drops = run.rooted and any(fragment.erasures or fragment.droppable_bytes for fragment in ordered)
    gains = drops or run.shared or (must_drop and not ordered[0].is_clean)
    if run.count == 1 and not gains:
        return None
    return Pick(_files(ordered, run), run.rooted, "asked for", run.score)


def _reason(run: _Run, settings: PickerSettings, excess: int) -> str | None:
    if excess:
        return "too many fragments" if run.count > 1 else None
    if run.garbage >= settings.garbage_fraction:
        return "garbage"
    if run.count >= settings.fan_in and run.gain >= settings.gain_min:
        return "similar sizes"
    return "shared" if run.shared == 1 else None


def _preference(run: _Run) -> tuple[float, float, int]:
    return -run.score, run.size_bytes / run.count, run.start


def _files(ordered: Sequence[FragmentInfo], run: _Run) -> tuple[str, ...]:
    return tuple(fragment.file for fragment in ordered[run.start : run.stop])


def _in_order(fragments: Sequence[FragmentInfo]) -> list[FragmentInfo]:
    names = set()
    for fragment in fragments:
        if fragment.file in names:
            raise InvalidArgument(f"fragment {fragment.file} is listed twice")
        if fragment.txn_min > fragment.txn_max or fragment.size_bytes < 0 or fragment.droppable_bytes < 0:
            raise InvalidArgument(f"no fragment can be like this: {fragment}")
        names.add(fragment.file)
    return sorted(fragments, key=lambda fragment: (fragment.txn_min, fragment.txn_max, fragment.file))


def _count_expected(ordered: Sequence[FragmentInfo], busy: Collection[str]) -> int:
    """How many fragments there are once what is busy has become one; neighbours are taken to be of one rewrite."""
    return len(ordered) - sum(one.file in busy and next_.file in busy for one, next_ in pairwise(ordered))


def _knots(ordered: Sequence[FragmentInfo]) -> Iterator[tuple[int, int]]:
    """Runs of fragments whose txns interleave, as (start, stop): between two runs no txns overlap."""
    start = 0
    for stop, txn_max in enumerate(accumulate((fragment.txn_max for fragment in ordered), max), 1):
        if stop == len(ordered) or ordered[stop].txn_min > txn_max:
            yield start, stop
            start = stop


def _stretches(
    ordered: Sequence[FragmentInfo], knots: Sequence[tuple[int, int]], busy: Collection[str], fan_in_max: int
) -> Iterator[list[int]]:
    """Where runs may begin and end: both at bounds of one stretch."""
    bounds: list[int] = []
    for start, stop in knots:
        is_busy = any(fragment.file in busy for fragment in ordered[start:stop])
        if not is_busy and stop - start <= fan_in_max:
            bounds = [*(bounds or [start]), stop]
            continue
        yield bounds
        bounds = []
        if not is_busy:
            yield list(range(start, stop + 1))
    yield bounds


def _runs(
    ordered: Sequence[FragmentInfo], bounds: Sequence[int], roots: Collection[int], count_max: int
) -> Iterator[_Run]:
    """All runs of a stretch. One that begins with the oldest fragment and ends at a root is rooted."""
    for index, start in enumerate(bounds):
        size_bytes = droppable_bytes = shared_bytes = 0
        doublings = 0.0
        for before, stop in pairwise(bounds[index:]):
            if stop - start > count_max:
                break
            for fragment in ordered[before:stop]:
                size = max(fragment.size_bytes, 1)
                size_bytes += size
                doublings += size * log2(size)
                droppable_bytes += fragment.droppable_bytes
                shared_bytes += size * fragment.is_shared
            rooted = start == 0 and stop in roots
            yield _Run(
                start=start,
                stop=stop,
                size_bytes=size_bytes,
                rooted=rooted,
                gain=round(log2(size_bytes) - doublings / size_bytes, _GAIN_DIGITS),
                garbage=min(1.0, droppable_bytes / size_bytes) if rooted else 0.0,
                shared=shared_bytes / size_bytes,
            )
