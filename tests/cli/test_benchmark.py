"""`stelae bench`: it measures, and leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.running import run


def test_figures(tmp_path: Path) -> None:
    result = run("bench", "--rows", "1000", "--dir", tmp_path, "--json")
    assert result.exit_code == 0, result.exception
    told = json.loads(result.stdout)
    assert told["rows"] == 1_000
    assert told["size_bytes"] > 0
    figures = {figure["what"]: figure for figure in told["figures"]}
    assert set(figures) >= {"put, durable one by one", "put_many, durable", "get, from files", "scan to Arrow"}
    assert figures["put_many, durable"]["count"] == 1_000
    assert figures["scan to Arrow"]["count"] == 1_100
    assert all(figure["per_second"] > 0 and figure["seconds"] > 0 for figure in told["figures"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("screen")
def test_a_table_of_them(tmp_path: Path) -> None:
    shown = run("bench", "--rows", "1000", "--dir", tmp_path).stdout
    assert shown.split()[:4] == ["what", "per", "second", "each"]
    assert "1,000 rows are " in shown


def test_no_such_disk(tmp_path: Path) -> None:
    result = run("bench", "--dir", tmp_path / "none")
    assert result.exit_code == 1
    assert "there is no such directory" in result.stderr
