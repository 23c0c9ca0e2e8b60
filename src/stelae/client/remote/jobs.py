"""Jobs at a store that another process has. Everything here may be asked again after a lost answer: a ticket that was
given out unheard expires, and a commit is known by its ticket."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from stelae.client.remote.lines import Lines, LineSettings, answered
from stelae.client.remote.streams import ItemStream, joined_bodies
from stelae.format.fragment.footer import FragmentFile
from stelae.model.ids import TableId, Txn
from stelae.service import messages as m
from stelae.service import ticket_messages as bulk
from stelae.service.jobs import TTL_S_DEFAULT
from stelae.service.tickets import CompactionTicket, HeldTable, LoadedFile, LoadTicket
from stelae.wire.messages import WireMethod

Q = TypeVar("Q", bound=msgspec.Struct)
A = TypeVar("A", bound=msgspec.Struct)


class RemoteBulk:
    """A `BulkBackend`, as a part of `RemoteBackend`."""

    _lines: Lines
    _settings: LineSettings

    def hold(self, table: TableId, at: Txn | None = None, ttl_s: float = TTL_S_DEFAULT) -> HeldTable:
        return bulk.held_from(self._given(m.HOLD, bulk.HoldMessage(table, at, ttl_s)))

    def renew(self, ticket: str, ttl_s: float = TTL_S_DEFAULT) -> None:
        self._asked(m.RENEW, bulk.RenewMessage(ticket, ttl_s))

    def release(self, ticket: str) -> None:
        self._asked(m.RELEASE, bulk.ReleaseMessage(ticket))

    def begin_load(self, table: TableId, job: str, batch: int = 0, ttl_s: float = TTL_S_DEFAULT) -> LoadTicket:
        return bulk.load_from(self._given(m.BEGIN_LOAD, bulk.BeginLoadMessage(table, job, batch, ttl_s)))

    def commit_load(self, ticket: str, files: Sequence[LoadedFile], *, replaces: bool = False) -> Txn:
        asked = bulk.CommitLoadMessage(ticket, replaces)
        return Txn(self._asked(m.COMMIT_LOAD, asked, bulk.files_bytes(files)).txn)

    def begin_compaction(
        self, table: TableId, *, full: bool = True, erase_now: bool = False, ttl_s: float = TTL_S_DEFAULT
    ) -> CompactionTicket:
        asked = bulk.BeginCompactionMessage(table, full, erase_now, ttl_s)
        return bulk.compaction_from(self._given(m.BEGIN_COMPACTION, asked))

    def adopt(self, ticket: str, number: int, file: FragmentFile | None) -> bool:
        return self._asked(m.ADOPT, bulk.AdoptMessage(ticket, number), bulk.file_bytes(file)).adopted

    def _given(self, method: WireMethod[Q, A], message: Q) -> bytes | memoryview:
        return joined_bodies(ItemStream(self._lines, method, message, b"", timeout_s=self._settings.upkeep_s))

    def _asked(self, method: WireMethod[Q, A], message: Q, body: bytes = b"") -> A:
        line, _ = self._lines.ask(method, message, body, timeout_s=self._settings.upkeep_s)
        try:
            return answered(method, line.receive(self._settings.upkeep_s))[0]
        finally:
            self._lines.give(line)
