"""No setting of the machine reaches the command line that is tested."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import Cli


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("STELAE_PATH", "STELAE_CLUSTER", "STELAE_ETCD", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is printed goes to a person."""
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "dumb")


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """A command line whose store is in a directory of its own, and not made yet."""
    return Cli(tmp_path / "data")


@pytest.fixture
def users(cli: Cli) -> Cli:
    """One with a table of columns and cells, and three rows."""
    cli.done(
        *("table", "create", "users", "--key", "id string"),
        *("--columns", "profile: name string, age int32 not null default 0, score float64, paid decimal(6, 2)"),
        *("--columns", "more: seen timestamp, tags array<string>, photo binary"),
        *("--cells", "events: click, view"),
    )
    lines = [
        '{"id": "ann", "name": "Ann", "age": 31, "paid": "1.20", "seen": "2026-01-31T14:00+02:00", "click:home": "1"}',
        '{"id": "bob", "name": "Bob", "tags": ["new", "old"]}',
        '{"id": "cay", "age": 9, "score": {"$float": "NaN"}, "photo": {"$binary": "AP8="}}',
    ]
    cli.done("put", "users", given="\n".join(lines))
    return cli
