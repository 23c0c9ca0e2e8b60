"""How long the ways of the usual calls are: see `bench/walks.py`, which counts them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

WALKS = Path(__file__).parents[2] / "bench" / "walks.py"
GET_CALLS_MAX = 22
SCAN_CALLS_MAX = 330
TABLES = ("1 field, in a file", "10 fields, in a file", "1 field, in memory", "1 field, overwritten")


@pytest.fixture(scope="module")
def walks() -> dict[tuple[str, str], dict[str, Any]]:
    """By call and table."""
    done = subprocess.run([sys.executable, str(WALKS), "--json"], capture_output=True, text=True, check=True)
    return {(walk["name"], walk["table"]): walk for walk in json.loads(done.stdout)}


def calls(walk: dict[str, Any]) -> int:
    return sum(walk["rooms"].values())


def test_a_put_goes_through_the_client_the_server_and_storage(walks: dict[tuple[str, str], dict[str, Any]]) -> None:
    for (name, _), walk in walks.items():
        if name == "put":
            on_the_way = [room for room in walk["path"] if room in ("client", "tserver", "storage")]
            assert on_the_way[0] == "client"
            assert on_the_way.index("tserver") < on_the_way.index("storage")


@pytest.mark.parametrize("fields", ["1 field", "10 fields"])
def test_a_warm_get_is_short(walks: dict[tuple[str, str], dict[str, Any]], fields: str) -> None:
    assert calls(walks["get", f"{fields}, in a file"]) <= GET_CALLS_MAX


@pytest.mark.parametrize(
    "table", ["1 field, in a file", "10 fields, in a file", "1 field, in memory", "1 field, overwritten"]
)
@pytest.mark.parametrize("name", ["scan of a range", "scan with a limit"])
def test_a_scan_of_ten_rows_is_short(walks: dict[tuple[str, str], dict[str, Any]], name: str, table: str) -> None:
    assert calls(walks[name, table]) <= SCAN_CALLS_MAX
