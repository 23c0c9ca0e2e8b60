"""The records of changes that are under way: pure steps from one to the next, and how they are read and written.

    changes/{table id, 16 hex digits}/{id of the change}

The protocol is in README.md. A record is decided once, and its floor never falls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

import msgspec

from stelae.model.errors import Conflict, InvalidArgument, NotFound, Unavailable, UnknownOutcome
from stelae.model.hybrid import TXN_MIN
from stelae.model.ids import SchemaVersion, TableId, Txn
from stelae.ports.metastore import (
    Change,
    Compare,
    DeleteKey,
    Entry,
    IsAbsent,
    Metastore,
    ModRevisionIs,
    PutKey,
    Revision,
)
from stelae.registry.decoding import entries_under, json_of

CHANGES_PREFIX = "changes/"
LOAD, TRUNCATION = "load", "truncation"
_RAISES_MAX = 50


class ChangeKind(Enum):
    """What becomes of what was in the table before: a load adds to it, the others hide it."""

    LOAD = "load"
    OVERWRITE = "overwrite"
    TRUNCATE = "truncate"


class ChangeState(Enum):
    """How far a change has come. The last two are final."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


class ChangeSession(msgspec.Struct, frozen=True):
    """`attempt`: how often it was announced; what is prepared for an older one counts for nothing. `servers`: all that
    were ever asked to prepare it. `txn`: when it happened, once committed. `prefix`: how its files' names begin, which
    were written for `schema_version`. `job`, `batch`: what a load is of; empty for a truncation."""

    id: str
    table: TableId
    kind: ChangeKind
    expires_ms: int
    state: ChangeState = ChangeState.OPEN
    attempt: int = 0
    floor: Txn = TXN_MIN
    txn: Txn = TXN_MIN
    servers: tuple[str, ...] = ()
    job: str = ""
    batch: int = 0
    prefix: str = ""
    schema_version: SchemaVersion = SchemaVersion(0)

    @property
    def is_open(self) -> bool:
        return self.state is ChangeState.OPEN

    @property
    def replaces(self) -> bool:
        """Whether it hides what was in the table before."""
        return self.kind is not ChangeKind.LOAD


# -- steps


def announced(session: ChangeSession, kind: ChangeKind, servers: Iterable[str], floor: Txn) -> ChangeSession:
    """Another attempt begins, with these servers too."""
    _check_open(session)
    return msgspec.structs.replace(
        session,
        kind=kind,
        attempt=session.attempt + 1,
        servers=tuple(dict.fromkeys((*session.servers, *servers))),
        floor=max(floor, session.floor),
    )


def raised(session: ChangeSession, floor: Txn) -> ChangeSession:
    """It will not happen at or below the floor."""
    _check_open(session)
    return msgspec.structs.replace(session, floor=max(floor, session.floor))


def renewed(session: ChangeSession, expires_ms: int) -> ChangeSession:
    _check_open(session)
    return msgspec.structs.replace(session, expires_ms=expires_ms)


def committed(session: ChangeSession, attempt: int, prepared: Sequence[Txn], last: Txn, now: Txn) -> ChangeSession:
    """It happens, above all that anybody was promised. `prepared`: when each server has prepared this attempt; `last`:
    when the change of the table happened that was decided before it (`decisions`)."""
    _check_open(session)
    if session.attempt != attempt:
        raise Unavailable(f"change {session.id!r} is being committed by another call, too: ask again")
    txn = Txn(max((*prepared, session.floor, last, now)) + 1)
    return msgspec.structs.replace(session, state=ChangeState.COMMITTED, txn=txn)


def aborted(session: ChangeSession) -> ChangeSession:
    """The session as given up: the change never happens, and a later request to commit it is refused."""
    _check_open(session)
    return msgspec.structs.replace(session, state=ChangeState.ABORTED)


def _check_open(session: ChangeSession) -> None:
    if not session.is_open:
        raise Conflict(f"change {session.id!r} is {session.state.value} already")


# -- names


