"""The table of operations: everything that a store can be asked, each named once.

From it come the remote side (`client.remote` sends what `ask` makes of the arguments), the far side (`tserver.serving`
carries it out and sends the result back), and the list of the hostile-bytes test; the refusals of a read-only store are
held to it. Where else an operation stands is listed in this room's README.

An operation that is *safe to repeat* may happen twice without harm: if its answer is lost, the caller is told
Unavailable and may ask again. Of any other the caller is told UnknownOutcome; also if the far side answers that it
failed on a mistake of its own, which may be behind what was asked. Whoever carries one out knows the
caller's deadline, and waits for nobody beyond it. A *long* one may work longer, as long as it makes progress: the far
side says so several times in the caller's time, which is then how long the caller waits for such a sign of life.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar

import msgspec

from stelae.catalog.serial.registry import BadBytes
from stelae.catalog.value import BrokenCatalog
from stelae.model.errors import InternalFault, InvalidArgument, StelaeError, UnknownOutcome
from stelae.model.ids import Row, TableId, Txn
from stelae.model.predicate.plan import TimeRange
from stelae.model.predicate.selectors import Selectors
from stelae.ports.metastore import Compacted, LeaseExpired
from stelae.ports.transport import Frame, RequestId
from stelae.service import bodies
from stelae.service import messages as m
from stelae.service.backend import Backend, Values
from stelae.service.bodies import Bytes, Codec, codec_of
from stelae.service.deadlines import Deadline
from stelae.service.reports import CheckReport, Progress
from stelae.service.scans import ScanAsk
from stelae.service.spaces import SpacesAsk, SpacesInfo
from stelae.service.tables import AlterAsk, CreateAsk, TableInfo, TableStats, TabletInfo
from stelae.storage.read.asking import Version
from stelae.wire.faults import FaultTable
from stelae.wire.messages import WireMethod

P = ParamSpec("P")
R = TypeVar("R")

_UNSENDABLE = (OverflowError, TypeError, ValueError, NotImplementedError)
"""What a message raises that holds what no message can: a number too large, text that is none."""

Asked: TypeAlias = tuple[m.Request, Bytes]


class Operation(msgspec.Struct, Generic[P, R], frozen=True, dict=True):
    """`name` is that of the method of `Backend`, or of whoever else is asked. `carry_out` does it on the far side; None
    where the connection has a part in it (`tserver.serving.connection`). `changes`: a read-only store refuses it."""

    name: str
    message: type[m.Request]
    ask: Callable[P, Asked]
    carry_out: Callable[[Backend, Any, Bytes, Deadline | None, Progress], R] | None
    result: Codec[R]
    changes: bool = False
    is_repeatable: bool = True
    is_long: bool = False

    @cached_property
    def method(self) -> WireMethod[Any, m.Item]:
        return WireMethod(self.name, self.message, m.Item, has_stream=True)

    def request(self, id_: RequestId, message: m.Request, body: Bytes, left_s: float) -> Frame:
        """What is sent by somebody who waits for so many seconds yet."""
        try:
            return self.method.ask(id_, msgspec.structs.replace(message, left_ms=int(left_s * 1_000)), body)
        except _UNSENDABLE as error:
            raise InvalidArgument(f"{self.name}: this cannot be asked: {error}") from None

    def lost(self, error: StelaeError) -> StelaeError:
        """What to tell the caller of a request that was sent, and whose answer does not come or makes no sense."""
        if self.is_repeatable:
            return error
        return UnknownOutcome(f"{self.name} was sent, and may or may not have happened: {error}")

    def answered(self, error: StelaeError) -> StelaeError:
        """What to tell the caller of a request that was answered with an error."""
        if self.is_repeatable or not isinstance(error, InternalFault):
            return error
        return UnknownOutcome(f"{self.name} may or may not have happened: {error}", is_fault=True)


STORE_FAULTS = FaultTable({BadBytes: {}, BrokenCatalog: {}, LeaseExpired: {}, Compacted: {"asked": int, "oldest": int}})
"""Errors that cross a connection and are not of `model.errors`."""


def _txn(at: int | None) -> Txn | None:
    return None if at is None else Txn(at)


def _row(at: bytes | None) -> Row | None:
    return None if at is None else Row(at)


def _nothing_from(_: Bytes) -> None:
    return None


NOTHING: Codec[None] = Codec(lambda _: b"", _nothing_from)
TXN: Codec[Txn] = codec_of("a txn", int)
FLAG: Codec[bool] = codec_of("yes or no", bool)
SPACES_CODEC: Codec[SpacesInfo] = codec_of("namespaces and zones", SpacesInfo)
INFO_CODEC: Codec[TableInfo] = Codec(bodies.info_bytes, bodies.info_from)

# -- tables


def _ask_find(name: str) -> Asked:
    return m.NameMessage(name), b""


def _ask_table(table: TableId) -> Asked:
    return m.TableMessage(table), b""


def _ask_nothing() -> Asked:
    return m.NothingMessage(), b""


def _ask_spaces(ask: SpacesAsk) -> Asked:
    return m.SpacesMessage(ask), b""


def _ask_alter(name: str, ask: AlterAsk) -> Asked:
    return m.AlterMessage(name, ask), b""


def _ask_drop(name: str, if_exists: bool) -> Asked:
    return m.DropMessage(name, if_exists), b""


def _ask_recall(name: str, new_name: str | None) -> Asked:
    return m.RecallMessage(name, new_name), b""


def _ask_split(table: TableId, at: Row | None, tablet: int | None) -> Asked:
    return m.SplitMessage(table, at, tablet), b""


def _ask_join(table: TableId, at: Row) -> Asked:
    return m.JoinMessage(table, at), b""


FIND = Operation(
    "find", m.NameMessage, _ask_find, lambda store, q, _, until, __: store.find(q.name, deadline=until), INFO_CODEC
)
INFO = Operation(
    "info",
    m.TableMessage,
    _ask_table,
    lambda store, q, _, until, __: store.info(TableId(q.table), deadline=until),
    INFO_CODEC,
)
NAMES: Operation[[], tuple[str, ...]] = Operation(
    "names",
    m.NothingMessage,
    _ask_nothing,
    lambda store, _, __, until, ___: store.names(deadline=until),
    codec_of("names", tuple[str, ...]),
)
SPACES: Operation[[], SpacesInfo] = Operation(
    "spaces",
    m.NothingMessage,
    _ask_nothing,
    lambda store, _, __, until, ___: store.spaces(deadline=until),
    SPACES_CODEC,
)
CHANGE_SPACES: Operation[[SpacesAsk], SpacesInfo] = Operation(
    "change_spaces",
    m.SpacesMessage,
    _ask_spaces,
    lambda store, q, _, until, __: store.change_spaces(q.ask, deadline=until),
    SPACES_CODEC,
    changes=True,
    is_repeatable=False,
    is_long=True,
)
CREATE: Operation[[CreateAsk], TableInfo] = Operation(
    "create",
    m.CreateMessage,
    bodies.create_parts,
    lambda store, q, body, until, _: store.create(bodies.create_from(q, body), deadline=until),
    INFO_CODEC,
    changes=True,
    is_repeatable=False,
    is_long=True,
)
ALTER = Operation(
    "alter",
    m.AlterMessage,
    _ask_alter,
    lambda store, q, _, until, __: store.alter(q.name, q.ask, deadline=until),
    INFO_CODEC,
    changes=True,
    is_repeatable=False,
    is_long=True,
)
DROP = Operation(
    "drop",
    m.DropMessage,
    _ask_drop,
    lambda store, q, _, until, __: store.drop(q.name, if_exists=q.if_exists, deadline=until),
    NOTHING,
    changes=True,
    is_repeatable=False,
    is_long=True,
)
RECALL = Operation(
    "recall",
    m.RecallMessage,
    _ask_recall,
    lambda store, q, _, until, __: store.recall(q.name, q.new_name, deadline=until),
    INFO_CODEC,
    changes=True,
    is_repeatable=False,
    is_long=True,
)
SPLIT = Operation(
    "split",
    m.SplitMessage,
    _ask_split,
    lambda store, q, _, until, __: store.split(TableId(q.table), _row(q.at), q.tablet, deadline=until),
    NOTHING,
    changes=True,
    is_repeatable=False,
    is_long=True,
)
JOIN = Operation(
    "join",
    m.JoinMessage,
    _ask_join,
    lambda store, q, _, until, __: store.join(TableId(q.table), Row(q.at), deadline=until),
    NOTHING,
    changes=True,
    is_repeatable=False,
    is_long=True,
)

# -- rows


def _ask_write(message: m.WriteMessage, body: Bytes) -> Asked:
    """Blocks are put into frames by `client.remote.writes`."""
    return message, body


def _ask_newest(table: TableId, row: Row, columns: Selectors, at: Txn | None) -> Asked:
    return m.NewestMessage(table, row, bodies.sent_columns(columns), at), b""


def _ask_many(table: TableId, rows: Sequence[Row], columns: Selectors, at: Txn | None) -> Asked:
    return m.ManyMessage(table, bodies.sent_columns(columns), at), bodies.rows_bytes(rows)


def _ask_history(table: TableId, row: Row, columns: Selectors, limit: int, at: Txn | None, time: TimeRange) -> Asked:
    return m.HistoryMessage(table, row, bodies.sent_columns(columns), limit, at, time.start, time.stop), b""


def _ask_scan(table: TableId, ask: ScanAsk) -> Asked:
    return bodies.scan_parts(table, ask)


def _ask_pin(at: Txn | None) -> Asked:
    return m.PinMessage(at), b""


def _ask_unpin(pin: int) -> Asked:
    return m.UnpinMessage(pin), b""


WRITE = Operation("write", m.WriteMessage, _ask_write, None, TXN, changes=True, is_repeatable=False)
TRUNCATE = Operation(
    "truncate",
    m.TableMessage,
    _ask_table,
    lambda store, q, _, until, __: store.truncate(TableId(q.table), deadline=until),
    TXN,
    changes=True,
    is_repeatable=False,
    is_long=True,
)
NOW = Operation("now", m.NothingMessage, _ask_nothing, lambda store, _, __, until, ___: store.now(deadline=until), TXN)
NEWEST: Operation[[TableId, Row, Selectors, Txn | None], tuple[Txn, Values | None]] = Operation(
    "newest",
    m.NewestMessage,
    _ask_newest,
    lambda store, q, _, until, __: store.newest(
        TableId(q.table), Row(q.row), bodies.taken_columns(q.columns), _txn(q.at), deadline=until
    ),
    Codec(bodies.found_bytes, bodies.found_from),
)
NEWEST_MANY: Operation[[TableId, Sequence[Row], Selectors, Txn | None], tuple[Txn, list[Values | None]]] = Operation(
    "newest_many",
    m.ManyMessage,
    _ask_many,
    lambda store, q, body, until, _: store.newest_many(
        TableId(q.table), bodies.rows_from(body), bodies.taken_columns(q.columns), _txn(q.at), deadline=until
    ),
    Codec(bodies.many_bytes, bodies.many_from),
)
HISTORY: Operation[[TableId, Row, Selectors, int, Txn | None, TimeRange], dict[str, tuple[Version, ...]] | None] = (
    Operation(
        "history",
        m.HistoryMessage,
        _ask_history,
        lambda store, q, _, until, __: store.history(
            TableId(q.table),
            Row(q.row),
            bodies.taken_columns(q.columns),
            q.limit,
            _txn(q.at),
            TimeRange(q.start, q.stop),
            deadline=until,
        ),
        Codec(bodies.history_bytes, bodies.history_from),
    )
)
SCAN = Operation("scan", m.ScanMessage, _ask_scan, None, NOTHING)
PIN: Operation[[Txn | None], tuple[int, int]] = Operation(
    "pin", m.PinMessage, _ask_pin, None, codec_of("a pin", tuple[int, int])
)
UNPIN = Operation("unpin", m.UnpinMessage, _ask_unpin, None, NOTHING)

# -- upkeep


def _ask_compact(table: TableId, erase_now: bool) -> Asked:
    return m.CompactMessage(table, erase_now), b""


FLUSH = Operation(
    "flush",
    m.TableMessage,
    _ask_table,
    lambda store, q, _, until, __: store.flush(TableId(q.table), deadline=until),
    NOTHING,
    changes=True,
    is_long=True,
)
COMPACT = Operation(
    "compact",
    m.CompactMessage,
    _ask_compact,
    lambda store, q, _, until, tell: store.compact(
        TableId(q.table), erase_now=q.erase_now, progress=tell, deadline=until
    ),
    codec_of("who keeps what", tuple[str, ...]),
    changes=True,
    is_long=True,
)
TABLETS: Operation[[TableId], tuple[TabletInfo, ...]] = Operation(
    "tablets",
    m.TableMessage,
    _ask_table,
    lambda store, q, _, until, __: store.tablets(TableId(q.table), deadline=until),
    codec_of("tablets", tuple[TabletInfo, ...]),
)
STATS: Operation[[TableId], TableStats] = Operation(
    "stats",
    m.TableMessage,
    _ask_table,
    lambda store, q, _, until, __: store.stats(TableId(q.table), deadline=until),
    codec_of("statistics", TableStats),
)
METRICS: Operation[[], dict[str, Any]] = Operation(
    "metrics",
    m.NothingMessage,
    _ask_nothing,
    lambda store, _, __, until, ___: dict(store.metrics(deadline=until)),
    Codec(bodies.values_bytes, bodies.values_from),
)
CHECK: Operation[[], CheckReport] = Operation(
    "check",
    m.NothingMessage,
    _ask_nothing,
    lambda store, _, __, until, tell: store.check(tell, deadline=until),
    codec_of("a report", CheckReport),
    is_long=True,
)
