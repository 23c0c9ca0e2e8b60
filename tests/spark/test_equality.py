"""Spark's read of random tables, both ways, is the client's scan at the same txn, row for row."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import stelae
from stelae.spark.reading import frames as reading
from tests.effort import tries
from tests.spark.emulation import BY_TASKS, FEW, SMALL
from tests.spark.same import assert_same
from tests.spark.tables import KEYS, RandomTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("key", list(KEYS))
@pytest.mark.parametrize("steady", [True, False], ids=["steady", "wild"])
def test_random_tables(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, steady: bool
) -> None:
    ways = cycle([SMALL, FEW, BY_TASKS])
    monkeypatch.setattr(reading, "PlanLimits", lambda parts: next(ways))
    for seed in range(tries(1)):
        path = tmp_path / str(seed)
        with stelae.open(path) as db:
            world = RandomTable(db, 500 * len(key) + seed, key, steady=steady)
            world.write(range(80))
            world.steps(12)
            at = world.rng.choice(world.txns[-5:])
            questions = world.questions()
            seen = 0
            for asked in questions if seed else questions[1:2] + questions[4:]:
                seen += assert_same(reading.read(spark, db, "t", at=at, **asked), world.table, at, **asked)
            where = questions[4]["where"]
            source = spark.read.format("stelae").options(path=str(path), table="t", at=at, where=where)
            assert_same(source.load(), world.table, at, where=where)
            assert seen
