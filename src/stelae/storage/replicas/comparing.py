"""Replicas of a tablet beside each other: what must be the same, and is not. Pure.

Two replicas that have a record at the same index, up to where both are known to have what their leader has, have the
same record there. Either may have forgotten records that files hold, and the one may not know yet which config counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, TypeAlias

import msgspec

from stelae.format.log.records import NO_INDEX, LogRecord, checksum_of
from stelae.model.ids import Index
from stelae.storage.replicas.replica import Replica

_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_NAMED_MAX = 3


class RecordImage(msgspec.Struct, frozen=True, array_like=True):
    """`checksum`: of all that the record says."""

    epoch: _Number
    index: _Number
    checksum: _Number


class ReplicaImage(msgspec.Struct, frozen=True):
    """What a replica has, without the bytes. `begin`: the index of the last record that files hold. `config_at`: the
    index of the config that counts, 0 if that is not known, and its checksum; `files`: those that it names."""

    promised: _Number
    begin: _Number
    committed: _Number
    records: tuple[RecordImage, ...]
    config_at: _Number = 0
    config: _Number = 0
    files: tuple[str, ...] = ()


def image_of(replica: Replica, upto: Index | None = None) -> ReplicaImage:
    """Of the records up to an index, or of all. The caller holds the shard's lock."""
    tail = replica.tail if upto is None else [record for record in replica.tail if record.index <= upto]
    return ReplicaImage(
        replica.promised,
        replica.begin.index,
        replica.committed,
        tuple(_record_image(record) for record in tail),
        replica.config_indexes[0],
        checksum_of(replica.encoded),
        tuple(sorted(replica.config.files())),
    )


def find_differences(right: ReplicaImage, other: ReplicaImage, upto: int) -> Iterator[str]:
    """What another replica lacks, or has otherwise, of the records up to an index, which it is known to have."""
    known = {record.index: record for record in other.records}
    wanted = [record for record in right.records if max(right.begin, other.begin) < record.index <= upto]
    missing = [record for record in wanted if record.index not in known]
    if missing:
        yield f"{_listed(missing)} missing there"
    changed = [record for record in wanted if record.index in known and known[record.index] != record]
    if changed:
        yield f"{_listed(changed)} not the same there"
    same_config = right.config_at == other.config_at != NO_INDEX
    if same_config and (right.config, right.files) != (other.config, other.files):
        yield f"the config at index {right.config_at} is not the same there"


def _record_image(record: LogRecord) -> RecordImage:
    ids = b"%d %d %d %d %d" % (record.kind, record.table, record.tablet, record.txn, len(record.payload))
    return RecordImage(record.epoch, record.index, checksum_of(ids) ^ checksum_of(record.payload))


def _listed(records: list[RecordImage]) -> str:
    named = ", ".join(f"{record.index} (epoch {record.epoch})" for record in records[:_NAMED_MAX])
    more = f" and {len(records) - _NAMED_MAX} more" if len(records) > _NAMED_MAX else ""
    return f"{'record' if len(records) == 1 else 'records'} {named}{more} {'is' if len(records) == 1 else 'are'}"
