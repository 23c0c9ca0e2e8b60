"""Files of a held tablet merged into one, as the server's own upkeep does it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from stelae.format.fragment.footer import FragmentFile
from stelae.model.ids import GroupId, Txn
from stelae.model.ranges import RowRange
from stelae.ports.blobs import BlobStore
from stelae.storage.files.fragments import Fragments
from stelae.storage.files.writing import everything, fragment_spec, shape_of, write_fragment
from stelae.storage.merge.records import Keeping, merged_records
from stelae.storage.offline.tablets import HeldTablet
from stelae.storage.tablet.state import Ref


def merge_files(
    tablet: HeldTablet,
    fragments: Fragments,
    blobs: BlobStore,
    name: str,
    group: GroupId,
    files: Collection[str],
    *,
    horizon: Txn,
    floor: Txn,
    is_rooted: bool,
) -> FragmentFile | None:
    """Merge some files of one group into a new one called `name`. What no snapshot at or after `horizon` can see is
    left out, as far as `floor` and `is_rooted` allow (see `merge.records`). None, and no file, if nothing is left."""
    schema = tablet.shown_schema
    refs = [ref for ref in tablet.state.refs(group) if ref.file is not None and ref.file.name in files]
    chosen = schema.group(group)
    keeping = Keeping(horizon, floor, is_rooted, chosen.purging_at(horizon))
    spec = fragment_spec(tablet.table, schema, chosen, shape_of(refs, chosen, fragments))
    slabs = merged_records(refs, fragments, _rows_of(refs), everything(schema, chosen), keeping)
    return write_fragment(blobs, name, spec, chosen, slabs)


def _rows_of(refs: Sequence[Ref]) -> RowRange:
    """From the first row of any to the last."""
    stops = [ref.rows.stop for ref in refs]
    start = min(ref.rows.start for ref in refs)
    return RowRange(start, None if None in stops else max(stop for stop in stops if stop is not None))
