"""Which schemas the records of a log name: whoever reads them again needs to know those, and all that came after."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from stelae.format.block import schema_version_of
from stelae.format.log.copies import ReplicaKept, decode_kept, record_of
from stelae.format.log.reader import read_segment
from stelae.format.log.records import LogKind, LogRecord
from stelae.model.errors import NotFound
from stelae.model.ids import SchemaVersion, TableId, TabletId
from stelae.ports.logfiles import LogFiles
from stelae.storage.tablet.config import decode_config

NamedSchema = tuple[TableId, SchemaVersion]


def schemas_named(records: Iterable[LogRecord]) -> Iterator[NamedSchema]:
    """By blocks, and by configs that travel as records or are kept in one with all that is known of a replica."""
    for record in records:
        if record.kind is LogKind.BLOCK:
            yield record.table, schema_version_of(record.payload)
        elif record.kind is LogKind.CONFIG:
            yield record.table, _version_of_config(bytes(record.payload), record.tablet)
        elif record.kind is LogKind.REPLICA:
            kept = decode_kept(record.payload, f"a record of tablet {record.tablet}")
            yield from schemas_kept(kept, record.table, record.tablet)


def schemas_kept(kept: ReplicaKept, table: TableId, tablet: TabletId) -> Iterator[NamedSchema]:
    """The schemas named by anything that is kept of a replica: its config and its records."""
    yield table, _version_of_config(kept.config, tablet)
    yield from schemas_named(record_of(copy, table, tablet) for copy in kept.records)


def schemas_logged(files: LogFiles, segments: Iterable[str]) -> set[NamedSchema]:
    """By what these segments of a log hold. One that is collected meanwhile names nothing any more."""
    found: set[NamedSchema] = set()
    for name in segments:
        with suppress(NotFound):
            found.update(schemas_named(read_segment(name, files.read(name)).records))
    return found


def _version_of_config(config: bytes, tablet: TabletId) -> SchemaVersion:
    return decode_config(config, f"a config of tablet {tablet}").schema_version
