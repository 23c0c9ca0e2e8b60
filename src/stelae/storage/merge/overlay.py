"""Which record of each row is the newest, where every source has a row at most once and a later source's records are
all newer: no times are compared, and what lies in the first source alone keeps its place.

The rows of a later source are searched among those that are there by eight bytes behind what all of them share, as
numbers. What has no equal number is not there, and is put in between; what has one is compared in full. If that says
no, several rows share a number, and whoever asks has to sort: None.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa

from stelae.model.arrow import compute as pc
from stelae.storage.merge.order import Positions, shared_bytes, words_of


class Overlay(msgspec.Struct, frozen=True):
    """`places[i]`: where the newest record of the i-th row lies, in all sources put behind each other. `rows`: all
    rows, in order; `has_more`: they are more than those of the first source."""

    places: Positions
    rows: pa.Array
    has_more: bool


def overlaid(sources: Sequence[pa.Array], *, keeps_first: bool = False) -> Overlay | None:
    """Of the sorted rows of each source, oldest first, none twice in one source. `keeps_first`: the place of a row is
    that in the first source that has it."""
    joined = pa.concat_arrays(sources)
    words, *others = words_of(sources, shared_bytes(sources))
    places: Positions = np.arange(len(sources[0]))
    start = len(sources[0])
    for source, found in zip(sources[1:], others, strict=True):
        mine = np.arange(start, start + len(source))
        at = np.searchsorted(words, found)
        there = at < len(words)
        there[there] = words[at[there]] == found[there]
        known = at[there]
        rows = source if there.all() else source.filter(pa.array(there))
        if not pc.all(pc.equal(joined.take(pa.array(places[known])), rows), min_count=0).as_py():
            return None
        if not keeps_first:
            places[known] = mine[there]
        if len(known) < len(source):
            places = np.insert(places, at[~there], mine[~there])
            words = np.insert(words, at[~there], found[~there])
        start += len(source)
    has_more = len(places) > len(sources[0])
    return Overlay(places, joined.take(pa.array(places)) if has_more else sources[0], has_more)
