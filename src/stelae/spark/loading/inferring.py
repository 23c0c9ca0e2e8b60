"""A table made for a frame: its columns, and tablets that begin where a sample of the frame's keys says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stelae.client.api.database import Database
from stelae.client.api.table import Table
from stelae.client.arguments.declarations import create_ask
from stelae.client.intake.rows import typed
from stelae.model.errors import InvalidArgument, NotFound
from stelae.model.keys.vector import encode_arrays
from stelae.model.schema import TableSchema
from stelae.model.values import show
from stelae.spark.loading.cutting import key_name
from stelae.spark.loading.intake import OWN_COLUMNS
from stelae.spark.types import arrow_schema_of

_SAMPLE_ROWS = 20_000
_SEED = 7


def table_for(
    db: Database,
    name: str,
    frame: Any,
    key: Mapping[str, str] | Sequence[str] | str | None,
    splits: Sequence[object] | None = None,
    tablets: int | None = None,
) -> Table:
    """The table of that name; if there is none, one that is like the frame. `tablets` without `splits`: so many, of
    about equal size."""
    try:
        return db.table(name)
    except NotFound:
        pass
    if key is None:
        raise InvalidArgument(f"table {name!r} is to be made: say which columns are the key, as in key=['id']")
    if tablets is not None and (type(tablets) is not int or tablets < 1):
        raise InvalidArgument(f"tablets= is a whole number above 0, not {show(tablets)}")
    if splits is not None and tablets is not None:
        raise InvalidArgument("give splits=, the keys at which tablets begin, or tablets=, how many, and not both")
    like = pa.schema([field.with_nullable(True) for field in arrow_schema_of(frame.drop(*OWN_COLUMNS).schema)])
    if splits is None and tablets is not None and tablets > 1:
        ask = create_ask(
            name,
            key,
            None,
            like=like,
            splits=None,
            partition="range",
            tablets=None,
            zone=None,
            if_not_exists=True,
            retention=None,
            comment=None,
        )
        splits = sampled_splits(ask.schema, frame, tablets)
    return db.create_table(name, key, like=like, splits=splits, if_not_exists=True)


def sampled_splits(schema: TableSchema, frame: Any, tablets: int) -> list[object]:
    """Keys that cut the frame's rows into about equal parts; fewer of them if there are few keys."""
    from pyspark.sql import functions as f

    codec = schema.codec
    names = [key_name(frame.columns, name) for name in codec.names]
    keys = frame.selectExpr(*names).dropna()
    sample = keys.orderBy(f.rand(_SEED)).limit(_SAMPLE_ROWS).toArrow().combine_chunks()
    columns = [
        typed(type_, sample.column(at).combine_chunks(), f"key column {name!r}", 0)
        for at, (name, type_) in enumerate(zip(codec.names, codec.types, strict=True))
    ]
    rows = encode_arrays(codec, columns)
    ordered = rows.take(pc.sort_indices(rows))
    places = [len(ordered) * part // tablets for part in range(1, tablets)] if len(ordered) else []
    cuts = sorted({ordered[place].as_py() for place in places} - {b""})
    if cuts and cuts[0] == ordered[0].as_py():
        cuts = cuts[1:]  # nothing is below the least key
    found = [codec.decode(cut) for cut in cuts]
    return [key[0] if len(key) == 1 else key for key in found]
