"""Files of a load, as jobs in other processes write them: by the ticket alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from stelae.format.fragment.footer import FragmentFile, FragmentSpec, spec_of
from stelae.format.fragment.writer import FragmentWriter
from stelae.ports.blobs import BlobStore
from stelae.service.tickets import LoadedFile, LoadTicket


def written(blobs: BlobStore, ticket: LoadTicket, token: str, values: Mapping[Any, int]) -> LoadedFile:
    """A file of the group's first column, for a table whose key is one column."""
    schema = ticket.schema()
    group = schema.groups[0]
    spec: FragmentSpec = spec_of(
        ticket.table, schema, group, nulls="unwritten", has_ts=False, has_txn=False, has_kind=False
    )
    name = f"{ticket.prefix}{token}.parquet"
    sink = blobs.create(name)
    writer = FragmentWriter(sink, spec, group.options)
    shape = spec.arrow_schema()
    keys = sorted(values)
    arrays = [pa.array(keys, shape.field(0).type)]
    first = shape.field(1)
    arrays += [pa.array([values[key] for key in keys], first.type)]
    arrays += [pa.nulls(len(keys), field.type) for field in list(shape)[2:]]
    writer.write(pa.RecordBatch.from_arrays(arrays, schema=shape))
    footer, seal = writer.close()
    sink.commit()
    return LoadedFile(group.id, FragmentFile(name, seal, footer.stats))
