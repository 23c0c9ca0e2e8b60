"""Which versions of one column of one row a reader sees: the full rule, as a plain function.

Given all versions and erasures with txns inside the reader's window:
1. An erasure hides the versions it covers (those up to its time, or exactly at it) that have a *smaller* txn.
2. The purge policy deletes a version at the first moment that it is true of it, for good. So the commits are gone
   through in their order: at each one's time the policy is asked of what is alive, the commit's puts come in, what its
   erasures cover goes, and the policy is asked again; last of all at the reader's own time. Between two commits only
   ages change, and they only grow, so asking at the second covers all moments between.

Where no erasure is near, counts and ages only grow, so asking once at the end gives the same answer. And where the
policy counts no versions, erasures cannot change what it says. Both are taken as short cuts here, and are why vectors
can do nearly all rows (`merge`): this module is what they are tested against.

Where a group's policy was altered, each policy judges the commits of its reign and what the one before has left, and is
asked last of all at the end of its reign. The short cuts hold within each reign: it begins with some versions and only
gets more. Compactions may drop what is gone at a snapshot: of what is left then, no past policy purges anything when it
is asked again, since each version has no more newer ones beside it than it had.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from stelae.model.hybrid import micros_of
from stelae.model.ids import Micros, Txn
from stelae.model.purge import AllOf, AnyOf, MaxAge, MaxHistory, PastPolicy, PurgePolicy, Purging, Reigns, purges


class Written(NamedTuple):
    """One version. What it holds is whatever the caller needs back: a value, or where it lies."""

    ts: Micros
    txn: Txn
    held: Any


class Erased(NamedTuple):
    """Everything up to `ts`, or exactly at it."""

    ts: Micros
    txn: Txn
    is_exact: bool


def counts_versions(policy: Purging) -> bool:
    match policy:
        case None | MaxAge():
            return False
        case MaxHistory():
            return True
        case AllOf(parts) | AnyOf(parts):
            return any(counts_versions(part) for part in parts)
        case Reigns(past, now):
            return counts_versions(now) or any(counts_versions(each.policy) for each in past)


def survivors(puts: Sequence[Written], erased: Sequence[Erased], policy: Purging, read_us: Micros) -> Sequence[Written]:
    """What is alive, newest first. Puts come in any order; those with one (ts, txn) are one version, held twice. The
    policy is the one at the reader's snapshot, with those before it."""
    if isinstance(policy, Reigns):
        return _through_reigns(_versions(puts), erased, policy, read_us)
    if len(puts) == 1 and not erased:
        if policy is None or not purges(policy, 0, read_us - puts[0].ts):
            return puts
        return ()
    ordered = _versions(puts)
    if not erased or not counts_versions(policy):
        seen = _seen(ordered, erased) if erased else ordered
        return seen if policy is None else _unpurged(seen, policy, read_us)
    return _timeline(ordered, erased, policy, read_us)


def _versions(puts: Iterable[Written]) -> list[Written]:
    unique = {(put.ts, put.txn): put for put in puts}
    return [unique[at] for at in sorted(unique, reverse=True)]


def _seen(ordered: Sequence[Written], erased: Sequence[Erased]) -> list[Written]:
    """What no erasure hides. Walked newest first, a version is hidden if the greatest txn of the erasures that reach
    back to its time is above its own."""
    reaching = sorted((erasure for erasure in erased if not erasure.is_exact), reverse=True)
    exact: dict[int, int] = {}
    for erasure in erased:
        if erasure.is_exact:
            exact[erasure.ts] = max(erasure.txn, exact.get(erasure.ts, 0))
    seen, at, greatest = [], 0, 0
    for put in ordered:
        while at < len(reaching) and reaching[at].ts >= put.ts:
            greatest = max(greatest, reaching[at].txn)
            at += 1
        if put.txn >= max(greatest, exact.get(put.ts, 0)):
            seen.append(put)
    return seen


def _through_reigns(ordered: list[Written], erased: Sequence[Erased], reigns: Reigns, read_us: Micros) -> list[Written]:
    if erased and counts_versions(reigns):
        return _timeline(ordered, erased, reigns.now, read_us, reigns.past)
    alive = _seen(ordered, erased) if erased else ordered
    for each in reigns.past:
        if each.policy is not None:
            old = [put for put in alive if put.txn <= each.until]
            kept = _unpurged(old, each.policy, micros_of(each.until))
            gone = {(put.ts, put.txn) for put in old[len(kept) :]}
            alive = [put for put in alive if (put.ts, put.txn) not in gone] if gone else alive
    return _unpurged(alive, reigns.now, read_us)


def _unpurged(alive: list[Written], policy: PurgePolicy | None, at_us: Micros) -> list[Written]:
    """Whatever the policy is true of lies at the old end: older versions have more newer ones, and the greater age."""
    if policy is None:
        return alive
    kept = len(alive)
    while kept and purges(policy, kept - 1, at_us - alive[kept - 1].ts):
        kept -= 1
    return alive if kept == len(alive) else alive[:kept]


def _timeline(
    ordered: list[Written],
    erased: Sequence[Erased],
    policy: PurgePolicy | None,
    read_us: Micros,
    past: Sequence[PastPolicy] = (),
) -> list[Written]:
    commits: dict[Txn, tuple[list[Written], list[Erased]]] = {}
    for put in ordered:
        commits.setdefault(put.txn, ([], []))[0].append(put)
    for erasure in erased:
        commits.setdefault(erasure.txn, ([], []))[1].append(erasure)
    alive: list[Written] = []
    left = sorted(commits, reverse=True)
    for reign in past:
        while left and left[-1] <= reign.until:
            txn = left.pop()
            alive = _committed(alive, txn, *commits[txn], reign.policy)
        alive = _unpurged(alive, reign.policy, micros_of(reign.until))
    while left:
        txn = left.pop()
        alive = _committed(alive, txn, *commits[txn], policy)
    return _unpurged(alive, policy, read_us)


def _committed(
    alive: list[Written], txn: Txn, puts: list[Written], erasures: list[Erased], policy: PurgePolicy | None
) -> list[Written]:
    at_us = micros_of(txn)
    alive = _unpurged(alive, policy, at_us)
    for put in puts:
        insort(alive, put, key=_newest_first)
    for erasure in erasures:
        first = bisect_left(alive, -erasure.ts, key=_time_backwards)
        last = bisect_right(alive, -erasure.ts, first, key=_time_backwards) if erasure.is_exact else len(alive)
        alive[first:last] = [put for put in alive[first:last] if put.txn >= txn]
    return _unpurged(alive, policy, at_us)


def _time_backwards(put: Written) -> int:
    return -put.ts


def _newest_first(put: Written) -> tuple[int, int]:
    return (-put.ts, -put.txn)
