"""How the rows of a frame are shared out among tasks: all mentions of one key to one task, and to each task the rows of
some neighbouring tablets, or of a part of one.

Which task a row belongs to is an expression of the frame's key columns in SQL, a tree of comparisons with the keys at
which tablets begin; Spark compares every type of key as the rows sort. It need not hit the tablets' bounds exactly, as
tasks cut there again. More than 64 comparisons are too many for Spark to compile well, so tablets are taken together
above that. Of a hashed table the token is what counts, which Spark's `xxhash64` computes from the bytes of the row;
where it has no cheap way to those bytes, Python does it.

A small frame is not spread over all tablets: a task takes several, and cuts its files at them; a very small one is all
of one task's, and not shared out at all. A table of fewer tablets than there are cores gives too few tasks: then Spark
samples the keys and cuts by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stelae.client.intake.rows import typed
from stelae.model import types as t
from stelae.model.errors import InvalidArgument
from stelae.model.ids import Row
from stelae.model.keys.scalar import TOKEN_BYTES, KeyCodec
from stelae.model.keys.vector import encode_arrays
from stelae.model.values import Value, days_of_date, micros_of_datetime
from stelae.spark.reading.conditions import quoted

BUCKETS_MAX = 64
TASK_BYTES = 16 * 2**20
"""About so much of a frame goes to one task, but at least to one for each core."""

_ALONE_SHARE = 2
"""Half as much goes to one task as it comes: to share it out would cost more than it saves."""

_NO_MORE_ROWS = frozenset({"Filter", "GlobalLimit", "LocalLimit", "Project", "Repartition", "Sort", "Union"})
"""Parts of plans that give no more rows than they get: what Spark says of their size is no less than it is."""

_LOOKS_MAX = 16

_LONG_MIN = -(2**63)
_ZERO = b"\0"
_TASKS_PER_CORE = 2


def spread(frame: Any, codec: KeyCodec, starts: Sequence[Row], cores: int, *, samples: bool = True) -> Any:
    """The frame in partitions, one for each task. `samples`: Spark may look through all keys first. What is known of
    the size of a frame is what Spark guesses; of one that it knows nothing about, that it is very large."""
    columns = frame.columns
    keys = [key_name(columns, name) for name in codec.names]
    plan = frame._jdf.queryExecution().optimizedPlan()
    likely_bytes = int(str(plan.stats().sizeInBytes()))
    if likely_bytes * _ALONE_SHARE <= TASK_BYTES and _gives_no_more(plan):
        return frame.coalesce(1)
    bounds = bucket_bounds(starts, max(cores, likely_bytes // TASK_BYTES + 1))
    if samples and len(bounds) + 1 < cores:
        from pyspark.sql import functions as f

        token = _token(codec, keys)
        order = [f.expr(token)] if token else [f.expr(name) for name in keys]
        return frame.repartitionByRange(_TASKS_PER_CORE * cores, *order)
    if not bounds:
        return frame.coalesce(1)
    return frame.repartitionById(len(bounds) + 1, bucket_of(codec, keys, bounds))


def key_name(columns: Iterable[str], name: str) -> str:
    """A key column as the frame calls it, quoted for SQL. Case does not count."""
    found = [column for column in columns if column.casefold() == name.casefold()]
    if not found:
        raise InvalidArgument(f"key column {name!r} is missing")
    return quoted(name if name in found else found[0])


def _gives_no_more(plan: Any) -> bool:
    """Whether a plan of Spark's is of few parts, none of which makes more rows than Spark guesses: a row that is
    exploded, or a join, may."""
    left = [plan]
    for _ in range(_LOOKS_MAX):
        if not left:
            return True
        part = left.pop()
        children = part.children()
        count = children.size()
        if count and part.nodeName() not in _NO_MORE_ROWS:
            return False
        left += [children.apply(at) for at in range(count)]
    return not left


def bucket_bounds(starts: Sequence[Row], count_max: int = BUCKETS_MAX) -> tuple[Row, ...]:
    """Where buckets begin, but for the first: at tablets, as evenly as can be."""
    count = min(len(starts), count_max, BUCKETS_MAX)
    return tuple(starts[len(starts) * place // count] for place in range(1, count))


def bucket_of(codec: KeyCodec, keys: Sequence[str], bounds: Sequence[Row]) -> Any:
    """A column with the number of bounds at or below each row. `keys`: the key columns, in SQL."""
    from pyspark.sql import functions as f

    token = _token(codec, keys)
    if token:
        numbers = [_LONG_MIN + int.from_bytes(bound[:TOKEN_BYTES].ljust(TOKEN_BYTES, _ZERO)) for bound in bounds]
        return f.expr(_tree([f"{token} < CAST('{number}' AS BIGINT)" for number in numbers]))
    conditions = [None if codec.hashed else _below(codec, keys, bound) for bound in bounds]
    if all(conditions):
        return f.expr(_tree([each for each in conditions if each]))
    slow = BucketOfKey(tuple(zip(codec.names, codec.types, strict=True)), codec.hashed, tuple(bounds))

    def bucket(struct: pa.Array) -> pa.Array:
        return slow(*struct.flatten())

    bucket.__annotations__ = {"struct": pa.Array, "return": pa.Array}  # Spark wants the types themselves
    return f.arrow_udf(bucket, "int")(f.struct(*[f.expr(name) for name in keys]))


def _tree(conditions: Sequence[str], first: int = 0) -> str:
    """The number of the first condition that holds; they hold from some one on."""
    if not conditions:
        return str(first)
    middle = len(conditions) // 2
    low, high = _tree(conditions[:middle], first), _tree(conditions[middle + 1 :], first + middle + 1)
    return f"IF({conditions[middle]}, {low}, {high})"


def _below(codec: KeyCodec, keys: Sequence[str], bound: Row) -> str | None:
    """Whether a key is below that of a row; None if the row is of no key."""
    if len(keys) == 1 and isinstance(codec.types[0], t.String | t.Binary):
        return f"CAST({keys[0]} AS BINARY) < {_bytes(bound)}"
    try:
        values = codec.decode(bound)
    except InvalidArgument:
        return None
    condition = ""
    for name, type_, value in reversed(list(zip(keys, codec.types, values, strict=True))):
        column = f"CAST({name} AS BINARY)" if isinstance(type_, t.String) else name
        literal = _literal(type_, value)
        rest = f" OR ({column} = {literal} AND {condition})" if condition else ""
        condition = f"({column} < {literal}{rest})"
    return condition


def _bytes(data: bytes) -> str:
    return f"X'{data.hex()}'"


def _literal(type_: t.KeyType, value: Value) -> str:
    match type_:
        case t.Bool():
            return "true" if value else "false"
        case t.Int():
            return f"CAST('{value}' AS BIGINT)"
        case t.Float():
            return f"CAST('{value!r}' AS DOUBLE)"
        case t.Decimal(scale=scale):
            return f"CAST('{value:f}' AS DECIMAL(38, {scale}))"
        case t.String():
            return _bytes(value.encode())
        case t.Binary():
            return _bytes(value)
        case t.Date():
            return f"date_from_unix_date({days_of_date(_as(date, value))})"
        case t.Timestamp():
            return f"timestamp_micros({micros_of_datetime(_as(datetime, value))})"
        case t.TimestampNtz():
            return f"TIMESTAMP_NTZ '{_as(datetime, value).isoformat(sep=' ')}'"


def _as(kind: type, value: Value) -> Any:
    if not isinstance(value, kind):
        raise InvalidArgument(f"{value!r} is no {kind.__name__}")
    return value


def _token(codec: KeyCodec, keys: Sequence[str]) -> str:
    """A number that orders as the first bytes of hashed rows do; empty if SQL has no cheap way to it."""
    if not codec.hashed or len(keys) != 1:
        return ""
    (name,) = keys
    match codec.types[0]:
        case t.String() | t.Binary():
            hashed = f"xxhash64(CAST({name} AS BINARY))"
        case t.Int(64):
            hashed = f"xxhash64({_turned(f'(TRY_CAST({name} AS BIGINT) ^ {_min(64)})', 64)})"
        case t.Int(32):
            hashed = f"xxhash64(CAST({_turned(f'(TRY_CAST({name} AS BIGINT) ^ {_min(32)})', 32)} AS INT))"
        case _:
            return ""
    return f"({hashed} ^ {_min(64)})"


def _min(bits: int) -> str:
    return f"CAST('{-(2 ** (bits - 1))}' AS BIGINT)"


def _turned(number: str, bits: int) -> str:
    """The bytes of a number in the other order: a row has the greatest first, and Spark hashes the least first."""
    count = bits // 8
    parts = []
    for place in range(count):
        byte = f"(shiftrightunsigned({number}, {8 * place}) & 255L)"
        parts.append(f"shiftleft({byte}, {8 * (count - 1 - place)})")
    joined = " | ".join(parts)
    # A number of 32 bits is to be cast to INT: its sign goes over the upper bits first.
    return f"({joined})" if bits == 64 else f"shiftright(shiftleft({joined}, 32), 32)"


@dataclass(frozen=True)
class BucketOfKey:
    """The same for keys that SQL does not reach. What is no key belongs to the first bucket, and is found there."""

    key: tuple[tuple[str, t.KeyType], ...]
    is_hashed: bool
    bounds: tuple[Row, ...]

    def __call__(self, *columns: pa.Array) -> pa.Array:
        try:
            return pa.array(self._buckets(columns), pa.int32())
        except InvalidArgument:
            singles = [[column.slice(at, 1) for column in columns] for at in range(len(columns[0]))]
            return pa.array([self._of_one(single) for single in singles], pa.int32())

    def _of_one(self, single: Sequence[pa.Array]) -> int:
        try:
            return int(self._buckets(single)[0])
        except InvalidArgument:
            return 0

    def _buckets(self, columns: Sequence[pa.Array]) -> Any:
        codec = KeyCodec(dict(self.key), self.is_hashed)
        keys = [typed(type_, column, "key", 0) for type_, column in zip(codec.types, columns, strict=True)]
        rows = encode_arrays(codec, keys)
        found = np.zeros(len(rows), np.int32)
        for bound in self.bounds:
            found += pc.greater_equal(rows, pa.scalar(bound, pa.binary())).to_numpy(zero_copy_only=False)
        return found
