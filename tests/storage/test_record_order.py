"""Records are put in order alike, whether they come in runs, in no order, or say a row twice."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
import pytest

from stelae.storage.merge.order import order_records


def _positions(rows: list[bytes], txns: list[int]) -> list[int]:
    count = len(rows)
    ordering = order_records(pa.array(rows, pa.binary()), None, np.zeros(count, np.int64), np.array(txns), None)
    return list(range(count)) if ordering.positions is None else ordering.positions.tolist()


@pytest.mark.parametrize("said_twice", [0, 1, 300])
@pytest.mark.parametrize("runs", [1, 3, 2_000])
@pytest.mark.parametrize("shared", [b"", b"all the same "])
def test_rows_ascend_and_the_newest_comes_first(said_twice: int, runs: int, shared: bytes) -> None:
    random = Random(said_twice + runs)
    rows = random.sample(range(2**62), 2_000)
    rows += random.sample(rows, said_twice)
    random.shuffle(rows)
    per_run = -(-len(rows) // runs)
    rows = [row for at in range(0, len(rows), per_run) for row in sorted(rows[at : at + per_run])]
    encoded = [shared + row.to_bytes(8) for row in rows]
    txns = random.sample(range(10_000), len(rows))
    wanted = sorted(range(len(rows)), key=lambda at: (encoded[at], -txns[at]))
    assert _positions(encoded, txns) == wanted


def test_records_that_are_equal_in_all_stay_as_they_come() -> None:
    numbers = [Random(7).randrange(50) for _ in range(1_000)]
    found = _positions([number.to_bytes(8) for number in numbers], [1] * len(numbers))
    assert found == sorted(range(len(numbers)), key=numbers.__getitem__)
