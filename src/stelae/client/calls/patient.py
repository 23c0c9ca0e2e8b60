"""A store as jobs use it, which ask many things of it one by one: each is repeated by the session's own loop while it
fails for a while, until the session's deadline. What jobs do not ask is not here: they use the database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stelae.client.calls.session import Session
from stelae.model.ids import TableId, Txn
from stelae.service.jobs import TTL_S_DEFAULT
from stelae.service.tables import CreateAsk, TableInfo

if TYPE_CHECKING:
    from stelae.format.fragment.footer import FragmentFile
    from stelae.service.tickets import CompactionTicket, HeldTable, LoadedFile, LoadTicket


class PatientStore:
    """The store of a session. What each of these does says `Backend`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def find(self, name: str) -> TableInfo:
        return self._session.ask(lambda store, until: store.find(name, deadline=until))

    def info(self, table: TableId) -> TableInfo:
        return self._session.ask(lambda store, until: store.info(table, deadline=until))

    def create(self, ask: CreateAsk) -> TableInfo:
        return self._session.ask(lambda store, until: store.create(ask, deadline=until))

    def drop(self, name: str) -> None:
        self._session.ask(lambda store, until: store.drop(name, deadline=until))

    def hold(self, table: TableId, at: Txn | None = None, ttl_s: float = TTL_S_DEFAULT) -> HeldTable:
        return self._session.ask(lambda store, until: store.hold(table, at, ttl_s, deadline=until))

    def renew(self, ticket: str, ttl_s: float = TTL_S_DEFAULT) -> None:
        self._session.ask(lambda store, until: store.renew(ticket, ttl_s, deadline=until))

    def release(self, ticket: str) -> None:
        self._session.ask(lambda store, until: store.release(ticket, deadline=until))

    def begin_load(self, table: TableId, job: str, batch: int = 0, ttl_s: float = TTL_S_DEFAULT) -> LoadTicket:
        return self._session.ask(lambda store, until: store.begin_load(table, job, batch, ttl_s, deadline=until))

    def commit_load(self, ticket: str, files: Sequence[LoadedFile], *, replaces: bool = False) -> Txn:
        return self._session.ask(
            lambda store, until: store.commit_load(ticket, files, replaces=replaces, deadline=until)
        )

    def begin_compaction(self, table: TableId, *, full: bool = True, erase_now: bool = False) -> CompactionTicket:
        return self._session.ask(
            lambda store, until: store.begin_compaction(table, full=full, erase_now=erase_now, deadline=until)
        )

    def adopt(self, ticket: str, number: int, file: FragmentFile | None) -> bool:
        return self._session.ask(lambda store, until: store.adopt(ticket, number, file, deadline=until))
