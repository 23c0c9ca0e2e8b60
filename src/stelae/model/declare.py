"""How users say a table: names and texts in, a checked schema with ids out.

    columns("profile", {"name": "string", "age": "int32 not null default 0"}, purge="max-history=3")
    cells("events", families=["click", "view"])

A column's text is its type, then optionally `not null` and `default LITERAL`, in that order; literals are written as in
predicates. Ids are given in the order of mention: key columns first, then each group and its members.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count

import msgspec

from stelae.model.errors import InvalidArgument, InvalidSchema
from stelae.model.ids import ColumnId, GroupId, SchemaVersion
from stelae.model.limits import DEFAULT_LIMITS, Limits
from stelae.model.predicate.binding import check_types
from stelae.model.predicate.expr import Compare, Expr
from stelae.model.predicate.literals import Literal
from stelae.model.predicate.parser import parse
from stelae.model.public import public
from stelae.model.purge import parse_purge
from stelae.model.schema import (
    WILDCARD,
    CellsGroup,
    Column,
    ColumnsGroup,
    Family,
    Group,
    GroupOptions,
    KeyColumn,
    TableSchema,
)
from stelae.model.schema_checks import check_schema
from stelae.model.types import ColumnType, KeyType, parse_type_prefix
from stelae.model.values import Value, coerce, show

_NOT_NULL = re.compile(r"\s*not\s+null\b", re.IGNORECASE)
_DEFAULT = re.compile(r"\s*default\b\s*(.+)", re.IGNORECASE | re.DOTALL)


class ColumnSpec(msgspec.Struct, frozen=True):
    """A column as declared: no id yet. Its text is how it is declared."""

    name: str
    type: ColumnType
    nullable: bool = True
    default: Value = None

    def __str__(self) -> str:
        return str(Column(ColumnId(0), self.name, self.type, self.nullable, self.default))


class ColumnsSpec(msgspec.Struct, frozen=True):
    name: str
    columns: tuple[ColumnSpec, ...]
    options: GroupOptions


class CellsSpec(msgspec.Struct, frozen=True):
    name: str
    families: tuple[str, ...]
    wildcard: bool
    options: GroupOptions


GroupSpec = ColumnsSpec | CellsSpec


@public("columns")
def columns(
    name: str,
    columns: Mapping[str, str],
    *,
    purge: str | None = None,
    compression: str = "zstd",
    block_bytes: int | None = None,
    in_memory: bool = False,
    bloom: bool = True,
) -> ColumnsSpec:
    """A group of typed columns, stored together."""
    if not isinstance(columns, Mapping):
        raise InvalidSchema(f"group {show(name)}: give the columns as a dict of name to type, not {show(columns)}")
    _check_text("the name of a group", name)
    options = _options(purge, compression, block_bytes, in_memory, bloom)
    return ColumnsSpec(name, tuple(parse_column(column, text) for column, text in columns.items()), options)


@public("cells")
def cells(
    name: str,
    families: Iterable[str] | str = WILDCARD,
    *,
    purge: str | None = None,
    compression: str = "zstd",
    block_bytes: int | None = None,
    in_memory: bool = False,
    bloom: bool = True,
) -> CellsSpec:
    """A group of families of cells, `family:qualifier` to bytes; "*" takes every family no other group names."""
    _check_text("the name of a group", name)
    if isinstance(families, Mapping | bytes) or not isinstance(families, Iterable):
        raise InvalidSchema(f"group {name!r}: give the families as a list of names or as '*', not {show(families)}")
    names = (families,) if isinstance(families, str) else tuple(families)
    for family in names:
        _check_text(f"group {name!r}: the name of a family", family)
    wildcard = names == (WILDCARD,)
    options = _options(purge, compression, block_bytes, in_memory, bloom)
    return CellsSpec(name, () if wildcard else names, wildcard, options)


def _options(
    purge: str | None, compression: str, block_bytes: int | None, in_memory: bool, bloom: bool
) -> GroupOptions:
    plain = GroupOptions(compression=compression, in_memory=in_memory, bloom=bloom)
    return GroupOptions(
        compression=compression,
        block_bytes=plain.block_bytes if block_bytes is None else block_bytes,
        in_memory=in_memory,
        bloom=bloom,
        purge=None if purge is None else parse_purge(purge),
    )


def _check_text(what: str, given: object) -> None:
    if not isinstance(given, str):
        raise InvalidSchema(f"{what} is text, not {show(given)}")


def parse_column(name: str, text: str) -> ColumnSpec:
    """`TYPE [not null] [default LITERAL]`."""
    _check_text("the name of a column", name)
    if not isinstance(text, str):
        raise InvalidSchema(f"column {name!r}: give its type as text, not {show(text)}")
    try:
        type_, rest = parse_type_prefix(text)
    except InvalidSchema as error:
        raise InvalidSchema(f"column {name!r}: {error}") from None
    not_null = _NOT_NULL.match(rest)
    rest = rest[not_null.end() :] if not_null else rest
    default = _DEFAULT.fullmatch(rest)
    if not default and rest.strip():
        raise InvalidSchema(
            f"column {name!r}: {rest.strip()!r} is not understood; "
            "after the type may stand 'not null' and 'default VALUE'"
        )
    value = parse_default(name, type_, default[1]) if default else None
    return ColumnSpec(name, type_, nullable=not not_null, default=value)


def parse_default(name: str, type_: ColumnType, text: str) -> Value:
    """A default is read as the right side of a comparison with its column is, so both mean the same."""
    try:
        comparison = parse(f"`x` = {text}")
        bound = check_types(comparison, {"x": type_})
        literal = bound.literal if isinstance(bound, Compare) else _single(comparison)
        return coerce(type_, literal.value, "it")
    except InvalidArgument as error:
        reason = str(error).partition("\n")[0]
        raise InvalidSchema(f"column {name!r}: default {text.strip()} does not fit {type_}: {reason}") from None


def _single(expr: Expr) -> Literal:
    if not isinstance(expr, Compare):
        raise InvalidArgument("it is not a single value")
    return expr.literal


def key_columns(key: Mapping[str, str], ids: Iterator[int]) -> tuple[KeyColumn, ...]:
    if not isinstance(key, Mapping):
        raise InvalidSchema(f"give the key as a dict of column to type, not {show(key)}")
    found = []
    for name, text in key.items():
        spec = parse_column(name, text)
        if spec.default is not None:
            raise InvalidSchema(f"key column {name!r}: a key column has no default")
        if not isinstance(spec.type, KeyType):
            raise InvalidSchema(f"key column {name!r}: {spec.type} cannot be a key")
        found.append(KeyColumn(ColumnId(next(ids)), name, spec.type))
    return tuple(found)


def group_of(spec: GroupSpec, ids: Iterator[int]) -> Group:
    """The group with ids given to it and its members."""
    id_ = GroupId(next(ids))
    match spec:
        case ColumnsSpec(name, columns, options):
            members = tuple(Column(ColumnId(next(ids)), c.name, c.type, c.nullable, c.default) for c in columns)
            return ColumnsGroup(id_, name, members, options)
        case CellsSpec(name, families, wildcard, options):
            named = tuple(Family(ColumnId(next(ids)), family) for family in families)
            return CellsGroup(id_, name, named, wildcard, options)
        case _:
            raise InvalidSchema(f"a group is said by columns(...) or cells(...), not by {show(spec)}")


def declare(
    key: Mapping[str, str],
    groups: Sequence[GroupSpec],
    *,
    hashed: bool = False,
    limits: Limits = DEFAULT_LIMITS,
) -> TableSchema:
    """A checked schema; InvalidSchema names what is wrong."""
    if not isinstance(groups, list | tuple):
        raise InvalidSchema(f"give the groups as a list of columns(...) and cells(...), not {show(groups)}")
    if type(hashed) is not bool:
        raise InvalidSchema(f"hashed is {show(hashed)}, not True or False")
    ids = count(1)
    found_key = key_columns(key, ids)
    found_groups = tuple(group_of(spec, ids) for spec in groups)
    schema = TableSchema(SchemaVersion(1), found_key, found_groups, hashed, next(ids) - 1)
    return check_schema(schema, limits)
