"""`stelae namespace` and `stelae zone`."""

from __future__ import annotations

import pytest

from tests.cli.running import Cli


def test_namespaces(cli: Cli) -> None:
    assert cli.done("namespace", "create", "sales") == "created sales\n"
    assert "namespace 'Sales' exists already" in cli.refused("namespace", "create", "Sales")
    assert "stays as it is" in cli.done("namespace", "create", "sales", "--if-not-exists")
    assert cli.json("namespace", "create", "sales", "--if-not-exists") == {"created": False, "name": "sales"}
    cli.done("table", "create", "sales.orders", "--key", "id string", "--cells", "c")
    cli.done("table", "create", "t", "--key", "id string", "--cells", "c")
    assert cli.lines("namespace", "list") == [
        {"name": "default", "tables": 1},
        {"name": "sales", "tables": 1},
        {"name": "system", "tables": 0},
    ]
    shown = [line.split() for line in cli.done("namespace", "list").splitlines()]
    assert shown[0] == ["namespace", "tables"]
    assert ["sales", "1"] in shown
    assert "table 'orders' is in it" in cli.refused("namespace", "drop", "sales")
    cli.done("table", "drop", "sales.orders", "--yes")
    assert cli.done("namespace", "drop", "SALES") == "dropped sales\n"
    assert "no namespace 'sales'" in cli.refused("namespace", "drop", "sales")
    assert cli.json("namespace", "drop", "sales", "--if-exists") == {"dropped": None}
    assert "nothing was done" in cli.run("namespace", "drop", "sales", "--if-exists").stderr


def test_zones(cli: Cli) -> None:
    made = cli.json("zone", "create", "fast", "--racks", "a,b", "--racks", "c", "--tablet-bytes", "1048576")
    assert made == {
        "created": True,
        "name": "fast",
        "replicas": 1,
        "min_replicas": 1,
        "racks": ["a", "b", "c"],
        "placement": "tablets",
        "tablet_bytes": 2**20,
        "tables": 0,
        "is_default": False,
    }
    assert "zone 'fast' exists already" in cli.refused("zone", "create", "fast")
    assert cli.json("zone", "create", "fast", "--if-not-exists")["created"] is False
    said = cli.done("zone", "create", "ringed", "--placement", "ring")
    assert said == "created ringed, 1 replica, tablets of 1.0 GiB\n"
    cli.done("table", "create", "t", "--key", "id string", "--cells", "c", "--zone", "fast")
    assert [(each["name"], each["tables"]) for each in cli.lines("zone", "list")] == [
        ("default", 0),
        ("fast", 1),
        ("ringed", 0),
    ]
    shown = cli.done("zone", "list")
    for word in ("a, b, c", "1.0 MiB", "ring", "any", "default"):
        assert word in shown
    assert "table 't' is in it" in cli.refused("zone", "drop", "fast")
    changes = ("--any-rack", "--tablet-bytes", "2097152", "--default", "--rename", "quick")
    said = cli.done("zone", "alter", "fast", *changes)
    assert said == "altered quick, 1 replica, tablets of 2.0 MiB, the default zone\n"
    found = cli.json("zone", "alter", "quick", "--racks", "d")
    assert (found["racks"], found["tablet_bytes"], found["is_default"]) == (["d"], 2**21, True)
    assert "it is the default zone" in cli.refused("zone", "drop", "quick")
    assert cli.json("zone", "drop", "default") == {"dropped": "default"}
    assert "no zone 'quik'; did you mean 'quick'?" in cli.refused("zone", "drop", "quik")
    assert cli.json("zone", "drop", "quik", "--if-exists") == {"dropped": None}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["create", "z", "--replicas", "3"], "a store of one process has one replica"),
        (["create", "z", "--min-replicas", "2"], "min_replicas 2"),
        (["create", "z", "--placement", "rin"], "is not one of tablets, ring; did you mean 'ring'?"),
        (["create", "z", "--tablet-bytes", "5"], "tablet_bytes 5"),
        (["create", "z", "--racks", "a,,b"], "a name between commas is empty"),
        (["alter", "default"], "nothing is to be altered: say what, as in --tablet-bytes 268435456"),
        (["alter", "default", "--replicas", "2"], "a cluster has more"),
        (["alter", "default", "--racks", "a", "--any-rack"], "say --racks or --any-rack, not both"),
        (["alter", "defalt", "--default"], "did you mean 'default'?"),
    ],
)
def test_zones_that_are_refused(users: Cli, words: list[str], message: str) -> None:
    before = users.lines("zone", "list")
    assert message in users.refused("zone", *words)
    assert users.lines("zone", "list") == before


def test_names_with_markup(cli: Cli) -> None:
    cli.done("namespace", "create", "br[/b]n")
    cli.done("zone", "create", "br[/b]z", "--racks", "[red]r")
    assert "br[/b]n" in cli.done("namespace", "list")
    for words in ("br[/b]z", "[red]r"):
        assert words in cli.done("zone", "list")


def test_there_must_be_a_store_to_look_at(cli: Cli) -> None:
    for kind in ("namespace", "zone"):
        assert "no store in" in cli.refused(kind, "list")
        assert "no store in" in cli.refused(kind, "drop", "x")
