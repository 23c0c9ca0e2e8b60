"""Which records of ordered slabs a reader sees, in vectors: `rule.survivors` for all rows at once.

An erasure hides what it covers and has a smaller txn. Walked newest first, a version is hidden if the greatest txn of
the erasures passed so far is above its own: one running maximum per scope (a row, a family, a cell, one time of a
column). The purge policy asks how many newer versions there are, a running count, and how old they are; past policies
are asked the same before it, one after the other, of what each had before it. Only where a policy counts versions and
the row holds erasures does the order of commits matter: those rows go through the plain rule, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from stelae.model.arrow import compute as pc
from stelae.model.hybrid import micros_of
from stelae.model.ids import Micros
from stelae.model.purge import (
    KEYS_ALONE,
    AllOf,
    AnyOf,
    ByFamily,
    GroupPurging,
    MaxAge,
    MaxHistory,
    PurgePolicy,
    Purging,
    Reigns,
)
from stelae.model.record import Kind
from stelae.storage.merge.order import Flags, Ints, Ordering, Positions
from stelae.storage.merge.rule import Erased, Written, counts_versions, survivors
from stelae.storage.merge.slab import Slab


class Judging(msgspec.Struct, frozen=True):
    """By which policy, and at what time, versions are judged. `plainly`: every row with erasures by the plain rule.
    `exists`: the last of the columns are the puts of keys alone."""

    policy: GroupPurging
    read_us: Micros
    plainly: bool = False
    exists: bool = False


def alive(slab: Slab, ordering: Ordering, judging: Judging) -> list[Flags]:
    """For each column, which of the ordered records hold a version of it that is seen. Records held twice count once:
    the first of them. The slab is already ordered (`ordering.positions` was applied)."""
    if not isinstance(judging.policy, ByFamily):
        return _Rows(slab, ordering, judging, judging.policy).alive()
    found = _Rows(slab, ordering, judging, judging.policy.others).alive()
    if slab.cell is None:
        if judging.exists:
            keys = replace(slab, columns=slab.columns[-1:])
            found[-1:] = _Rows(keys, ordering, judging, judging.policy.of(KEYS_ALONE)).alive()
        return found
    for family, policy in judging.policy.own:
        its = pc.equal(slab.cell[0], family.encode()).to_numpy(zero_copy_only=False)
        if its.any():
            own = _Rows(slab, ordering, judging, policy).alive()
            found = [np.where(its, mine, others) for mine, others in zip(own, found, strict=True)]
    return found


class _Rows:
    def __init__(self, slab: Slab, ordering: Ordering, judging: Judging, policy: Purging) -> None:
        self._slab = slab
        self._judging = judging
        self._policy = policy
        self._ordering = ordering
        self._count = len(slab)
        self._row_ids: Ints = np.cumsum(ordering.begins, dtype=np.int64)
        self._cell_ids = self._row_ids
        if ordering.cell_begins is not None:
            self._cell_ids = np.cumsum(ordering.cell_begins, dtype=np.int64)
        self._erasing = self._rows_with_erasures()

    def _rows_with_erasures(self) -> Flags | None:
        """Marks all records of rows that hold an erasure; None if there are none."""
        kinds = self._slab.kinds
        if kinds is None or not kinds.any():
            return None
        rows = np.zeros(int(self._row_ids[-1]) + 1, np.bool_)
        rows[self._row_ids[kinds != Kind.PUT]] = True
        return rows[self._row_ids]

    def alive(self) -> list[Flags]:
        slab, policy = self._slab, self._policy
        by_rule: Positions | None = None
        if self._erasing is not None and (counts_versions(policy) or self._judging.plainly):
            by_rule = np.flatnonzero(self._erasing)
        hidden = self._hidden() if by_rule is None else None
        result = []
        for index, column in enumerate(slab.columns):
            flags = column.flags(self._count).copy()
            if slab.kinds is not None:
                flags &= slab.kinds == Kind.PUT
            if hidden is not None:
                flags &= ~hidden(index)
            self._once(flags)
            if isinstance(policy, Reigns):
                self._purge_through(policy, flags)
            elif policy is not None:
                flags &= ~self._purged(policy, flags, self._judging.read_us)
            if by_rule is not None:
                flags[by_rule] = False
                self._judge_plainly(flags, index, by_rule)
            result.append(flags)
        return result

    def _once(self, flags: Flags) -> None:
        """Of the copies of one version, which lie side by side, only the first stays."""
        slab = self._slab
        if self._count < 2:
            return
        same = ~(self._ordering.begins if self._ordering.cell_begins is None else self._ordering.cell_begins)
        if not same.any():
            return
        same[1:] &= (slab.ts[1:] == slab.ts[:-1]) & (slab.txn[1:] == slab.txn[:-1])
        if same[1:].any():
            runs = np.cumsum(~same)
            seen = np.cumsum(flags)
            before = np.concatenate(([0], seen[:-1]))
            first = np.searchsorted(runs, runs)
            flags &= before == before[first]

    def _hidden(self) -> Callable[[int], Flags] | None:
        kinds = self._slab.kinds
        if self._erasing is None or kinds is None:
            return None
        which = np.flatnonzero(self._erasing)
        some = _Some(which, self._slab.ts[which], self._slab.txn[which], self._ranks(which))
        kind = kinds[which]
        row, cell = self._row_ids[which], self._cell_ids[which]
        whole = some.hidden(row, kind == Kind.ERASE_ROW)
        if self._slab.cell is not None:
            families = self._family_ids(which)
            whole |= some.hidden(families, kind == Kind.ERASE_FAMILY)
        times = np.cumsum(np.concatenate(([True], (np.diff(cell) != 0) | (np.diff(some.ts) != 0))))

        def of_column(index: int) -> Flags:
            about = self._slab.columns[index].flags(self._count)[which]
            hidden = whole | some.hidden(cell, (kind == Kind.ERASE_COLUMN) & about)
            hidden |= some.hidden(times, (kind == Kind.ERASE_VERSION) & about)
            flags = np.zeros(self._count, np.bool_)
            flags[which] = hidden
            return flags

        return of_column

    def _ranks(self, which: Positions) -> Ints:
        return np.unique(self._slab.txn[which], return_inverse=True)[1].astype(np.int64) + 1

    def _family_ids(self, which: Positions) -> Ints:
        """Rows and families together: families of one row lie side by side."""
        if self._slab.cell is None:
            return self._row_ids[which]
        family = self._slab.cell[0].dictionary_encode()
        codes = family.indices.to_numpy(zero_copy_only=False)
        changes = np.concatenate(([True], (np.diff(self._row_ids) != 0) | (np.diff(codes) != 0)))
        return np.cumsum(changes, dtype=np.int64)[which]

    def _purge_through(self, reigns: Reigns, flags: Flags) -> None:
        for each in reigns.past:
            old = flags & (self._slab.txn <= each.until)
            if each.policy is not None and old.any():
                flags &= ~(old & self._purged(each.policy, old, micros_of(each.until)))
        if reigns.now is not None:
            flags &= ~self._purged(reigns.now, flags, self._judging.read_us)

    def _purged(self, policy: PurgePolicy, flags: Flags, at_us: Micros) -> Flags:
        """Asked of what is not hidden, at the read's own time or when the policy's ended."""
        seen: Ints = np.cumsum(flags) - flags
        begins = self._ordering.begins if self._ordering.cell_begins is None else self._ordering.cell_begins
        newer: Ints = seen - seen[np.flatnonzero(begins)][self._cell_ids - 1]
        return _policy_says(policy, newer, at_us - self._slab.ts)

    def _judge_plainly(self, flags: Flags, index: int, by_rule: Positions) -> None:
        slab, read_us = self._slab, self._judging.read_us
        about = slab.columns[index].flags(self._count)
        rows = self._row_ids[by_rule]
        starts = np.flatnonzero(np.concatenate(([True], rows[1:] != rows[:-1])))
        for start, stop in zip(starts, [*starts[1:], len(by_rule)], strict=True):
            for places, erasing in self._columns_of_row(by_rule[start:stop], about):
                puts = [Written(Micros(int(slab.ts[i])), slab.txn[i].item(), i) for i in places]
                for put in survivors(puts, erasing, self._policy, read_us):
                    flags[put.held] = True

    def _columns_of_row(self, row: Positions, about: Flags) -> Sequence[tuple[list[int], list[Erased]]]:
        """The puts of each cell of a row (of the one column, in groups of columns), and the erasures that reach it."""
        slab = self._slab
        kinds = slab.kinds if slab.kinds is not None else np.zeros(self._count, np.int8)
        family = slab.cell[0].take(row).to_pylist() if slab.cell is not None else [b""] * len(row)
        everywhere: list[Erased] = []
        of_family: dict[bytes, list[Erased]] = {}
        of_cell: dict[int, tuple[list[int], list[Erased]]] = {}
        for name, i in zip(family, row.tolist(), strict=True):
            erased = Erased(Micros(int(slab.ts[i])), slab.txn[i].item(), kinds[i] == Kind.ERASE_VERSION)
            cell = of_cell.setdefault(int(self._cell_ids[i]), ([], []))
            match int(kinds[i]):
                case Kind.ERASE_ROW:
                    everywhere.append(erased)
                case Kind.ERASE_FAMILY:
                    of_family.setdefault(name, []).append(erased)
                case Kind.PUT if about[i]:
                    cell[0].append(i)
                case Kind.ERASE_COLUMN | Kind.ERASE_VERSION if about[i]:
                    cell[1].append(erased)
                case _:  # about another column
                    continue
        names = dict(zip(self._cell_ids[row].tolist(), family, strict=True))
        return [
            # The first of several copies is kept by the rule too: the last it is given.
            (puts[::-1], [*erased, *everywhere, *of_family.get(names[id_], ())])
            for id_, (puts, erased) in of_cell.items()
            if puts
        ]


class _Some(msgspec.Struct, frozen=True):
    """The records of rows that hold erasures. `ranks`: txns as small numbers, from 1, in their order."""

    which: Positions
    ts: Ints
    txn: Ints
    ranks: Ints

    def hidden(self, scopes: Ints, erases: Flags) -> Flags:
        """Which records an erasure of the same scope, of the same or a later time, with a greater txn, covers."""
        if not erases.any():
            return np.zeros(len(scopes), np.bool_)
        order = np.lexsort((-self.txn, -self.ts, scopes))
        scope = np.cumsum(np.concatenate(([0], np.diff(scopes[order]) != 0)))
        base = scope * (int(self.ranks.max()) + 1)
        passed = np.maximum.accumulate(np.where(erases, self.ranks, 0)[order] + base) - base
        hidden = np.empty(len(scopes), np.bool_)
        hidden[order] = passed > self.ranks[order]
        return hidden


def purged_alone(policy: Purging, ts: Ints, txn: Ints, read_us: Micros) -> Flags:
    """Of versions beside which there never was a newer one, which are gone: `purges_newest` for arrays."""
    gone = np.zeros(len(ts), np.bool_)
    newer: Ints = np.zeros(len(ts), np.int64)
    past = policy.past if isinstance(policy, Reigns) else ()
    for each in past:
        if each.policy is not None:
            gone |= (txn <= each.until) & _policy_says(each.policy, newer, micros_of(each.until) - ts)
    now = policy.now if isinstance(policy, Reigns) else policy
    return gone if now is None else gone | _policy_says(now, newer, read_us - ts)


def _policy_says(policy: PurgePolicy, newer: Ints, age_us: Ints) -> Flags:
    """Which versions the policy purges: `purges` for arrays."""
    match policy:
        case MaxHistory(versions):
            return newer >= versions
        case MaxAge(limit_us):
            return age_us > limit_us
        case AllOf(parts):
            return np.logical_and.reduce([_policy_says(part, newer, age_us) for part in parts])
        case AnyOf(parts):
            return np.logical_or.reduce([_policy_says(part, newer, age_us) for part in parts])
