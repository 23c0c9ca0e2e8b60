"""Rows for benches: a 24-byte key and fields of 100 random bytes, the same ones every time; a place for them."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

BATCH = 10_000
VALUE_BYTES = 100


def key_of(number: int) -> bytes:
    return b"user%020d" % number


def fields_of(count: int) -> list[str]:
    return [f"field{number}" for number in range(count)]


def batch_of(first: int, count: int, fields: int, seed: int = 0) -> pa.RecordBatch:
    chance = np.random.default_rng([first, fields, seed])
    columns = [pa.array([key_of(first + number) for number in range(count)], pa.binary())]
    offsets = pa.py_buffer(np.arange(0, (count + 1) * VALUE_BYTES, VALUE_BYTES, dtype=np.int32))
    for _ in range(fields):
        data = pa.py_buffer(chance.integers(0, 256, count * VALUE_BYTES, dtype=np.uint8).tobytes())
        columns.append(pa.Array.from_buffers(pa.binary(), count, [None, offsets, data]))
    return pa.RecordBatch.from_arrays(columns, ["id", *fields_of(fields)])


def batches(rows: int, fields: int, seed: int = 0) -> Iterator[pa.RecordBatch]:
    for first in range(0, rows, BATCH):
        yield batch_of(first, min(BATCH, rows - first), fields, seed)


@contextmanager
def place(name: str) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix=f"bench-{name}-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def seconds(job: Callable[[], object]) -> float:
    start = time.perf_counter()
    job()
    return time.perf_counter() - start
