"""Which of the rows that were given a mistake is in, in the giver's own terms.

The store counts the rows of one call from 0; whoever gave them knows them by file and line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stelae.model.errors import InvalidArgument

_NUMBERED = re.compile(r"row number (\d+): ")


@contextmanager
def told_at(place_of: Callable[[int | None], str]) -> Iterator[None]:
    """`place_of` a row's number says where it stood; of None, where all of them did."""
    try:
        yield
    except InvalidArgument as error:
        found = _NUMBERED.match(str(error))
        place = place_of(int(found[1]) if found else None)
        said = str(error)[found.end() :] if found else str(error)
        raise InvalidArgument(f"{place}: {said}") from None