def change_id(word: str, table: TableId, token: str) -> str:
    """The table is part of it: so the record is found by the id alone."""
    return f"{word}-{table:016x}-{token}"


def table_of_change(id_: str) -> TableId:
    """NotFound if it is no id of a change."""
    parts = id_.split("-")
    try:
        if len(parts) == 3 and parts[0] in (LOAD, TRUNCATION) and len(parts[1]) == 16 and parts[2].isalnum():
            return TableId(int(parts[1], 16))
    except ValueError:
        pass
    raise NotFound(f"no ticket is called {id_!r}")


def change_key(table: TableId, id_: str) -> str:
    return f"{CHANGES_PREFIX}{table:016x}/{id_}"


# -- records


class HeldSession(msgspec.Struct, frozen=True):
    """A record as it was read, or written, at a revision."""

    session: ChangeSession
    revision: Revision

    @property
    def key(self) -> str:
        return change_key(self.session.table, self.session.id)

    @property
    def unchanged(self) -> Compare:
        return ModRevisionIs(self.key, self.revision)


async def read_session(store: Metastore, table: TableId, id_: str) -> HeldSession | None:
    entry = await store.get(change_key(table, id_))
    return None if entry is None else _held(entry)


async def read_sessions(store: Metastore) -> list[HeldSession]:
    """The changes that are recorded, open or decided, in the order of their tables."""
    return [_held(entry) for entry in await entries_under(store, CHANGES_PREFIX)]


def _held(entry: Entry) -> HeldSession:
    return HeldSession(json_of(entry, ChangeSession, "the record of a change"), entry.mod_revision)


def put_session(session: ChangeSession) -> Change:
    """The write of a session's record, for a transaction of the metastore."""
    return PutKey(change_key(session.table, session.id), msgspec.json.encode(session))


async def begin_session(
    store: Metastore, session: ChangeSession, compares: Sequence[Compare] = (), changes: Sequence[Change] = ()
) -> bool:
    """Write a new one, and something besides; False if that is not as it was. Unavailable if it is not known whether it
    was written: nothing follows from it then but that it expires."""
    absent = IsAbsent(change_key(session.table, session.id))
    try:
        return (await store.txn([absent, *compares], [put_session(session), *changes])).succeeded
    except UnknownOutcome as error:
        if await read_session(store, session.table, session.id) is None:
            raise Unavailable(f"change {session.id!r} has not begun, as far as is known: {error}") from error
        return True


async def step_session(
    store: Metastore,
    held: HeldSession,
    session: ChangeSession,
    compares: Sequence[Compare] = (),
    changes: Sequence[Change] = (),
) -> HeldSession | None:
    """Write what follows a record, and something besides; None if anything is not as it was: read again."""
    outcome = await store.txn([held.unchanged, *compares], [put_session(session), *changes])
    return HeldSession(session, outcome.revision) if outcome.succeeded else None


async def forget_session(store: Metastore, held: HeldSession) -> bool:
    """Delete the record of a decided change that nobody has prepared any more."""
    if held.session.is_open:
        raise InvalidArgument(f"change {held.session.id!r} is open: it is decided before it is forgotten")
    return (await store.txn([held.unchanged], [DeleteKey(held.key)])).succeeded


async def learn(store: Metastore, table: TableId, id_: str, at: Txn, ahead: Txn) -> ChangeSession | None:
    """What has become of a change, for one who is in doubt at a txn: decided, or with a floor at or above the txn. A
    floor that has to be raised is raised to `ahead` at least. None: there is no such record."""
    for _ in range(_RAISES_MAX):
        held = await read_session(store, table, id_)
        if held is None or not held.session.is_open or held.session.floor >= at:
            return None if held is None else held.session
        try:
            risen = await step_session(store, held, raised(held.session, max(at, ahead)))
        except UnknownOutcome:
            continue  # whether it was this one or another: the floor is what is read next
        if risen is not None:
            return risen.session
    raise Unavailable(f"change {id_!r} was changed by others {_RAISES_MAX} times while it was looked at; try again")
