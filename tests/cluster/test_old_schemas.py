"""The catalog gets shorter in time, and never forgets a schema that a shard's log, replicas or configs name (T40)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any
from unittest import mock

import pytest

import stelae
from stelae.catalog.value import Catalog, CatalogVersion
from stelae.model.errors import Retryable, UnknownOutcome
from stelae.ports.metastore import Metastore
from stelae.registry.catalog import compaction
from stelae.registry.catalog.settings import HistoryKept
from tests.cluster.processes import SHARDS
from tests.cluster.scripted import Stage, play
from tests.cluster.short_histories import SHORT, Shortened, short_histories
from tests.cluster.simulated import run_cluster, silent_remains
from tests.cluster.test_planted import FOUND
from tests.cluster.time_stories import add_column, all_rows, put
from tests.sim.seeds import seeds

ALTERATIONS = 8
EAGER = HistoryKept(versions_max=1, look_s=0.5, settle_s=0.1)


async def _wait_for_short(found: Shortened, oldest: int) -> None:
    async with asyncio.timeout(300):
        while not found.oldest or found.oldest[-1] < oldest:
            await asyncio.sleep(0.5)


async def _start_again(stage: Stage) -> None:
    """All shards, killed as they are: each reads what its log names."""
    for shard in SHARDS:
        stage.world.kill(shard)
    await stage.until(all_rows)


def _make_zone(name: str) -> Callable[[stelae.Database], bool]:
    """A version of the catalog that no shard has to follow."""

    def make(db: stelae.Database) -> bool:
        db.create_zone(name, replicas=1, if_not_exists=True)
        return True

    return make


def _altered_and_killed(found: Shortened, **table: Any) -> Callable[[Stage], Coroutine[Any, Any, None]]:
    async def story(stage: Stage) -> None:
        await stage.make_table(**table)
        wanted = {}
        for number in range(ALTERATIONS):
            for row in "an":
                wanted[row] = number
                await stage.until(put(row, number))
            await stage.until(add_column(f"c{number}"))
            if number % 3 == 2:
                await _start_again(stage)
        await _wait_for_short(found, ALTERATIONS - SHORT.versions_max)
        await _start_again(stage)
        assert await stage.until(all_rows) == wanted

    return story


@pytest.mark.parametrize("table", [{"splits": ["m"]}, {"replicas": 3}], ids=["two shards", "three replicas"])
def test_the_history_of_a_cluster_becomes_short_and_no_log_names_what_was_forgotten(table: dict[str, Any]) -> None:
    with short_histories() as found:
        play(_altered_and_killed(found, **table), 1)


def _one_is_away(found: Shortened) -> Callable[[Stage], Coroutine[Any, Any, None]]:
    """Nothing is forgotten while it is away, though the others need no old schema; when it is back, everything is
    there, and the history becomes short."""

    async def story(stage: Stage) -> None:
        await stage.make_table(splits=["m"])
        await stage.until(put("a", 1))
        await stage.until(put("n", 2))
        away = await stage.leader(0)
        stage.world.keep_down(away)
        with suppress(Retryable, UnknownOutcome):  # the shard that is away has not followed
            await stage.do(add_column("c"))
        for number in range(ALTERATIONS):
            await stage.until(_make_zone(f"z{number}"))
        await asyncio.sleep(60)
        assert found.oldest == []
        stage.world.let_up(away)
        assert await stage.until(all_rows) == {"a": 1, "n": 2}
        await _wait_for_short(found, ALTERATIONS - SHORT.versions_max)
        await _start_again(stage)
        assert await stage.until(all_rows) == {"a": 1, "n": 2}

    return story


def test_a_shard_that_is_away_keeps_the_schemas_that_its_log_names() -> None:
    with short_histories() as found:
        play(_one_is_away(found), 1, patience_s=3.0)


@pytest.mark.parametrize(("replicas", "count"), [(1, 8), (3, 6)])
def test_everything_holds_while_the_table_is_altered_and_history_is_forgotten(replicas: int, count: int) -> None:
    shortened = 0
    with silent_remains():
        for seed in seeds(count):
            with short_histories(EAGER) as found:
                run_cluster(seed, replicas=replicas, alters=True)
            shortened += len(found.oldest)
    assert shortened > 0


def test_a_compaction_that_asks_no_shard_is_found() -> None:
    async def whatever_shards_need(_: Metastore, catalog: Catalog) -> CatalogVersion:
        return catalog.version

    planted = mock.patch.object(compaction, "read_needed", whatever_shards_need)
    with silent_remains(), planted, short_histories() as found, pytest.raises(FOUND):
        play(_one_is_away(found), 1, patience_s=3.0)
