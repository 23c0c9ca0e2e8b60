"""Bugs that are planted in the product, one at a time, to see that the simulation finds them.

Each is a patch of one function, of the kind that a slip of the pen makes. `seed`: the first one at which the simulated
cluster fails with it; the table in `README.md` is the record.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from stelae.client.remote.answers import ItemStream
from stelae.client.remote.finding import FoundConnector
from stelae.client.remote.lines import Line
from stelae.master.master import Master
from stelae.model.hybrid import HybridClock
from stelae.storage.log.replay import LogRun
from stelae.storage.log.segments import WalSegments
from stelae.storage.read.points.conditions import check_unchanged
from stelae.storage.shard import Shard
from stelae.storage.tablet import opening
from stelae.storage.upkeep.collecting import Collecting
from stelae.storage.upkeep.upkeep import Upkeep


@dataclass(frozen=True, slots=True)
class Planted:
    name: str
    words: str
    patch: Callable[[], AbstractContextManager[Any]]


class _Unsynced:
    """A file of the log whose sync does nothing."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def sync(self) -> None:
        """Nothing: that is the bug."""


def _ack_before_sync() -> AbstractContextManager[Any]:
    right = WalSegments._append_synced

    def append(self: WalSegments, active: Any, records: Any) -> None:
        file, active.file = active.file, _Unsynced(active.file)
        try:
            right(self, active, records)
        finally:
            active.file = file

    return mock.patch.object(WalSegments, "_append_synced", append)


def _failed_bytes_stay() -> AbstractContextManager[Any]:
    return mock.patch.object(WalSegments, "abandon", return_value=True)


def _last_record_is_dropped() -> AbstractContextManager[Any]:
    right = opening._replay_plain

    def replay(runs: Iterable[LogRun], table: Any) -> None:
        right([run._replace(records=run.records[:-1]) for run in runs], table)

    return mock.patch.object(opening, "_replay_plain", replay)


def _failed_is_kept_in_memory() -> AbstractContextManager[Any]:
    def take_failed(self: Shard, entries: Any, error: Any) -> None:
        self.refused.append(error)
        self.commits.take_failed(entries)

    return mock.patch.object(Shard, "take_failed", take_failed)


def _log_goes_early() -> AbstractContextManager[Any]:
    right = Collecting.collect_log

    def collect_log(self: Collecting) -> tuple[str, ...]:
        kept, self._unsaved_from = self._unsaved_from, {}
        pending, self._pending_from = self._pending_from, {}
        try:
            return right(self)
        finally:
            self._unsaved_from, self._pending_from = kept, pending

    return mock.patch.object(Collecting, "collect_log", collect_log)


def _time_goes_back() -> AbstractContextManager[Any]:
    return mock.patch.object(HybridClock, "resume", return_value=None)


def _reads_see_undecided() -> AbstractContextManager[Any]:
    return mock.patch.object(Shard, "visible_in", lambda self, _: self.clock.last)


def _snapshot_waits_for_nothing() -> AbstractContextManager[Any]:
    return mock.patch.object(Shard, "ready", return_value=None)


def _condition_checked_once() -> AbstractContextManager[Any]:
    right = check_unchanged

    def check(state: Any, fragments: Any, *rest: Any) -> None:
        if fragments is not None:
            right(state, fragments, *rest)

    return mock.patch("stelae.storage.shard.check_unchanged", check)


def _lost_answer_is_repeated() -> AbstractContextManager[Any]:
    return mock.patch.object(ItemStream, "_lost", lambda _, error: error)


def _line_is_lent_with_answers_to_come() -> AbstractContextManager[Any]:
    return mock.patch.object(Line, "is_fit", property(lambda self: not self.is_broken and self.is_quiet))


def _address_is_kept() -> AbstractContextManager[Any]:
    right = FoundConnector.connect

    def connect(self: FoundConnector, timeout_s: float | None) -> Any:
        known = self.__dict__.setdefault("known", self._find(None))
        with mock.patch.object(self, "_find", return_value=known):
            return right(self, timeout_s)

    return mock.patch.object(FoundConnector, "connect", connect)


def _flush_of_undecided() -> AbstractContextManager[Any]:
    right = Upkeep.flush

    def flush(self: Upkeep, memory: Any) -> Any:
        with mock.patch.object(self._shard, "drain", return_value=None):
            return right(self, memory)

    return mock.patch.object(Upkeep, "flush", flush)


def _half_done_is_forgotten() -> AbstractContextManager[Any]:
    @asynccontextmanager
    async def change(self: Master, deadline: Any = None) -> AsyncIterator[None]:
        async with self._turn(deadline):
            yield

    return mock.patch.object(Master, "_change", change)


PLANTED = [
    Planted("ack-before-sync", "", _ack_before_sync),
    Planted("last-record-is-dropped", "", _last_record_is_dropped),
    Planted("condition-checked-once", "", _condition_checked_once),
    Planted("lost-answer-is-repeated", "", _lost_answer_is_repeated),
    Planted("failed-bytes-stay", "", _failed_bytes_stay),
    Planted("reads-see-undecided", "", _reads_see_undecided),
    Planted("line-is-lent", "", _line_is_lent_with_answers_to_come),
    Planted("half-done-is-forgotten", "", _half_done_is_forgotten),
    Planted("log-goes-early", "", _log_goes_early),
    Planted("time-goes-back", "", _time_goes_back),
    Planted("address-is-kept", "", _address_is_kept),
    Planted("failed-in-memory", "", _failed_is_kept_in_memory),
    Planted("snapshot-waits-for-nothing", "", _snapshot_waits_for_nothing),
    Planted("flush-of-undecided", "", _flush_of_undecided),
]
