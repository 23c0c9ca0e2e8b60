"""`stelae catalog`: on a directory and on etcd, as a person and as a program reads it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from stelae.catalog.commands.columns import AddColumns, DropColumns, SetGroupOptions
from stelae.catalog.commands.spaces import CreateNamespace
from stelae.catalog.commands.tables import DropTable
from stelae.launch.metastores import METASTORE_FILE, InDirectory, MetastorePlace, OnEtcd, open_metastore
from stelae.model.declare import parse_column
from stelae.model.hybrid import to_datetime
from stelae.registry.catalog.settings import CatalogSettings
from tests.catalog.samples import USERS, create
from tests.cli.running import run
from tests.etcd import running_etcd
from tests.registry.catalogs import opened_catalog

History = tuple[list[str], list[str]]
"""The options that name the store, and the time each version became active."""


async def make_history(place: MetastorePlace) -> list[str]:
    """Five versions; the time each became active."""
    times = []
    async with (
        open_metastore(place) as store,
        opened_catalog(store, CatalogSettings(author="ann")) as service,
    ):
        for commands in (
            [create("users")],
            [CreateNamespace("shop"), create("shop.orders")],
            [AddColumns(USERS, "profile", (parse_column("email", "string"),)), DropColumns(USERS, ("name",))],
            [SetGroupOptions(USERS, "events", purge="max-age=7d")],
            [DropTable(USERS)],
        ):
            made = await service.execute(*commands)
            times.append(to_datetime(made.activation).isoformat())
    return times


@pytest.fixture(scope="module", params=["path", "etcd"])
def history(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    directory = tmp_path_factory.mktemp("store")
    if request.param == "path":
        yield ["--path", str(directory)], asyncio.run(make_history(InDirectory(directory)))
        return
    with running_etcd(directory) as (server,):
        yield ["--etcd", server.endpoint], asyncio.run(make_history(OnEtcd((server.endpoint,))))


def test_log(history: History) -> None:
    place, times = history
    versions = json.loads(run("catalog", "log", *place, "--json").stdout)
    assert [version["version"] for version in versions] == [5, 4, 3, 2, 1]
    assert [version["active_from"] for version in versions] == [f"{t[:23]}Z" for t in reversed(times)]
    assert versions[2]["author"] == "ann"
    assert versions[2]["changes"] == [
        "columns added: table 'users', group 'profile', columns 'email' string",
        "columns dropped: table 'users', columns 'name'",
    ]
    assert versions[0]["changes"] == ["table dropped: table 'users'"]
    shown = run("catalog", "log", *place, "--limit", "1").stdout
    assert "table dropped" in shown
    assert "columns added" not in shown


def test_show(history: History) -> None:
    place, times = history
    now = json.loads(run("catalog", "show", *place, "--json").stdout)
    assert list(now["tables"]) == ["shop.orders"]
    assert [gone.split()[0] for gone in now["dropped"]] == ["users"]
    then = json.loads(run("catalog", "show", "users", *place, "--json", "--version", "3").stdout)
    assert then["groups"]["profile"]["columns"] == {"age": "int32 not null default 0", "email": "string"}
    by_time = json.loads(run("catalog", "show", "users", *place, "--json", "--at", times[2]).stdout)
    assert by_time == then
    shown = run("catalog", "show", "users", *place, "--version", "1").stdout
    assert "age: int32 not null default 0" in shown


def test_diff(history: History) -> None:
    place, _ = history
    found = json.loads(run("catalog", "diff", "3", "4", *place, "--json").stdout)
    assert found["differences"] == [
        {"path": "tables/users/schema_version", "before": 3, "after": 4},
        {"path": "tables/users/groups/events/purge", "before": "none", "after": "max-age=1w"},
    ]
    assert "hold the same" in run("catalog", "diff", "2", "2", *place).stdout
    assert "tables/users" in run("catalog", "diff", "4", *place).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "--version", "9"], "there is no catalog version 9; the newest is 5"),
        (["show", "user"], "no table 'user'"),
        (["show", "--at", "yesterday"], "--at 'yesterday': not a time"),
        (["show", "--at", "2024-01-01T00:00:00"], "has no time zone"),
        (["show", "--version", "1", "--at", "2024-01-01T00:00:00Z"], "give --version or --at, not both"),
        (["diff", "7"], "there is no catalog version 7"),
    ],
)
def test_mistakes(history: History, arguments: list[str], message: str) -> None:
    done = run("catalog", *arguments, *history[0])
    assert done.exit_code == 1
    assert message in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr


def test_no_store_no_place_and_no_server(tmp_path: Path) -> None:
    nothing = run("catalog", "log", "--path", tmp_path)
    assert nothing.exit_code == 1
    assert f"there is no {METASTORE_FILE}" in nothing.stderr.replace("\n", " ")
    assert list(tmp_path.iterdir()) == []
    nowhere = run("catalog", "log")
    assert nowhere.exit_code == 1
    assert "say where the store is" in nowhere.stderr


def test_an_empty_catalog(tmp_path: Path) -> None:
    async def nothing() -> None:
        async with open_metastore(InDirectory(tmp_path)):
            pass

    asyncio.run(nothing())
    assert "the catalog is empty" in run("catalog", "log", "--path", tmp_path).stdout
    assert json.loads(run("catalog", "show", "--path", tmp_path, "--json").stdout)["version"] == 0


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    async def odd() -> None:
        async with (
            open_metastore(InDirectory(tmp_path)) as store,
            opened_catalog(store, CatalogSettings(author="[red]me\x1b[31m")) as service,
        ):
            await service.execute(create("br[/b]cket"))

    asyncio.run(odd())
    for verb in (["log"], ["show"], ["diff", "0"]):
        done = run("catalog", *verb, "--path", tmp_path)
        assert done.exit_code == 0, done.stderr
        assert "br[/b]cket" in done.stdout
        assert "\x1b" not in done.stdout
