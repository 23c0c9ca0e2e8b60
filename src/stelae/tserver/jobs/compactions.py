"""Compactions that others carry out: what to merge is picked here, and what they made of it is put in its place here.

A ticket lives in this process alone. If the store ends meanwhile, the work is of no use, and its files are collected.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Lock

import msgspec
from msgspec.structs import replace

from stelae.catalog.serial.version1 import CATALOG_SERIALIZERS
from stelae.format.fragment.footer import FragmentFile
from stelae.model.errors import InvalidArgument, NotFound, TabletAway
from stelae.model.ids import GroupId, TabletId
from stelae.service.tables import TableInfo
from stelae.service.tickets import CompactionTicket, CompactionWork
from stelae.storage.shard import Shard
from stelae.storage.tablet.config import encode_config
from stelae.storage.upkeep.merges import Merge
from stelae.storage.upkeep.upkeep import Upkeep
from stelae.tserver.jobs.files import check_written
from stelae.tserver.keeper import Keeper


class _Ticket(msgspec.Struct):
    prefix: str
    expires_ms: int
    merges: dict[int, Merge]
    erases: bool


class Compactions:
    """The compactions that jobs have tickets for. Safe for threads."""

    def __init__(self, shard: Shard, upkeep: Upkeep, keeper: Keeper, now_ms: Callable[[], int], root: str) -> None:
        self._shard = shard
        self._upkeep = upkeep
        self._keeper = keeper
        self._now_ms = now_ms
        self._root = root
        self._lock = Lock()
        self._tickets: dict[str, _Ticket] = {}

    def prefixes(self) -> list[str]:
        """How the names of files begin that compactions under way are writing."""
        return [each.prefix for each in list(self._tickets.values())]

    def keeps(self, name: str) -> bool:
        return any(name.startswith(prefix) for prefix in self.prefixes())

    def begin(
        self, info: TableInfo, ticket: str, prefix: str, ttl_s: float, *, full: bool, must_drop: bool = False
    ) -> CompactionTicket:
        """Of a table that is flushed, and whose horizon has been moved on."""
        merges: list[Merge] = []
        with self._lock:
            self._tickets[ticket] = _Ticket(prefix, self._now_ms() + int(ttl_s * 1_000), {}, must_drop)
        try:
            for state in self._shard.of_table(info.id):
                merges += self._reserve_all(state.tablet, full=full, must_drop=must_drop)
        except BaseException:
            self._end(ticket, merges)
            raise
        versions = {merge.state.schema.version for merge in merges}
        if len(versions) > 1:
            self._end(ticket, merges)
            raise TabletAway(f"table {info.name!r} was altered meanwhile: begin again")
        with self._lock:
            self._tickets[ticket].merges = dict(enumerate(merges))
        schema = merges[0].state.schema if merges else info.schema
        return CompactionTicket(
            ticket=ticket,
            table=info.id,
            root=self._root,
            prefix=prefix,
            table_bytes=CATALOG_SERIALIZERS.encode(replace(info.table, schema=schema)),
            works=tuple(self._work(number, merge) for number, merge in enumerate(merges)),
        )

    def _reserve_all(self, tablet: TabletId, *, full: bool, must_drop: bool) -> list[Merge]:
        found: list[Merge] = []
        done: set[GroupId] = set()
        try:
            self._upkeep.drop_hidden(tablet)
            pick = partial(self._upkeep.pick_compaction, whole_group=full, must_drop=must_drop)
            while (picked := pick(tablet, without=done)) is not None:
                done.add(picked[0])
                merge = self._upkeep.reserve(tablet, *picked)
                if merge is not None:
                    found.append(merge)
        except TabletAway:
            return found  # it was split, joined or dropped meanwhile
        return found

    def _work(self, number: int, merge: Merge) -> CompactionWork:
        files = [ref.file for ref in merge.refs if ref.file is not None]
        return CompactionWork(
            number=number,
            config=encode_config(self._shard.config(merge.state)),
            group=merge.group,
            files=tuple(sorted(merge.files)),
            horizon=merge.keeping.horizon,
            floor=merge.keeping.floor,
            is_rooted=merge.keeping.is_rooted,
            records=sum(file.stats.records for file in files),
            size_bytes=sum(file.seal.size_bytes for file in files),
        )

    def adopt(self, ticket: str, number: int, file: FragmentFile | None) -> bool:
        with self._lock:
            found = self._tickets.get(ticket)
            if found is None:
                raise _is_gone(ticket)
            merge = found.merges.pop(number, None)
        if merge is None:
            raise InvalidArgument(f"compaction {ticket!r} has no work {number}, or it is done")
        try:
            if file is not None:
                check_written(self._shard.blobs, found.prefix, file)
            adopted = self._upkeep.adopt(merge, file)
        finally:
            self._upkeep.give_up(merge)
        if adopted:
            self._upkeep.save()
            self._upkeep.tell(merge.told(file, 0.0))
        self._keeper.note_garbage()
        return adopted

    def renew(self, ticket: str, ttl_s: float) -> None:
        with self._lock:
            found = self._tickets.get(ticket)
            if found is None:
                raise _is_gone(ticket)
            found.expires_ms = self._now_ms() + int(ttl_s * 1_000)

    def release(self, ticket: str) -> bool:
        """What is not adopted by now never will be. What was to be erased is in no file when this returns."""
        with self._lock:
            found = self._tickets.get(ticket)
        if found is None:
            return False
        self._end(ticket, list(found.merges.values()))
        if found.erases:
            self._upkeep.collect_files(for_good=True)
        return True

    def expire(self) -> list[str]:
        """Let go of what nobody has renewed in time; the tickets that ended."""
        now_ms = self._now_ms()
        with self._lock:
            over = [ticket for ticket, each in self._tickets.items() if each.expires_ms <= now_ms]
        return [ticket for ticket in over if self.release(ticket)]

    def _end(self, ticket: str, merges: list[Merge]) -> None:
        with self._lock:
            self._tickets.pop(ticket, None)
        for merge in merges:
            self._upkeep.give_up(merge)
        self._keeper.note_garbage()


def _is_gone(ticket: str) -> NotFound:
    return NotFound(f"compaction {ticket!r} is not under way any more: it expired, or the store was opened anew")
