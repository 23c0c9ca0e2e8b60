"""Namespaces and zones: made, shown, altered and dropped, in one process and in event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stelae
from tests.client.places import Place

CELLS = [stelae.cells("c")]


def test_a_new_store_has_two_namespaces_and_a_zone(db: stelae.Database) -> None:
    assert db.namespaces() == ["default", "system"]
    (zone,) = db.zones().values()
    assert (zone.name, zone.replicas, zone.min_replicas, zone.racks) == ("default", 1, 1, ())
    assert (zone.placement, zone.tablet_bytes, zone.tables, zone.is_default) == ("tablets", 2**30, 0, True)


def test_a_namespace_is_made_filled_emptied_and_dropped(db: stelae.Database) -> None:
    db.create_namespace("sales")
    db.create_namespace("Sales", if_not_exists=True)
    with pytest.raises(stelae.AlreadyExists, match="namespace 'SALES' exists already"):
        db.create_namespace("SALES")
    db.create_table("sales.orders", {"id": "string"}, CELLS)
    assert db.tables() == ["sales.orders"]
    with pytest.raises(stelae.InvalidSchema, match="'sales' cannot be dropped: table 'orders' is in it"):
        db.drop_namespace("sales")
    db.alter_table("sales.orders", rename="default.orders")
    db.drop_namespace("sales")
    assert db.namespaces() == ["default", "system"]
    with pytest.raises(stelae.NotFound, match="no namespace 'sales'"):
        db.drop_namespace("sales")
    db.drop_namespace("sales", if_exists=True)
    with pytest.raises(stelae.InvalidSchema, match="'default' cannot be dropped"):
        db.drop_namespace("default")


def test_a_table_of_a_namespace_that_is_gone_is_recalled_into_the_default_one(db: stelae.Database) -> None:
    db.create_table("sales.orders", {"id": "string"}, CELLS).put({"id": "ann"})
    db.drop_table("sales.orders")
    db.drop_namespace("sales")
    assert db.recall_table("sales.orders").name == "orders"
    assert db.table("orders").exists("ann")


def test_a_zone_is_made_altered_and_dropped(db: stelae.Database) -> None:
    made = db.create_zone("fast", racks=["a", "b"], placement="ring", tablet_bytes=2**20)
    assert made == db.zones()["fast"]
    assert (made.racks, made.placement, made.tablet_bytes, made.is_default) == (("a", "b"), "ring", 2**20, False)
    assert db.create_zone("FAST", if_not_exists=True) == made
    with pytest.raises(stelae.AlreadyExists, match="zone 'fast' exists already"):
        db.create_zone("fast")
    altered = db.alter_zone("fast", tablet_bytes=2**21, racks=[], rename="quick")
    assert (altered.name, altered.racks, altered.tablet_bytes, altered.placement) == ("quick", (), 2**21, "ring")
    assert list(db.zones()) == ["default", "quick"]
    db.drop_zone("quick")
    db.drop_zone("quick", if_exists=True)
    with pytest.raises(stelae.NotFound, match="no zone 'quick'"):
        db.drop_zone("quick")


def test_tables_live_in_zones(db: stelae.Database) -> None:
    db.create_zone("fast", default=True)
    assert [zone.name for zone in db.zones().values() if zone.is_default] == ["fast"]
    db.create_table("a", {"id": "string"}, CELLS)
    db.create_table("b", {"id": "string"}, CELLS, zone="default")
    assert (db.describe("a")["zone"], db.describe("b")["zone"]) == ("fast", "default")
    assert {name: zone.tables for name, zone in db.zones().items()} == {"default": 1, "fast": 1}
    with pytest.raises(stelae.InvalidSchema, match="'fast' cannot be dropped: it is the default zone"):
        db.drop_zone("fast")
    db.alter_zone("default", default=True)
    with pytest.raises(stelae.InvalidSchema, match="'fast' cannot be dropped: table 'a' is in it"):
        db.drop_zone("fast")
    db.alter_table("a", zone="default")
    db.drop_zone("fast")
    assert db.zones()["default"].tables == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda db: db.alter_zone("fst", tablet_bytes=2**21),
        lambda db: db.drop_zone("fst"),
        lambda db: db.create_table("t", {"id": "string"}, CELLS, zone="fst"),
    ],
)
def test_the_nearest_zone_is_suggested(db: stelae.Database, call: Callable[[stelae.Database], Any]) -> None:
    db.create_zone("fast")
    with pytest.raises(stelae.NotFound, match="no zone 'fst'; did you mean 'fast'"):
        call(db)


def test_the_nearest_namespace_is_suggested(db: stelae.Database) -> None:
    db.create_namespace("sales")
    with pytest.raises(stelae.NotFound, match="no namespace 'sale'; did you mean 'sales'"):
        db.drop_namespace("sale")


def test_a_store_of_one_process_has_one_replica_of_each_tablet(tmp_path: Path) -> None:
    with stelae.open(tmp_path / "data") as db:
        with pytest.raises(stelae.InvalidArgument, match="zone 'fast': replicas 3: a store of one process has one"):
            db.create_zone("fast", replicas=3, min_replicas=2)
        with pytest.raises(stelae.InvalidArgument, match="zone 'default': replicas 2: a store of one process has one"):
            db.alter_zone("default", replicas=2)
        assert list(db.zones()) == ["default"]
        assert db.alter_zone("default", replicas=1).replicas == 1


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"replicas": 1.5}, "replicas= is a whole number, not 1.5"),
        ({"replicas": True}, "replicas= is a whole number"),
        ({"replicas": 0}, "replicas 0 is not a whole number from 1 to 16"),
        ({"min_replicas": 2}, "min_replicas 2 is not a whole number from 1 to 1"),
        ({"tablet_bytes": 5}, "tablet_bytes 5"),
        ({"tablet_bytes": "1GiB"}, "tablet_bytes= is a whole number"),
        ({"racks": "abc"}, "racks= is a list of names"),
        ({"racks": ["a", 7]}, "7"),
        ({"racks": ["a", "a"]}, "rack 'a' is there twice"),
        ({"placement": "rings"}, "placement 'rings'.* is not one of tablets, ring; did you mean 'ring'"),
        ({"placement": 1}, "placement= is 'tablets' or 'ring'"),
    ],
    ids=str,
)
def test_zones_that_cannot_be(db: stelae.Database, arguments: dict[str, Any], word: str) -> None:
    with pytest.raises((stelae.InvalidArgument, stelae.InvalidSchema), match=word):
        db.create_zone("z", **arguments)
    assert list(db.zones()) == ["default"]


def test_an_alteration_of_nothing_and_names_that_are_none(db: stelae.Database) -> None:
    with pytest.raises(stelae.InvalidArgument, match="nothing is to be altered"):
        db.alter_zone("default")
    calls: tuple[Callable[[Any], Any], ...] = (
        db.create_namespace,
        db.drop_namespace,
        db.create_zone,
        db.drop_zone,
        lambda name: db.alter_zone(name, default=True),
        lambda name: db.alter_zone("default", rename=name),
    )
    for call in calls:
        for name in (7, ""):
            with pytest.raises(stelae.InvalidArgument, match="is text"):
                call(name)
    for call in (db.create_namespace, db.create_zone):
        with pytest.raises(stelae.InvalidSchema, match="a name has no dot"):
            call("a.b")


def test_all_changes_of_a_zone_happen_or_none(db: stelae.Database) -> None:
    db.create_zone("fast")
    with pytest.raises(stelae.AlreadyExists):
        db.alter_zone("fast", tablet_bytes=2**21, default=True, rename="default")
    assert (db.zones()["fast"].tablet_bytes, db.zones()["fast"].is_default) == (2**30, False)


def test_they_are_there_again_after_reopening(tmp_path: Path) -> None:
    with stelae.open(tmp_path / "s") as db:
        db.create_namespace("sales")
        db.create_zone("fast", racks=["a", "b"], default=True)
        spaces = db.namespaces(), db.zones()
    with stelae.open(tmp_path / "s", read_only=True) as db:
        assert (db.namespaces(), db.zones()) == spaces
        with pytest.raises(stelae.PermissionDenied):
            db.create_namespace("x")
        with pytest.raises(stelae.PermissionDenied):
            db.drop_zone("fast")


def test_in_an_event_loop(place: Place) -> None:
    async def main() -> None:
        async with place.open_async() as db:
            await db.create_namespace("sales")
            assert await db.namespaces() == ["default", "sales", "system"]
            await db.drop_namespace("sales")
            made = await db.create_zone("fast", tablet_bytes=2**20)
            assert (await db.alter_zone("fast", default=True)).is_default
            assert (await db.zones())["fast"].tablet_bytes == made.tablet_bytes
            await db.alter_zone("default", default=True)
            await db.drop_zone("fast")
            assert list(await db.zones()) == ["default"]

    asyncio.run(main())
