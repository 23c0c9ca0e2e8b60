"""The reading side of `format("stelae")`: options, the snapshot, and the parts that tasks merge.

The snapshot is taken when the frame is loaded, or if a schema was given with it, when it is first planned; it is held
for the `ttl` of the options, whether anybody reads the frame or not: nobody tells this side when its user is gone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from stelae.client.arguments.keys import txn_of
from stelae.client.calls.views import ALL_ROWS
from stelae.model import types as t
from stelae.model.errors import InvalidArgument, StelaeError
from stelae.model.ids import Txn
from stelae.model.predicate.literals import read_date, read_timestamp, read_timestamp_ntz
from stelae.model.purge import parse_duration
from stelae.model.schema import TableSchema
from stelae.model.values import Value, show
from stelae.service.jobs import TTL_S_DEFAULT, TTL_S_MAX
from stelae.spark.reading.planning import plan_read
from stelae.spark.reading.plans import MergedPart, PlanLimits
from stelae.spark.reading.question import Question, ReadJob, asked_of
from stelae.spark.source.parts import part_batches
from stelae.spark.stores import StorePlace, backend_of, fragments_of, open_store
from stelae.spark.tickets import held_tablets
from stelae.spark.types import arrow_schema_of, spark_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

READ_OPTIONS = (
    "path",
    "cluster",
    "table",
    "columns",
    "where",
    "start",
    "stop",
    "prefix",
    "at",
    "history",
    "cells",
    "rows",
    "ttl",
)


class HeldParts(msgspec.Struct, frozen=True):
    """All that is merged of a read, wherever it is planned."""

    job: ReadJob
    parts: tuple[MergedPart, ...]


def held_parts(options: Mapping[str, str], columns: list[str] | None = None) -> HeldParts:
    """What the options ask for, at a snapshot that is held from now on. `columns`: instead of those of the options."""
    asked = ReadOptions(options)
    with asked.opened() as db:
        backend = backend_of(db)
        held = backend.hold(backend.find(asked.table).id, asked.at, asked.ttl_s)
        try:
            question = asked_of(
                held,
                where=asked.get("where"),
                columns=asked.columns if columns is None else columns,
                **asked.bounds(held.schema()),
                history=asked.history,
                cells=asked.get("cells") or "map",
                rows=asked.get("rows") or ALL_ROWS,
            )
            with closing(fragments_of(held.root)) as fragments:
                plan = plan_read(question, held_tablets(held), fragments, PlanLimits(), natively=False)
        except BaseException:
            backend.release(held.ticket)
            raise
    return HeldParts(question.job, plan.merged)


def said_place(options: Mapping[str, str]) -> StorePlace:
    """Where the store is, by options `path` and `cluster`, of which one is given."""
    cluster = options.get("cluster")
    if not cluster:
        return StorePlace(needed(options, "path", "the directory of the store, or 'cluster', its masters as host:port"))
    if options.get("path"):
        raise InvalidArgument("format stelae: give option 'path' or option 'cluster', not both")
    return StorePlace(cluster, is_cluster=True)


def needed(options: Mapping[str, str], name: str, what: str) -> str:
    found = options.get(name)
    if not found:
        raise InvalidArgument(
            f"format stelae needs option {name!r}, {what}; CREATE TABLE and saveAsTable pass no options to it: use "
            "load() and save(), or CREATE TEMPORARY VIEW ... USING stelae OPTIONS (path '...', table '...')"
        )
    return found


class ReadOptions:
    """The options of a read as values; InvalidArgument names the one that is wrong."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options
        self.place = said_place(options)
        self.table = needed(options, "table", "the name of the table")
        for name in options:
            if name.lower() not in READ_OPTIONS:
                raise InvalidArgument(f"option {name!r} is not one of format stelae: {', '.join(READ_OPTIONS)}")

    def get(self, name: str) -> str | None:
        return self._options.get(name)

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """The store, which must be there."""
        with open_store(self.place) as db:
            yield db

    @property
    def columns(self) -> list[str] | None:
        text = self.get("columns")
        if text is None:
            return None
        if text.lstrip().startswith("["):
            return [str(name) for name in _json("columns", text)]
        return [name.strip() for name in text.split(",")]

    @property
    def at(self) -> Txn | None:
        text = self.get("at")
        if text is None:
            return None
        return txn_of(int(text)) if text.isdecimal() and text.isascii() else txn_of(read_timestamp(text))

    @property
    def history(self) -> int | None:
        text = self.get("history")
        if text is not None and not (text.isdecimal() and text.isascii()):
            raise InvalidArgument(f"option history is a number of versions from 1, not {text!r}")
        return None if text is None else int(text)

    @property
    def ttl_s(self) -> float:
        text = self.get("ttl")
        if text is None:
            return TTL_S_DEFAULT
        try:
            ttl_s = parse_duration(text) / 1e6
        except StelaeError:
            raise InvalidArgument(f"option ttl is a duration such as 30m or 2h, not {text!r}") from None
        if not 1 <= ttl_s <= TTL_S_MAX:
            raise InvalidArgument(f"option ttl is from 1s to {TTL_S_MAX / 86_400:g}d, not {text!r}")
        return ttl_s

    def bounds(self, schema: TableSchema) -> dict[str, Any]:
        """`start`, `stop` and `prefix`: the first key column's value as text, or as JSON a list of the first ones."""
        return {name: _bound(schema, name, self.get(name)) for name in ("start", "stop", "prefix")}


