"""What several shards say of the same thing, as one: numbers are added up, reports put together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from threading import Lock
from typing import Any

from stelae.model.errors import StelaeError
from stelae.registry.masters.unneeded import UnneededFiles
from stelae.service.reports import CheckReport, Problem, Progress
from stelae.service.tables import TableStats

_NOT_CHECKED = (
    "it did not look at what it has. See `stelae cluster show`, start its node again, and check again; if it never "
    "comes back, take it out with `stelae topology remove`"
)
_LARGEST = ("catalog_version", "tables", "visible_txn")
"""Of these numbers each shard has its own view of the same thing: the largest is the newest."""


def sum_metrics(by_shard: Mapping[str, Mapping[str, Any]], away: Iterable[str] = ()) -> dict[str, Any]:
    """Of all shards; if there are several, those of each under its name besides: `node-1/0.cache_hits`. `away`: those
    of which nothing is known; they are named in `shards_away`."""
    absent = tuple(away)
    return {**_sum_metrics(by_shard), "shards_away": absent} if absent else _sum_metrics(by_shard)


def _sum_metrics(by_shard: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    if len(by_shard) == 1:
        return dict(*by_shard.values())
    whole: dict[str, Any] = {}
    for name in dict.fromkeys(name for numbers in by_shard.values() for name in numbers):
        values = [numbers[name] for numbers in by_shard.values() if name in numbers]
        if all(isinstance(each, int | float) for each in values):
            whole[name] = max(values) if name in _LARGEST else sum(values)
    return whole | {f"{shard}.{name}": value for shard, numbers in by_shard.items() for name, value in numbers.items()}


def sum_stats(stats: Sequence[TableStats]) -> TableStats:
    """Of the parts of one table. It can be read at snapshots that all of them can answer for."""
    return TableStats(
        tablets=sum(each.tablets for each in stats),
        files=sum(each.files for each in stats),
        records=sum(each.records for each in stats),
        erasures=sum(each.erasures for each in stats),
        file_bytes=sum(each.file_bytes for each in stats),
        memory_bytes=sum(each.memory_bytes for each in stats),
        horizon=max(each.horizon for each in stats),
    )


def unite_reports(by_shard: Mapping[str, CheckReport], away: Mapping[str, StelaeError]) -> CheckReport:
    """A problem that several shards found is told once. `away`: why others could not look."""
    counts: dict[str, int] = {}
    for report in by_shard.values():
        for name, count in report.counts.items():
            counts[name] = max(counts.get(name, 0), count) if name in _LARGEST else counts.get(name, 0) + count
    problems = dict.fromkeys(problem for report in by_shard.values() for problem in report.problems)
    absent = tuple(Problem("shard", name, f"{_NOT_CHECKED}: {words_of(name, why)}") for name, why in away.items())
    return CheckReport((*absent, *problems), counts)


def with_unneeded(report: CheckReport, found: UnneededFiles | StelaeError) -> CheckReport:
    """Files that nobody needs are counted: the next collection removes them. It is a problem if that was put off, or if
    the master could not say."""
    if isinstance(found, StelaeError):
        words = f"which of them nobody needs was not found out: {found}. Check again when a master leads, on this store"
        return CheckReport((*report.problems, Problem("files", "the store", words)), report.counts)
    counts = {**report.counts, "unneeded fragments": found.count}
    if not (found.put_off and found.count):
        return CheckReport(report.problems, counts)
    words = (
        f"{found.count} of them, of {found.size_bytes} bytes, are needed by nobody and stay, because their collection "
        f"has been put off for {found.put_off_s:.0f} s: {found.put_off}. It is tried again by itself: mend what it says"
    )
    return CheckReport((*report.problems, Problem("files", "the store", words)), counts)


def words_of(shard: str, error: StelaeError) -> str:
    """Why a shard said nothing, without its name, which stands beside it."""
    return str(error).removeprefix(f"shard {shard}").removeprefix(": ").strip()


class SummedProgress:
    """How far the work of several shards is, told to one who listens. Safe for threads."""

    def __init__(self, tell: Progress | None) -> None:
        self._tell = tell
        self._lock = Lock()
        self._parts: list[tuple[int, int]] = []

    def part(self) -> Progress | None:
        """Who is to be told by the next shard; None: nobody listens."""
        if self._tell is None:
            return None
        tell = self._tell
        with self._lock:
            place = len(self._parts)
            self._parts.append((0, 0))

        def hear(done: int, total: int) -> None:
            with self._lock:
                self._parts[place] = done, total
                tell(sum(each for each, _ in self._parts), sum(each for _, each in self._parts))

        return hear
