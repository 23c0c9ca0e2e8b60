"""Which columns a scan reads: names, and beginnings of names.

Selectors are kept in one form: sorted, and none that another covers. All names that begin with a prefix stand together
in order, so a selector's only possible cover is the greatest one not above it: union and intersection need one sort.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple


class ColumnSelector(NamedTuple):
    """One name, or all names that begin with the text: `click:` is a family. A tuple, since every read looks up what
    was prepared for its selectors: tuples are hashed and compared without a call."""

    text: str
    is_prefix: bool

    def matches(self, column: str) -> bool:
        return column.startswith(self.text) if self.is_prefix else column == self.text

    def covers(self, other: ColumnSelector) -> bool:
        return self.matches(other.text) and (self.is_prefix or not other.is_prefix)


Selectors = tuple[ColumnSelector, ...]

ALL_COLUMNS: Selectors = (ColumnSelector("", is_prefix=True),)
NO_COLUMNS: Selectors = ()


def union_selectors(selectors: Iterable[ColumnSelector]) -> Selectors:
    """Any selectors, in any order, in their one form."""
    kept: list[ColumnSelector] = []
    for each in sorted(selectors, key=lambda s: (s.text, not s.is_prefix)):
        if not kept or not kept[-1].covers(each):
            kept.append(each)
    return tuple(kept)


def in_one_form(selectors: Selectors) -> bool:
    """Whether `union_selectors` would leave them as they are."""
    for one, next_ in pairwise(selectors):
        if one.text >= next_.text or (one.is_prefix and next_.text.startswith(one.text)):
            return False
    return True


def intersect_selectors(a: Selectors, b: Selectors) -> Selectors:
    """What both select, both being in their one form: of two that overlap, one covers the other."""
    return union_selectors([*(s for s in a if _covered(s, b)), *(s for s in b if _covered(s, a))])


def _covered(selector: ColumnSelector, by: Selectors) -> bool:
    at = bisect_right(by, selector.text, key=lambda s: s.text) - 1
    return at >= 0 and by[at].covers(selector)


def selects_of_family(columns: Selectors, family: str) -> bool:
    """Whether any of them selects a cell of the family."""
    name = f"{family}:"
    return any(s.text.startswith(name) or (s.is_prefix and name.startswith(s.text)) for s in columns)
