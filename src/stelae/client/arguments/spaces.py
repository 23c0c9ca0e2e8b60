"""What users say of namespaces and zones, as one request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stelae.client.arguments.declarations import names_given
from stelae.model.errors import InvalidArgument
from stelae.model.values import show
from stelae.service.spaces import AlterZoneAsk, CreateZoneAsk


def check_given_name(kind: str, name: object) -> None:
    """`kind`: of what, for the message."""
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f"the name of a {kind} is text, not {show(name)}")


def create_zone_ask(
    name: str,
    *,
    replicas: int,
    min_replicas: int,
    racks: Sequence[str] | None,
    placement: str,
    tablet_bytes: int | None,
    default: bool,
    if_not_exists: bool,
) -> CreateZoneAsk:
    check_given_name("zone", name)
    _check_numbers(name, replicas=replicas, min_replicas=min_replicas, tablet_bytes=tablet_bytes)
    if not isinstance(placement, str):
        raise InvalidArgument(f"zone {name!r}: placement= is 'tablets' or 'ring', not {show(placement)}")
    return CreateZoneAsk(
        name=name,
        replicas=replicas,
        min_replicas=min_replicas,
        racks=names_given("racks", racks),
        placement=placement,
        tablet_bytes=tablet_bytes,
        is_default=bool(default),
        if_not_exists=bool(if_not_exists),
    )


def alter_zone_ask(
    name: str,
    *,
    replicas: int | None,
    min_replicas: int | None,
    racks: Sequence[str] | None,
    tablet_bytes: int | None,
    default: bool,
    rename: str | None,
) -> AlterZoneAsk:
    check_given_name("zone", name)
    _check_numbers(name, replicas=replicas, min_replicas=min_replicas, tablet_bytes=tablet_bytes)
    if rename is not None:
        check_given_name("zone", rename)
    ask = AlterZoneAsk(
        name=name,
        replicas=replicas,
        min_replicas=min_replicas,
        racks=None if racks is None else names_given("racks", racks),
        tablet_bytes=tablet_bytes,
        is_default=bool(default),
        rename=rename,
    )
    if ask == AlterZoneAsk(name):
        raise InvalidArgument(f"zone {name!r}: nothing is to be altered: say what, as in tablet_bytes=2**28")
    return ask


def _check_numbers(zone: str, **numbers: Any) -> None:
    for name, value in numbers.items():
        if value is not None and type(value) is not int:
            raise InvalidArgument(f"zone {zone!r}: {name}= is a whole number, not {show(value)}")
