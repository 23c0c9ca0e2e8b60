"""Merged records become a fragment: slabs in, a sealed file on the store out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from stelae.format import layout
from stelae.format.fragment.footer import FragmentFile, FragmentSpec, Nulls, spec_of
from stelae.format.fragment.writer import FragmentWriter
from stelae.model.arrow import to_arrow
from stelae.model.ids import TableId
from stelae.model.keys.scalar import KeyCodec
from stelae.model.keys.vector import decode_array
from stelae.model.record import ROW_EXISTS
from stelae.model.schema import CellsGroup, ColumnsGroup, Group, TableSchema
from stelae.ports.blobs import BlobStore
from stelae.ports.executor import Executor
from stelae.storage.files.fragments import Fragments
from stelae.storage.merge.select import Wanted, WantedCells, WantedColumns
from stelae.storage.merge.slab import Slab
from stelae.storage.tablet.parts import NO_FAMILY, FamilySet, whole
from stelae.storage.tablet.state import Ref


class Shape(msgspec.Struct, frozen=True):
    """What is known of all records before the first is written. `is_complete`: all are puts of all columns."""

    is_complete: bool
    erases: bool


def shape_of(refs: Sequence[Ref], group: Group, fragments: Fragments) -> Shape:
    """Of all records of some files: known from what those say about themselves."""
    erases = any(ref.file is not None and ref.file.stats.erasures for ref in refs)
    if not isinstance(group, ColumnsGroup):
        return Shape(False, erases)
    ids = {column.id for column in group.columns}
    complete = all(
        ref.file is not None
        and not isinstance(ref.part, FamilySet)
        and fragments.of(ref.file).spec.complete
        and ids <= ref.part
        and ids <= set(fragments.of(ref.file).columns)
        for ref in refs
    )
    return Shape(complete and not erases, erases)


def everything(schema: TableSchema, group: Group) -> Wanted:
    """All that a file of the group holds."""
    exists = schema.existence_group.id == group.id
    match group:
        case ColumnsGroup():
            columns = tuple((column.id, to_arrow(column.type)) for column in group.columns)
            return WantedColumns((*columns, *([(ROW_EXISTS, pa.null())] if exists else [])))
        case CellsGroup():
            part = whole(schema, group)
            families = part if isinstance(part, FamilySet) else FamilySet(frozenset())
            return WantedCells(families.intersect(FamilySet(frozenset({NO_FAMILY}), others=True)), exists)


def fragment_spec(table: TableId, schema: TableSchema, group: Group, shape: Shape) -> FragmentSpec:
    nulls: Nulls = "written" if shape.is_complete and isinstance(group, ColumnsGroup) else "masked"
    return spec_of(table, schema, group, nulls=nulls, has_kind=shape.erases)


def write_fragment(
    blobs: BlobStore,
    name: str,
    spec: FragmentSpec,
    group: Group,
    slabs: Iterable[Slab],
    encoding: Executor | None = None,
    progress: Callable[[int], None] | None = None,
) -> FragmentFile | None:
    """None, and no file, if there are no records. On any error nothing is left but what the store gives back by
    itself."""
    sink = blobs.create(name)
    try:
        writer = FragmentWriter(sink, spec, group.options, encoding)
        codec = spec.codec()
        for slab in slabs:
            if progress is not None:
                progress(len(slab))
            if len(slab):
                writer.write(to_batch(slab, spec, codec))
        footer, seal = writer.close()
        if not footer.stats.records:
            sink.abort()
            return None
        sink.commit()
    except BaseException:
        sink.abort()
        raise
    return FragmentFile(name, seal, footer.stats)


def to_batch(slab: Slab, spec: FragmentSpec, codec: KeyCodec) -> pa.RecordBatch:
    """Exactly the columns of the file."""
    schema = spec.arrow_schema()
    arrays: dict[str, pa.Array] = dict(zip(codec.names, decode_array(codec, slab.rows), strict=True))
    if spec.kind == "columns":
        for field, column in zip(spec.columns, slab.columns, strict=False):
            values = column.values
            arrays[field.name] = pa.nulls(len(slab), schema.field(field.name).type) if values is None else values
    elif slab.cell is not None:
        arrays[layout.FAMILY] = slab.cell[0].view(pa.string())
        arrays[layout.QUALIFIER] = slab.cell[1].view(pa.string())
        arrays[layout.VALUE] = slab.columns[0].values
    if layout.ROW in schema.names:
        arrays[layout.ROW] = slab.rows
    arrays[layout.TS] = pa.array(slab.ts).view(layout.system_field(layout.TS).type)
    arrays[layout.TXN] = pa.array(slab.txn)
    if layout.KIND in schema.names:
        arrays[layout.KIND] = pa.array(np.zeros(len(slab), np.int8) if slab.kinds is None else slab.kinds)
    if layout.MASK in schema.names:
        flags = [column.flags(len(slab)) for column in slab.columns]
        arrays[layout.MASK] = layout.masks_of(flags, len(slab), len(spec.columns))
    return pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)
