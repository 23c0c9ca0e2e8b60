"""Records and replicas of one tablet, for tests."""

from __future__ import annotations

from typing import Any

import msgspec

from stelae.format.log.records import LogKind, LogRecord
from stelae.model.declare import columns, declare
from stelae.model.ids import Epoch, Index, TableId, TabletId
from stelae.model.ranges import ALL_ROWS
from stelae.storage.replicas.replica import Place, Replica
from stelae.storage.tablet.config import config_of, encode_config
from stelae.storage.tablet.state import new_tablet
from tests.format.logs import log_record

TABLE, TABLET = TableId(7), TabletId(9)
SCHEMA = declare({"id": "binary"}, [columns("data", {"a": "int32"})])


def config_bytes(stable: int = 0, log: str = "", tablet: TabletId = TABLET) -> bytes:
    """A config whose files hold the records up to `stable`; `log` tells configs apart."""
    config = config_of(new_tablet(tablet, TABLE, ALL_ROWS, SCHEMA), log)
    return encode_config(msgspec.structs.replace(config, stable=Index(stable)))


def block(epoch: int, index: int, payload: bytes = b"") -> LogRecord:
    return _record(LogKind.BLOCK, epoch, index, payload or b"%d of %d" % (index, epoch))


def config(epoch: int, index: int, stable: int) -> LogRecord:
    return _record(LogKind.CONFIG, epoch, index, config_bytes(stable, f"{index} of {epoch}"))


def _record(kind: LogKind, epoch: int, index: int, payload: bytes) -> LogRecord:
    return log_record(index, payload, kind=kind, table=TABLE, tablet=TABLET, epoch=epoch, index=index, client=0)


def place(epoch: int, index: int) -> Place:
    return Place(Epoch(epoch), Index(index))


def replica_of(*records: LogRecord, begin: Place | None = None, promised: int = 0) -> Replica:
    """With records that lie at positions 1, 2, ... of its log, behind the replica's first, which lies at 0."""
    made = Replica(TABLE, TABLET, config_bytes(), begin or place(0, 0), Epoch(promised))
    made.note_kept(position(0))
    for at, record in enumerate(records, 1):
        made.take(record, position(at))
        made.promise(record.epoch)
    return made


def position(number: int) -> Any:
    """The type is a number's, of whichever meaning."""
    return number


def image(replica: Replica) -> tuple[object, ...]:
    """All that two replicas have in common which are the same."""
    ids = (replica.table, replica.tablet, replica.promised, replica.begin, replica.committed)
    return (*ids, replica.encoded, replica.config, tuple(replica.tail), replica.last, replica.files())
