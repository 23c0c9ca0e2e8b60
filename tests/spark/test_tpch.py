"""The queries of TPC-H on tables as they were loaded, and of which rows were changed: what DuckDB says is right.

A small `bench/bench_tpch.py`, which measures the same at a size that is worth it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import stelae

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BENCH = Path(__file__).parents[2] / "bench"
SCALE = 0.01


def test_all_answers_are_right(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    before = set(sys.modules)
    try:
        _check_answers(spark, tmp_path)
    finally:
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(BENCH)):
                del sys.modules[name]


def _check_answers(spark: SparkSession, directory: Path) -> None:
    from importlib import import_module

    data, queries, worlds = (import_module(name) for name in ("tpch_data", "tpch_queries", "tpch_world"))
    truth = data.Truth(directory, SCALE)
    wrong: dict[tuple[str, int], Any] = {}
    with stelae.open(directory / "store") as db:
        world = worlds.World(SCALE, directory, spark, db, truth)
        for state in ("clean", "narrow", "erased"):
            frames = world.frames(state)
            frames.show()
            for number in queries.NUMBERS:
                sql = queries.sql_of(number, SCALE)
                found = queries.plain(spark.sql(sql).collect())
                if said := queries.difference(found, truth.answer(state, sql)):
                    wrong[state, number] = said
        for table in data.TABLES:
            spark.catalog.dropTempView(table)
    truth.close()
    assert wrong == {}
