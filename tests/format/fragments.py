"""Fragments for tests: small ones of every shape, on a blob that counts what is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from stelae.format import layout
from stelae.format.fragment.footer import FragmentColumn, FragmentFooter, FragmentSeal, FragmentSpec
from stelae.format.fragment.writer import FragmentWriter
from stelae.model.errors import InvalidArgument
from stelae.model.ids import ColumnId, GroupId, SchemaVersion, TableId
from stelae.model.keys.vector import encode_arrays
from stelae.model.schema import GroupOptions


class Memory:
    """A blob and its writer in one: what was written, and which ranges were read."""

    def __init__(self, data: bytes = b"", name: str = "fragment.parquet") -> None:
        self.data = data
        self.name = name
        self.reads: list[tuple[int, int]] = []

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def read(self, offset: int, length: int) -> bytes:
        if offset < 0 or offset + length > len(self.data):
            raise InvalidArgument(f"{offset}+{length} is outside {len(self.data)} bytes")
        self.reads.append((offset, length))
        return self.data[offset : offset + length]

    def close(self) -> None: ...

    def write(self, data: object) -> None:
        self.data += bytes(memoryview(data))  # type: ignore[arg-type]

    def commit(self) -> None: ...

    def abort(self) -> None: ...


def column(id_: int, name: str, type_: str) -> FragmentColumn:
    return FragmentColumn(ColumnId(id_), name, type_)


def spec(key: Sequence[FragmentColumn], columns: Sequence[FragmentColumn] = (), **options: object) -> FragmentSpec:
    return FragmentSpec(
        table=TableId(1),
        group=GroupId(9),
        schema_version=SchemaVersion(3),
        kind="columns" if columns else "cells",
        key=tuple(key),
        columns=tuple(columns),
        **options,  # type: ignore[arg-type]
    )


def batch_of(spec_: FragmentSpec, data: Mapping[str, Sequence[object]]) -> pa.RecordBatch:
    """A batch in the spec's schema from plain lists; `_row` is worked out."""
    schema = spec_.arrow_schema()
    arrays = {name: pa.array(column, schema.field(name).type) for name, column in data.items()}
    if layout.ROW in schema.names:
        codec = spec_.codec()
        arrays[layout.ROW] = encode_arrays(codec, [arrays[name] for name in codec.names])
    return pa.record_batch([arrays[name] for name in schema.names], schema=schema)


def write(
    spec_: FragmentSpec, batches: Sequence[pa.RecordBatch], **options: object
) -> tuple[Memory, FragmentFooter, FragmentSeal]:
    sink = Memory()
    writer = FragmentWriter(sink, spec_, GroupOptions(**{"block_bytes": 4096, **options}))  # type: ignore[arg-type]
    for batch in batches:
        writer.write(batch)
    footer, seal = writer.close()
    return sink, footer, seal
