"""What holds of tablets' records at every revision of the metastore, as it was written one after the other:

- Once a table's tablets are all running, they cover its rows at every revision, without a hole or an overlap.
- A tablet's epoch, the version of its members, and the txn that its leader is above never fall.
- In an epoch a tablet is led by one life of one shard.
- A tablet has one replica on a shard, at most.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec

from stelae.model.ids import TableId
from stelae.ports.metastore import Compacted, KeyPut, Revision
from stelae.registry.tablet_records import TABLETS_PREFIX, TabletPhase, TabletRecord
from stelae.sim.world import SimWorld


def check_revisions(world: SimWorld) -> int:
    """How many revisions of tablets' records were looked at. Where the first ones are forgotten, it is not known what
    had been recorded by then, and so not whether all rows are covered."""
    walk, count, state = _Walk(), 0, world.metastore._state
    try:
        batches, is_whole = list(state.batches(TABLETS_PREFIX, Revision(1))), True
    except Compacted as error:
        batches, is_whole = list(state.batches(TABLETS_PREFIX, error.oldest)), False
    for batch in batches:
        count += 1
        changed: set[TableId] = set()
        for event in batch.events:
            entry = event.entry if isinstance(event, KeyPut) else None
            key = event.entry.key if isinstance(event, KeyPut) else event.key
            record = None if entry is None else msgspec.msgpack.decode(entry.value, type=TabletRecord)
            walk.take(key, record)
            changed.add(TableId(int(key.split("/")[1], 16)))
        for table in changed if is_whole else ():
            try:
                walk.check_cover(table)
            except AssertionError as error:
                raise AssertionError(f"at revision {batch.revision}: {error}") from None
    assert count or not is_whole, "no tablet was ever recorded"
    return count


class _Walk:
    def __init__(self) -> None:
        self._records: dict[str, TabletRecord] = {}
        self._newest: dict[str, TabletRecord] = {}
        """The last that was written of each tablet, also of those that are gone."""
        self._leaders: dict[tuple[str, int], tuple[str, int]] = {}
        self._covered: set[TableId] = set()

    def take(self, key: str, record: TabletRecord | None) -> None:
        if record is None:
            self._records.pop(key, None)
            return
        before = self._newest.get(key)
        if before is not None:
            for what in ("epoch", "version", "above"):
                fell = getattr(record, what) < getattr(before, what)
                assert not fell, f"the {what} of tablet {record.tablet} fell: {before}, then {record}"
        if record.epoch and record.server:
            leads = record.server, record.incarnation
            known = self._leaders.setdefault((key, record.epoch), leads)
            assert known == leads, f"tablet {record.tablet} is led by {known} and by {leads} in epoch {record.epoch}"
        assert len(set(record.servers)) == len(record.servers), f"two replicas on one shard: {record}"
        self._records[key] = self._newest[key] = record

    def check_cover(self, table: TableId) -> None:
        running = sorted(
            (each.rows for each in self._records.values() if each.table == table and each.phase is TabletPhase.RUNNING),
            key=lambda rows: rows.start,
        )
        for left, right in pairwise(running):
            assert not left.overlaps(right), f"two tablets of table {table} run at once: {left} and {right}"
        is_covered = bool(running) and running[0].start == b"" and running[-1].stop is None
        is_covered = is_covered and all(left.stop == right.start for left, right in pairwise(running))
        assert is_covered or table not in self._covered, f"rows of table {table} are in no tablet that runs: {running}"
        if is_covered:
            self._covered.add(table)
