"""Finds where a shard serves, by what the metastore knows of its life."""

from __future__ import annotations

from stelae.model.errors import Unavailable
from stelae.ports.metastore import Metastore
from stelae.registry.incarnations import read_lives
from stelae.service.deadlines import Deadline


class ShardFinder:
    def __init__(self, metastore: Metastore, shard: str) -> None:
        self._metastore = metastore
        self._shard = shard

    async def __call__(self, _: Deadline | None) -> str:
        for life in await read_lives(self._metastore):
            if life.name == self._shard:
                return life.address
        raise Unavailable(f"shard {self._shard} has not been started yet")
