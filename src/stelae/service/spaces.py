"""Namespaces and zones as values: what is asked for when they are made, altered or dropped, and what is known of them.

They are asked for and changed by two operations, `Backend.spaces` and `Backend.change_spaces`.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from stelae.model.public import public


class CreateNamespaceAsk(msgspec.Struct, frozen=True, tag="create-namespace"):
    name: str
    if_not_exists: bool = False


class DropNamespaceAsk(msgspec.Struct, frozen=True, tag="drop-namespace"):
    """Refused while a table is in it."""

    name: str
    if_exists: bool = False


class CreateZoneAsk(msgspec.Struct, frozen=True, tag="create-zone"):
    """`placement`: "tablets" or "ring". `tablet_bytes` None: what zones have unless something is said. `is_default`:
    tables that name no zone go there from now on."""

    name: str
    replicas: int = 1
    min_replicas: int = 1
    racks: tuple[str, ...] = ()
    placement: str = "tablets"
    tablet_bytes: int | None = None
    is_default: bool = False
    if_not_exists: bool = False


class AlterZoneAsk(msgspec.Struct, frozen=True, tag="alter-zone"):
    """All changes happen together, or not at all. What is None stays as it is; the default zone stays the default one
    until another is."""

    name: str
    replicas: int | None = None
    min_replicas: int | None = None
    racks: tuple[str, ...] | None = None
    tablet_bytes: int | None = None
    is_default: bool = False
    rename: str | None = None


class DropZoneAsk(msgspec.Struct, frozen=True, tag="drop-zone"):
    """Refused while a table is in it, and of the default zone."""

    name: str
    if_exists: bool = False


SpacesAsk: TypeAlias = CreateNamespaceAsk | DropNamespaceAsk | CreateZoneAsk | AlterZoneAsk | DropZoneAsk


@public("ZoneInfo")
class ZoneInfo(msgspec.Struct, frozen=True):
    """How many replicas the tables of a zone have, how many of them a write needs, on which racks (none: any), and how
    large their tablets grow. `tables`: how many are in it. `is_default`: where tables go that name no zone."""

    name: str
    replicas: int
    min_replicas: int
    racks: tuple[str, ...]
    placement: str
    tablet_bytes: int
    tables: int
    is_default: bool


class SpacesInfo(msgspec.Struct, frozen=True):
    """All of them, in the order of their names."""

    namespaces: tuple[str, ...]
    zones: tuple[ZoneInfo, ...]
