"""How long the ways of the usual calls are: see `bench/walks.py`, which counts them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
WALKS = ROOT / "bench" / "walks.py"
PAGE = ROOT / "docs" / "architecture.md"
GET_CALLS_MAX = 22
SCAN_CALLS_MAX = 330
SAID_OF = (3, 11)
"""The Python whose calls the page counts."""
SHARE_ELSEWHERE = 1 / 8
"""From Python 3.12 on, comprehensions are no calls: by so much of them a walk may differ."""


@pytest.fixture(scope="module")
def walks() -> dict[tuple[str, str], dict[str, Any]]:
    """By call and table."""
    done = subprocess.run([sys.executable, str(WALKS), "--json"], capture_output=True, text=True, check=True)
    return {(walk["name"], walk["table"]): walk for walk in json.loads(done.stdout)}


def calls(walk: dict[str, Any]) -> int:
    return sum(walk["rooms"].values())


def test_a_put_goes_through_the_client_the_server_and_storage(walks: dict[tuple[str, str], dict[str, Any]]) -> None:
    """And back: what is below the client does not ask it for anything."""
    puts = [walk for (name, _), walk in walks.items() if name == "put"]
    assert len(puts) == 4
    for walk in puts:
        on_the_way = [room for room in walk["path"] if room in ("client", "tserver", "storage")]
        assert on_the_way[0] == "client"
        first, past = on_the_way.index("tserver"), len(on_the_way) - on_the_way[::-1].index("storage")
        assert first < on_the_way.index("storage")
        assert "client" not in on_the_way[first:past]


@pytest.mark.parametrize("fields", ["1 field", "10 fields"])
def test_a_warm_get_is_short(walks: dict[tuple[str, str], dict[str, Any]], fields: str) -> None:
    assert calls(walks["get", f"{fields}, in a file"]) <= GET_CALLS_MAX


@pytest.mark.parametrize(
    "table", ["1 field, in a file", "10 fields, in a file", "1 field, in memory", "1 field, overwritten"]
)
@pytest.mark.parametrize("name", ["scan of a range", "scan with a limit"])
def test_a_scan_of_ten_rows_is_short(walks: dict[tuple[str, str], dict[str, Any]], name: str, table: str) -> None:
    assert calls(walks[name, table]) <= SCAN_CALLS_MAX


def rows_of(page: str) -> dict[tuple[str, str], list[int]]:
    """What a page says of each walk: all calls, and those of each room."""
    lines = page[page.index("| call | table | all |") :].partition("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {(row[0], row[1]): [int(cell or 0) for cell in row[2:]] for row in rows}


def measured(walk: dict[str, Any], rooms: list[str]) -> list[int]:
    counts = [walk["rooms"].get(room, 0) for room in rooms]
    return [calls(walk), *counts, calls(walk) - sum(counts)]


def _is_near(said: list[int], now: list[int] | None) -> bool:
    return now is not None and abs(said[0] - now[0]) <= said[0] * SHARE_ELSEWHERE


def test_the_page_of_the_architecture_shows_what_is_measured(walks: dict[tuple[str, str], dict[str, Any]]) -> None:
    page = PAGE.read_text("utf-8")
    heading = next(line for line in page.splitlines() if line.startswith("| call | table | all |"))
    rooms = [cell.strip() for cell in heading.strip("|").split("|")][3:-1]
    said = rows_of(page)
    now = {key: measured(walks[key], rooms) for key in said if key in walks}
    if sys.version_info[:2] != SAID_OF:
        said = {key: row for key, row in said.items() if not _is_near(row, now.get(key))}
        now = {key: row for key, row in now.items() if key in said}
    assert said == now, "write the table anew with `python bench/walks.py --write docs/architecture.md`"
    assert len(rows_of(page)) >= 7
