"""The queries of TPC-H on tables as they were loaded, and of which rows were changed: what DuckDB says is right.

A small `bench/bench_tpch.py`, which measures the same at a size that is worth it. Of all queries Spark's planning and
compiling takes minutes of processor time, however small the tables are: a soak asks them all, in all states; a plain
run asks some of them, in some states only two.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import stelae
from tests.effort import long_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BENCH = Path(__file__).parents[2] / "bench"
SCALE = 0.01
STATES = ("clean", "whole", "narrow", "erased", "inserted", "compacted")
SOME = (1, 3, 6, 12, 14, 18)
"""That read the tables which are changed: sums of all of one, joins of both, a semi-join."""
FEW = (6, 12)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The modules of the bench, by name, for as long as they are needed."""
    monkeypatch.syspath_prepend(str(BENCH))
    before = set(sys.modules)
    yield import_module
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(BENCH)):
            del sys.modules[name]


@pytest.mark.parametrize(
    "asked",
    [
        {"clean": FEW, "whole": FEW, "narrow": SOME, "erased": SOME[1::2], "inserted": FEW, "compacted": FEW},
        pytest.param(dict.fromkeys(STATES, tuple(range(1, 23))), marks=long_run),
    ],
    ids=["some", "all"],
)
def test_answers_are_right(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    bench: Any,
    asked: Mapping[str, Sequence[int]],
) -> None:
    data, queries, worlds = bench("tpch_data"), bench("tpch_queries"), bench("tpch_world")
    monkeypatch.setattr(worlds.World, "_write_parquet", lambda *_: None)  # there is nothing to measure beside
    truth = data.Truth(tmp_path, SCALE)
    wrong: dict[tuple[str, int], str] = {}
    with stelae.open(tmp_path / "store") as db:
        world = worlds.World(SCALE, tmp_path, spark, db, truth)
        for state in asked:
            world.frames(state).show()
            for number in asked[state]:
                sql = queries.sql_of(number, SCALE)
                answer = queries.plain(spark.sql(sql).collect())
                if said := queries.difference(answer, truth.answer(state, sql)):
                    wrong[state, number] = said
        for table in data.TABLES:
            spark.catalog.dropTempView(table)
    truth.close()
    assert wrong == {}
