"""Many rows of a store that another process has, asked for in groups that fit a request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stelae.model.ids import Row
from stelae.service import messages as m

ROWS_BYTES_MAX = 16 * 1024 * 1024


def row_groups(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """As many as can be asked for at once."""
    start = size = 0
    for at, row in enumerate(rows):
        if at - start == m.ROWS_MAX or (at > start and size + len(row) > ROWS_BYTES_MAX):
            yield rows[start:at]
            start, size = at, 0
        size += len(row)
    if start < len(rows):
        yield rows[start:]
