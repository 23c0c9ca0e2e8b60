"""Sorted records written to fragments of the store, and read again.

Records of one group come as Arrow tables in the order of their rows (see `sorting`), and leave as finished files: one
for each tablet that they reach into. What is written for a load has no txn of its own; files of the way there, sorted
runs, have in its place where a record stood in the frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future

import pyarrow as pa

from stelae.format import layout
from stelae.format.fragment.footer import FragmentFile, FragmentSpec
from stelae.format.fragment.reader import FragmentReader
from stelae.format.fragment.writer import FragmentWriter
from stelae.model.errors import Overloaded
from stelae.model.ids import Row
from stelae.model.schema import GroupOptions
from stelae.ports.blobs import BlobStore, BlobWriter
from stelae.ports.executor import Executor
from stelae.storage.offline.sorting import first_at


class FileCutter:
    """Writes the sorted records of one group to files, beginning a new one where a tablet begins (`starts`). While a
    file is on its way to the disk, by `commits`, the next one is written. `new_name` names each."""

    def __init__(
        self,
        blobs: BlobStore,
        options: GroupOptions,
        spec: FragmentSpec,
        starts: tuple[Row, ...],
        new_name: Callable[[], str],
        commits: Executor,
    ) -> None:
        self._blobs = blobs
        self._options = options
        self._spec = spec
        self._starts = starts
        self._new_name = new_name
        self._commits = commits
        self._schema = spec.arrow_schema()
        self._open: tuple[str, BlobWriter, FragmentWriter] | None = None
        self._files: list[tuple[FragmentFile, Future[None] | None]] = []

    def write(self, tables: Iterable[pa.Table]) -> Iterator[FragmentFile]:
        """Write all of the records; then give out the files, each when it is durable."""
        try:
            self._cut(tables)
        except BaseException:
            if self._open is not None:
                self._open[1].abort()
            raise
        for file, committed in self._files:
            if committed is not None:
                committed.result()
            yield file

    def _cut(self, tables: Iterable[pa.Table]) -> None:
        tablet = 0
        for table in tables:
            rows = table.column(layout.ROW)
            begin = 0
            while begin < len(rows):
                first = rows[begin].as_py()
                while tablet < len(self._starts) and self._starts[tablet] <= first:
                    tablet += 1
                    self._finish()
                stop = len(rows) if tablet == len(self._starts) else first_at(rows, self._starts[tablet], begin)
                self._write(table.slice(begin, stop - begin))
                begin = stop
        self._finish()

    def _write(self, table: pa.Table) -> None:
        if self._open is None:
            name = self._new_name()
            sink = self._blobs.create(name)
            self._open = name, sink, FragmentWriter(sink, self._spec, self._options)
        chosen = table.select(self._schema.names).combine_chunks()
        for batch in chosen.to_batches():
            self._open[2].write(pa.RecordBatch.from_arrays(batch.columns, schema=self._schema))

    def _finish(self) -> None:
        if self._open is None:
            return
        name, sink, writer = self._open
        footer, seal = writer.close()
        self._open = None
        committed = None
        try:
            committed = self._commits.submit(sink.commit)
        except Overloaded:
            sink.commit()
        self._files.append((FragmentFile(name, seal, footer.stats), committed))


def read_run(
    blobs: BlobStore, file: FragmentFile, place: int | None = None, columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    """Read the records of a sorted file, with their rows. `place`: of a finished file, which place in the frame they
    all count as; None: it is a run, and has their places."""
    blob = blobs.open(file.name)
    try:
        reader = FragmentReader(blob, file.seal)
        for table in reader.scan(columns=columns):
            if layout.ROW not in table.column_names:
                rows = [layout.rows_of(reader.codec, batch) for batch in table.to_batches()]
                table = table.append_column(layout.ROW, pa.chunked_array(rows, pa.binary()))
            if place is not None:
                table = table.append_column(layout.TXN, pa.repeat(pa.scalar(place, pa.int64()), table.num_rows))
            names = [layout.ROW, *(name for name in table.column_names if name != layout.ROW)]
            yield pa.Table.from_arrays([table.column(name) for name in names], names=names)
    finally:
        blob.close()
