"""What the checks of small and of columnar blocks share: names, sizes, NOT NULL, and how a row is shown."""

from __future__ import annotations

from stelae.model.errors import InvalidArgument, InvalidSchema
from stelae.model.ids import Row
from stelae.model.keys.scalar import KeyCodec
from stelae.model.limits import Limits
from stelae.model.schema import Column, ColumnsGroup, Group, TableSchema
from stelae.model.schema_checks import RESERVED, check_name
from stelae.model.values import show


def shown_row(codec: KeyCodec, row: bytes) -> str:
    """The key as the user said it; the bytes, if they are of no key."""
    try:
        key = codec.decode(Row(row))
    except InvalidArgument:
        return show(row)
    return show(key[0] if len(key) == 1 else key)


def check_size(what: str, size: int, limit: int) -> None:
    if size > limit:
        raise InvalidArgument(f"{what} has {size} bytes; at most {limit} are allowed")


def check_family(schema: TableSchema, family: str, limits: Limits) -> None:
    """The family is declared, or has a name that could be and there is a wildcard to take it."""
    if not schema.family_group(family).wildcard:
        return
    try:
        check_name(f"family {show(family)}", family, limits)
    except InvalidSchema as error:
        raise InvalidArgument(str(error)) from None
    if family.casefold() == RESERVED:
        raise InvalidArgument(f"family {family!r}: {RESERVED!r} is the encoded key in every predicate")


def required_columns(group: Group) -> list[Column]:
    """What must be in every put that touches the group."""
    columns = group.columns if isinstance(group, ColumnsGroup) else ()
    return [column for column in columns if not column.nullable and column.default is None]


def missing_column(column: Column, group: Group) -> InvalidArgument:
    return InvalidArgument(
        f"column {column.name!r} is NOT NULL without a default: a put that touches group {group.name!r} must write it"
    )


def null_written(column: Column) -> InvalidArgument:
    return InvalidArgument(f"column {column.name!r} is NOT NULL, and NULL is written to it")
