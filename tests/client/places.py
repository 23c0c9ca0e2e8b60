"""The kinds of stores that the API's tests run on, and what differs between them by nature.

embedded    a directory that the test's own process has
attached    a directory that another process has
cluster     a master and two shards of other processes, over TCP
simulated   two masters and a shard of the simulated world

Tests are not told which one they have: they ask a `Place` for the database, as often as they like.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import stelae
import stelae.aio
from stelae.client.api.aio.database import Opening
from tests.beside import Beside
from tests.client.simulated_place import SimulatedPlace

KINDS = ("embedded", "attached", "cluster", "simulated")
"""What every test of the API runs on."""

_NO_TIME = "a store of other processes cannot be asked anything in no time at all"
_NOT_CACHED = "nothing of a store of other processes is cached here, so nothing is read without asking"
_STILL = "time stands still there while a program computes: nothing is due before somebody waits"
_NO_FILES = "it looks at the files of the store's directory, and a simulated store lies in none"
_THREADS = "its threads are real ones, and the simulated world has only its own"
_ONE_THREAD = "it counts the calls of one thread, and to Python all threads of the simulated world are one"
_INSIDE = "it changes what the store itself is made of, which is in this process only here"

DIFFERENT: Mapping[str, Mapping[str, str]] = {
    "attached": {
        "test_a_conflict_that_does_not_end_is_raised": _NO_TIME,
        "test_a_full_disk_is_told_at_once_of_tables_too": _INSIDE,
        "test_files_that_others_are_merging_are_waited_for": _INSIDE,
        "test_what_is_not_cached_is_read_elsewhere": _NOT_CACHED,
    },
    "simulated": {
        "test_a_batch_is_flushed_on_the_way": _STILL,
        "test_a_batch_is_written_when_its_time_has_come": _STILL,
        "test_a_conflict_that_does_not_end_is_raised": _NO_TIME,
        "test_a_full_disk_is_told_at_once_of_tables_too": _INSIDE,
        "test_a_job_that_erases_leaves_nothing_either": _NO_FILES,
        "test_a_key_that_was_erased_is_no_boundary_that_the_store_chose": _NO_FILES,
        "test_files_that_others_are_merging_are_waited_for": _INSIDE,
        "test_an_alarm_does_not_write_what_the_end_of_a_batch_could_not": _THREADS,
        "test_long_arrays_are_checked_in_vectors": _ONE_THREAD,
        "test_many_threads": _THREADS,
        "test_scans": "the collector frees a forgotten scan wherever it runs: on the loop, which cannot block there",
        "test_the_plain_api_inside_a_running_loop": "it blocks the loop, which is the one of the whole world there",
        "test_what_is_gone_is_in_no_file": _NO_FILES,
        "test_what_is_not_cached_is_read_elsewhere": _NOT_CACHED,
        "test_who_still_has_it_is_named": _NO_FILES,
    },
    "cluster": {
        "test_a_conflict_that_does_not_end_is_raised": _NO_TIME,
        "test_a_full_disk_is_told_at_once_of_tables_too": _INSIDE,
        "test_files_that_others_are_merging_are_waited_for": _INSIDE,
        "test_what_is_not_cached_is_read_elsewhere": _NOT_CACHED,
    },
}
"""By kind and test: why a test is not run there."""

OF_DIRECTORIES: Mapping[str, str] = {
    "test_a_store_of_one_process_has_one_replica_of_each_tablet": "only a cluster has several replicas of a tablet",
    "test_a_txn_of_the_near_future_is_none_either": "it stops the store's clock",
    "test_opening_for_reading_only": "a directory is opened to be read only; a cluster is not",
    "test_they_are_there_again_after_reopening": "a directory is opened to be read only; a cluster is not",
    "test_what_cannot_be_opened": "it is about directories, and about addresses",
    "test_wherever_the_future_is_kept_a_change_is_seen": "it opens a copy of a directory, as a crash leaves it",
}
"""Tests that open a directory by themselves, and why."""


class Place(Protocol):
    """Where one store is. `files`: the directory that everything it keeps lies under."""

    files: Path

    def open(self, *, timeout_s: float = 10) -> stelae.Database: ...

    def open_async(self, *, timeout_s: float = 10) -> Opening: ...

    def restart(self) -> None:
        """Whoever has the store lets go of it in order, and begins anew. No database of it may be open here."""
        ...

    def close(self) -> None: ...


class EmbeddedPlace:
    def __init__(self, files: Path, _: Beside) -> None:
        self.files = files

    def open(self, *, timeout_s: float = 10) -> stelae.Database:
        return stelae.open(self.files, timeout_s=timeout_s)

    def open_async(self, *, timeout_s: float = 10) -> Opening:
        return stelae.aio.open(self.files, timeout_s=timeout_s)

    def restart(self) -> None:
        """It ended with its database."""

    def close(self) -> None:
        """It ended with its database."""


class AttachedPlace(EmbeddedPlace):
    def __init__(self, files: Path, beside: Beside) -> None:
        super().__init__(files, beside)
        self._beside = beside
        beside.own(files)

    def restart(self) -> None:
        self._beside.restart(self.files)

    def close(self) -> None:
        self._beside.end(self.files)


class ClusterPlace:
    def __init__(self, files: Path, beside: Beside) -> None:
        self.files = files
        self._beside = beside
        self._address = beside.serve(files)

    def open(self, *, timeout_s: float = 10) -> stelae.Database:
        return stelae.connect(self._address, timeout_s=timeout_s)

    def open_async(self, *, timeout_s: float = 10) -> Opening:
        return stelae.aio.connect(self._address, timeout_s=timeout_s)

    def restart(self) -> None:
        self._beside.restart(self.files)

    def close(self) -> None:
        self._beside.end(self.files)


PLACES: Mapping[str, Any] = {
    "embedded": EmbeddedPlace,
    "attached": AttachedPlace,
    "cluster": ClusterPlace,
    "simulated": SimulatedPlace,
}


def kinds_of(test: str) -> list[str]:
    """What a test runs on."""
    return [kind for kind in KINDS if test not in DIFFERENT.get(kind, {})]
