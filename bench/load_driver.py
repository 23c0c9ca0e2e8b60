"""A driver of bulk loads over all tablets of a table, in a process of its own, so that it can be killed:

    load_driver.py CLUSTER TABLE FIRST_VALUE ROUNDS

Each round replaces what is in the table, as an overwrite of Spark does, with 40 rows in files of ten. It says `commits`
when the files are written and before it asks the master to make them visible, and `done` when that has happened.
"""

from __future__ import annotations

import sys

import pyarrow as pa

import stelae
from stelae.adapters.blobs.urls import open_blobs
from stelae.format.fragment.footer import FragmentFile, spec_of
from stelae.format.fragment.writer import FragmentWriter
from stelae.ports.blobs import BlobStore
from stelae.service.tickets import LoadedFile, LoadTicket
from stelae.spark.stores import backend_of

ROWS = 40


def write_file(blobs: BlobStore, ticket: LoadTicket, keys: range, value: int) -> LoadedFile:
    schema = ticket.schema()
    group = schema.groups[0]
    spec = spec_of(ticket.table, schema, group, nulls="unwritten", has_ts=False, has_txn=False, has_kind=False)
    name = f"{ticket.prefix}{keys.start:04x}.parquet"
    sink = blobs.create(name)
    writer, shape = FragmentWriter(sink, spec, group.options), spec.arrow_schema()
    arrays = [pa.array(keys, pa.int64()), pa.array([b"%d" % value] * len(keys), shape.field(1).type)]
    arrays += [pa.nulls(len(keys), field.type) for field in list(shape)[2:]]
    writer.write(pa.RecordBatch.from_arrays(arrays, schema=shape))
    footer, seal = writer.close()
    sink.commit()
    return LoadedFile(group.id, FragmentFile(name, seal, footer.stats))


def main() -> None:
    address, name, first, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    with stelae.connect(address, timeout_s=900.0) as db:
        backend = backend_of(db)
        table, starts = backend.find(name).id, range(0, ROWS, 10)
        for value in range(first, first + rounds):
            ticket = backend.begin_load(table, f"load {value}")
            blobs = open_blobs(ticket.root)
            files = [write_file(blobs, ticket, range(start, start + 10), value) for start in starts]
            print("commits", flush=True)
            backend.commit_load(ticket.ticket, files, replaces=True)
            print("done", flush=True)


if __name__ == "__main__":
    main()
