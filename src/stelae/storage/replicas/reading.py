"""Replicas as a log has them when its shard opens. Their records are theirs alone: no other rule counts for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stelae.format.log.copies import decode_kept
from stelae.format.log.marks import EpochBegun, decode_mark
from stelae.format.log.positions import Position
from stelae.format.log.records import NO_TABLET, LogKind, LogRecord
from stelae.model.ids import TabletId
from stelae.storage.log.replay import LogRun
from stelae.storage.replicas.replica import Replica, replica_from


def take_replicas(runs: Sequence[LogRun]) -> tuple[dict[TabletId, Replica], list[LogRun]]:
    """The replicas that the records of one table tell of, and the runs without what is theirs."""
    ids = {record.tablet for run in runs for record in run.records if record.kind is LogKind.REPLICA}
    if not ids:
        return {}, list(runs)
    found: dict[TabletId, Replica] = {}
    left: list[LogRun] = []
    for run in runs:
        for record in run.records:
            if record.tablet in ids:
                take_record(found, record, run.begin)
        rest = tuple(record for record in run.records if record.tablet not in ids)
        if rest:
            left.append(run._replace(records=rest, is_plain=_is_plain(rest)))
    return found, left


def take_record(found: dict[TabletId, Replica], record: LogRecord, position: Position) -> None:
    """The next record of a log, at or behind a position, and what it says of replicas."""
    tablet = record.tablet
    replica = found.get(tablet)
    match record.kind:
        case LogKind.REPLICA:
            kept = decode_kept(record.payload, f"the record of a replica of tablet {tablet}")
            found[tablet] = replica_from(kept, record.table, tablet, position)
        case LogKind.DROPPED:
            found.pop(tablet, None)
        case _ if replica is None:
            return  # of a time that a REPLICA behind it stands for, or of a stay that has ended
        case LogKind.EPOCH:
            mark = decode_mark(record)
            if isinstance(mark, EpochBegun):
                if mark.kept < replica.last.index:
                    replica.cut(mark.kept)
                for epoch, _ in mark.epochs:
                    replica.promise(epoch)
                replica.may_lack = mark.is_in_doubt
        case LogKind.HOSTED | LogKind.SPLIT | LogKind.JOINED:
            return  # nobody writes them for replicas
        case LogKind.BLOCK | LogKind.CHANGE | LogKind.CONFIG:
            if record.index > replica.last.index:
                replica.take(record, position)
                replica.promise(record.epoch)


def _is_plain(records: Iterable[LogRecord]) -> bool:
    """Whether all are blocks, or changes that are of no tablet: what the reader of a segment calls plain."""
    return all(
        record.kind is LogKind.BLOCK or (record.kind is LogKind.CHANGE and record.tablet == NO_TABLET)
        for record in records
    )
