"""Bugs that are planted in the product, one at a time, to see that the simulation finds them.

Each is a patch of one function, of the kind that a slip of the pen makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any
from unittest import mock
from weakref import WeakKeyDictionary

from stelae.client.remote.lines import Line
from stelae.master.alignment import Alignment
from stelae.model.ids import TabletId
from stelae.ports.transport import Connection
from stelae.registry.wires.dialling import FoundDial
from stelae.service.deadlines import Deadline
from stelae.storage.log.replay import LogRun
from stelae.storage.log.segments import WalSegments
from stelae.storage.read.points.conditions import UndecidedConflict, check_unchanged
from stelae.storage.shard import Commit, Shard
from stelae.storage.tablet import opening


@dataclass(frozen=True, slots=True)
class Planted:
    """`seed`: the first that finds it. `seeds_max`: it is found by one below, though other code draws other numbers.
    `complaint`: what is said then, where more than one thing could be; as of `pytest.raises`."""

    name: str
    words: str
    seed: int
    seeds_max: int
    patch: Callable[[], AbstractContextManager[Any]]
    complaint: str = ""


@dataclass(frozen=True, slots=True)
class PlantedInStory:
    """`story`: the name of the one that finds it. `seed`: the first that it is played with that does, `seeds_max`: as
    for others. Most stories find their bugs with any seed."""

    name: str
    words: str
    story: str
    patch: Callable[[], AbstractContextManager[Any]]
    seed: int = 0
    seeds_max: int = 8


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


def _reads_see_undecided() -> AbstractContextManager[Any]:
    right = Shard.apply

    def apply(self: Shard, tablet: TabletId, *args: Any, **options: Any) -> Commit:
        commit = right(self, tablet, *args, **options)
        self.state(tablet).commits.visible = commit.txn
        return commit

    return mock.patch.object(Shard, "apply", apply)


def _condition_overlooks_undecided() -> AbstractContextManager[Any]:
    def check(*args: Any) -> None:
        with suppress(UndecidedConflict):
            check_unchanged(*args)

    return mock.patch("stelae.storage.shard.check_unchanged", check)


def _line_is_lent_with_answers_to_come() -> AbstractContextManager[Any]:
    return mock.patch.object(Line, "is_done", property(lambda self: not self.is_broken))


def _address_is_kept() -> AbstractContextManager[Any]:
    right = FoundDial.__call__
    known: WeakKeyDictionary[FoundDial, str] = WeakKeyDictionary()

    async def dial(self: FoundDial, deadline: Deadline) -> Connection:
        if self not in known:
            known[self] = await self._find(None)

        async def find(_: Deadline | None) -> str:
            return known[self]

        with mock.patch.object(self, "_find", find):
            return await right(self, deadline)

    return mock.patch.object(FoundDial, "__call__", dial)


def _half_done_is_forgotten() -> AbstractContextManager[Any]:
    return mock.patch.object(Alignment, "doubt", return_value=None)


PLANTED = [
    Planted("ack-before-sync", "a record is acknowledged before the log is synced", 4, 20, _ack_before_sync),
    Planted(
        "last-record-is-dropped",
        "a replay gives out all records of a segment but the last",
        1,
        10,
        _last_record_is_dropped,
    ),
    Planted(
        "failed-bytes-stay",
        "after a failed sync the log goes on behind the bytes that failed",
        217,
        900,
        _failed_bytes_stay,
    ),
    Planted(
        "failed-in-memory",
        "a write that has failed is taken out of the log, but not out of memory",
        4,
        60,
        _failed_is_kept_in_memory,
    ),
    Planted(
        "reads-see-undecided",
        "a write is visible when it is queued, not when it is durable",
        38,
        300,
        _reads_see_undecided,
    ),
    Planted(
        "condition-overlooks-undecided",
        "a condition is judged without the writes that are not durable yet",
        0,
        20,
        _condition_overlooks_undecided,
    ),
    Planted(
        "line-is-lent",
        "a connection on which an answer is still to come is used by the next caller",
        127,
        500,
        _line_is_lent_with_answers_to_come,
    ),
    Planted("address-is-kept", "whoever moved is looked for where it was first", 1, 40, _address_is_kept),
    Planted(
        "half-done-is-forgotten",
        "a master forgets that a change of tables was left half done",
        158,
        600,
        _half_done_is_forgotten,
    ),
]
