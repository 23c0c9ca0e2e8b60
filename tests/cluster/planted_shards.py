"""Bugs that are planted in what makes many shards one store: snapshots over several, and the collection of files."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from stelae.master.links import ShardServers
from stelae.registry.control_operations import FilesNeeded
from stelae.service.deadlines import Deadline
from tests.cluster.planted import Planted


def _snapshot_of_the_slowest() -> AbstractContextManager[Any]:
    return mock.patch("stelae.client.remote.cluster.pins.max", min, create=True)


def _one_shard_is_asked_for_files() -> AbstractContextManager[Any]:
    right = ShardServers.files_needed

    async def ask(self: ShardServers, deadline: Deadline | None = None) -> list[FilesNeeded]:
        return (await right(self, deadline))[:1]

    return mock.patch.object(ShardServers, "files_needed", ask)


def _young_files_are_collected() -> AbstractContextManager[Any]:
    return mock.patch("stelae.master.garbage.collection.txn_of_name", return_value=0)


PLANTED_IN_SHARDS = [
    Planted("snapshot-of-the-slowest", "a snapshot is the oldest one of the shards", 40, 100, _snapshot_of_the_slowest),
    Planted(
        "one-shard-is-asked-for-files",
        "files are collected by what one shard needs",
        3,
        100,
        _one_shard_is_asked_for_files,
    ),
    Planted(
        "young-files-are-collected",
        "files are collected that were begun after the shards were asked",
        7,
        200,
        _young_files_are_collected,
    ),
]
