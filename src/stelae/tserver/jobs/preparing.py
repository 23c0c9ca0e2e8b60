"""Files that a job wrote, named by the tablets they reach into, unseen by readers until they are committed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from stelae.format.fragment.footer import FragmentFile
from stelae.model.errors import InvalidArgument, Unavailable
from stelae.model.ids import GroupId, SchemaVersion
from stelae.model.ranges import RowRange
from stelae.model.schema import TableSchema
from stelae.ports.blobs import BlobStore
from stelae.service.tickets import LoadedFile
from stelae.storage.tablet.opening import since
from stelae.storage.tablet.state import TabletState, with_prepared
from stelae.storage.upkeep.upkeep import Upkeep
from stelae.tserver.jobs.files import check_written


def check_loaded(blobs: BlobStore, prefix: str, files: Sequence[LoadedFile]) -> None:
    """The files are there, whole, and of the job whose files' names begin so. InvalidArgument if one is not."""
    for each in files:
        check_written(blobs, prefix, each.file)
        if each.file.stats.txn_max or each.file.txn is not None:
            raise InvalidArgument(f"file {each.file.name!r} has txns of its own: a load gives them")


def prepare_tablets(
    upkeep: Upkeep,
    states: Sequence[TabletState],
    known: Sequence[TableSchema],
    load: str,
    written_for: SchemaVersion,
    files: Sequence[LoadedFile],
) -> None:
    """Under the shard's lock, in all of these tablets, also those that no file reaches into. `known`: the schemas that
    the table has had; the tablets' may be older than the newest of them."""
    newest = states[0].schema.version
    if newest < written_for:
        raise Unavailable(
            f"tablet {states[0].tablet} is at schema version {newest} yet, and load {load} is of version {written_for}"
        )
    schemas = [schema for schema in since(known, written_for, f"load {load}") if schema.version <= newest]
    groups = {group.id for group in schemas[0].groups}
    for each in files:
        if each.group not in groups:
            raise InvalidArgument(f"file {each.file.name!r} is of group {each.group}, which the table has not")
    for state in states:
        mine: dict[GroupId, list[FragmentFile]] = {}
        for each in files:
            if each.file.stats.records and reaches(each.file, state.rows):
                mine.setdefault(each.group, []).append(each.file)
        upkeep.change(state.tablet, partial(with_prepared, load=load, files=mine, schemas=schemas))


def reaches(file: FragmentFile, rows: RowRange) -> bool:
    """Whether any row of the file may lie among these."""
    return file.stats.last_row >= rows.start and (rows.stop is None or file.stats.first_row < rows.stop)
