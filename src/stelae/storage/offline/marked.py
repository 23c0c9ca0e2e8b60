"""Some records of a file, by their places in it, in little room however many they are."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Places = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint8]
"""The bit of a record is that of its place: i % 8, least first, of byte i // 8."""

_STRETCH_BYTES = 300
_NOWHERE: Places = np.array([], np.int64)


class _Stretch(NamedTuple):
    """What is marked from one record of a file on: as places, or as whole bytes of bits."""

    first: int
    places: Places | None
    bits: Bits | None

    def as_places(self) -> Places:
        if self.places is not None:
            return self.places
        return _NOWHERE if self.bits is None else _places(self.bits, self.first)

    def as_bits(self) -> Bits:
        return _packed(self.as_places()) if self.bits is None else self.bits


class Marked:
    """Of each stretch of a file, a block mostly, it keeps the places of the records that are marked there, or a bit for
    each record if that takes less room: never more than a bit for each record of the file, and a little for each
    stretch."""

    __slots__ = ("_firsts", "_stretches", "size_bytes")

    def __init__(self) -> None:
        self.size_bytes = 0
        self._firsts: list[int] = []
        self._stretches: list[_Stretch] = []

    def add(self, places: Places) -> None:
        """Of a stretch, in order; none that was added before lies among them."""
        if not len(places):
            return
        first, last = int(places[0]), int(places[-1])
        if (last - first) // 8 < places.nbytes:
            bits = _packed(places)
            stretch, size_bytes = _Stretch(first, None, bits), bits.nbytes
        else:
            stretch, size_bytes = _Stretch(first, places, None), places.nbytes
        at = bisect_right(self._firsts, first)
        self._firsts.insert(at, first)
        self._stretches.insert(at, stretch)
        self.size_bytes += size_bytes + _STRETCH_BYTES

    def places(self, start: int, stop: int) -> Places:
        """Those from one place to before another, in order."""
        found = []
        begin, end = bisect_right(self._firsts, start) - 1, bisect_right(self._firsts, stop - 1)
        for stretch in self._stretches[max(0, begin) : end]:
            places = stretch.as_places()
            low, high = np.searchsorted(places, [start, stop])
            found.append(places[low:high])
        return np.concatenate(found) if found else _NOWHERE

    def mark(self, bits: Bits) -> None:
        """Set the bits of all of them, among those of all records of the file."""
        for stretch in self._stretches:
            mine, start = stretch.as_bits(), stretch.first // 8
            bits[start : start + len(mine)] |= mine


def _packed(places: Places) -> Bits:
    """From the byte of the first place to that of the last."""
    start = int(places[0]) // 8 * 8
    flags = np.zeros(int(places[-1]) - start + 1, np.uint8)
    flags[places - start] = 1
    return np.packbits(flags, bitorder="little")


def _places(bits: Bits, first: int) -> Places:
    return np.flatnonzero(np.unpackbits(bits, bitorder="little")) + first // 8 * 8
