"""The examples come out right, and say so."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import stelae

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples"


def played(name: str, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What it says, in one line."""
    code = runpy.run_path(str(EXAMPLES / name))["main"](list(arguments))
    told = " ".join(capsys.readouterr().out.split())
    assert code == 0, told
    return told


def test_each_is_told_of() -> None:
    named = set(re.findall(r"\]\((\w+\.py)\)", (EXAMPLES / "README.md").read_text("utf-8")))
    assert named == {path.name for path in EXAMPLES.glob("*.py")}


def test_nightly_upsert(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = played("nightly_upsert.py", capsys, "--dir", str(tmp_path / "shop"))
    assert told.count("1,500 rows at one txn, 3 aside; run again: done before") == 3
    assert "order 1200, newest first: sent, paid, placed" in told
    assert "paid │ 1,500 │ 500" in told
    assert "aside from c-99: column 'amount' is NOT NULL" in told
    assert "the same as all files in one load" in told
    with stelae.open(tmp_path / "shop" / "data", read_only=True) as db:
        assert db.table("orders").count() == 2_500


def test_streaming_sink(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    told = played("streaming_sink.py", capsys)
    assert "batch 3: was in the table already; meter-07: 50 readings" in told
    assert "batch 4: 40 meters changed; meter-07: 75 readings" in told
    assert "3,000 readings of 3,000 in the table, in 3 versions: each batch was applied exactly once" in told


def test_feature_table(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    told = played("feature_table.py", capsys)
    assert "day 3" in told
    assert "c-003 │ 2026-11-15 02:00 │ 16.0 │ 19.0" in told
    assert "100 rows to train on: each is what would have been served then" in told