def _json(name: str, text: str) -> list[Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"option {name}: {text!r} is no JSON: {error}") from None
    if not isinstance(found, list):
        raise InvalidArgument(f"option {name}: {text!r} is no list")
    return found


def _bound(schema: TableSchema, name: str, text: str | None) -> object:
    if text is None:
        return None
    if len(schema.key) == 1 or not text.lstrip().startswith("["):
        return _typed(name, schema.key[0].type, text)
    parts = _json(name, text)
    return tuple(
        _typed(name, key.type, part) if isinstance(part, str) else part
        for key, part in zip(schema.key, parts, strict=False)
    ) + tuple(parts[len(schema.key) :])


def _typed(name: str, type_: t.KeyType, text: str) -> Value:
    try:
        match type_:
            case t.String():
                return text
            case t.Binary():
                return bytes.fromhex(text)
            case t.Bool():
                return {"true": True, "false": False}[text.lower()]
            case t.Int():
                return int(text)
            case t.Float():
                return float(text)
            case t.Decimal():
                return Decimal(text)
            case t.Date():
                return read_date(text)
            case t.Timestamp():
                return read_timestamp(text)
            case t.TimestampNtz():
                return read_timestamp_ntz(text)
    except (ValueError, KeyError, ArithmeticError):
        raise InvalidArgument(f"option {name}: {show(text)} is no {type_}") from None


class HeldReader(DataSourceReader):  # type: ignore[misc]
    """Reads the parts of a plan. Only this, a part and the files are needed in a task."""

    def __init__(self, held: HeldParts, schema: StructType) -> None:
        self._job = held.job
        self._parts = held.parts
        self._wanted = wanted_schema(Question(held.job), schema)

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(part) for part in self._parts] or [InputPartition(MergedPart(()))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with closing(fragments_of(self._job.root)) as fragments:
            yield from part_batches(Question(self._job), partition.value, fragments, self._wanted)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_parts": ()}


def wanted_schema(question: Question, schema: StructType) -> pa.Schema:
    """What batches for Spark look like, of columns that the question has, in the types it has them in."""
    offered = spark_schema(question.arrow_schema)
    for field in schema.fields:
        if field.name not in offered.fieldNames():
            raise InvalidArgument(
                f"table {question.job.name!r}: the frame's schema asks for {field.name!r}, and the table has "
                f"{', '.join(offered.fieldNames())}"
            )
        if offered[field.name].dataType != field.dataType:
            raise InvalidArgument(
                f"table {question.job.name!r}: column {field.name!r} is {offered[field.name].dataType.simpleString()} "
                f"in Spark, and the frame's schema says {field.dataType.simpleString()}: read it as it is, then cast"
            )
    return arrow_schema_of(schema)
