"""Whether a schema is valid: every rule that it holds."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from stelae.model import types as t
from stelae.model.errors import InvalidArgument, InvalidSchema
from stelae.model.hybrid import TXN_MAX, TXN_MIN
from stelae.model.limits import DEFAULT_LIMITS, Limits
from stelae.model.purge import PastPolicy, PurgePolicy, parse_purge
from stelae.model.schema import WILDCARD, CellsGroup, Column, ColumnsGroup, Group, TableSchema
from stelae.model.values import coerce, show

COMPRESSIONS = ("zstd", "lz4", "none")
BLOCK_BYTES_MIN = 4 * 1024
BLOCK_BYTES_MAX = 1024 * 1024 * 1024
RESERVED = "row"
KEYS_PAST_MAX = 128


def check_schema(schema: TableSchema, limits: Limits = DEFAULT_LIMITS) -> TableSchema:
    """The schema itself, if it is valid; else InvalidSchema naming the culprit and the rule. Nothing is applied in
    part: an invalid schema is rejected whole."""
    _check_names(schema, limits)
    _check_key(schema, limits)
    _check_groups(schema, limits)
    _check_wildcard(schema)
    _check_ids(schema)
    return schema


def _check_key(schema: TableSchema, limits: Limits) -> None:
    if not 1 <= len(schema.key) <= limits.key_columns_max:
        raise InvalidSchema(f"a key has from 1 to {limits.key_columns_max} columns, not {len(schema.key)}")
    for column in schema.key:
        if not isinstance(column.type, t.KeyType):
            raise InvalidSchema(f"key column {column.name!r}: {column.type} cannot be a key")
        _check_type(f"key column {column.name!r}", column.type)


def _check_groups(schema: TableSchema, limits: Limits) -> None:
    if not 1 <= len(schema.groups) <= limits.groups_max:
        raise InvalidSchema(f"a table has from 1 to {limits.groups_max} groups, not {len(schema.groups)}")
    for group in schema.groups:
        _check_options(group)
        match group:
            case ColumnsGroup():
                if not 1 <= len(group.columns) <= limits.columns_max:
                    raise InvalidSchema(
                        f"group {group.name!r}: has {len(group.columns)} columns, allowed are 1 to {limits.columns_max}"
                    )
                for column in group.columns:
                    _check_column(column)
            case CellsGroup():
                _check_cells(group, limits)


def _check_cells(group: CellsGroup, limits: Limits) -> None:
    if group.wildcard and group.families:
        raise InvalidSchema(
            f"group {group.name!r}: the wildcard stands alone, not beside family {group.families[0].name!r}"
        )
    if not group.wildcard and not 1 <= len(group.families) <= limits.families_max:
        raise InvalidSchema(
            f"group {group.name!r}: has {len(group.families)} families, allowed are 1 to {limits.families_max}, or '*'"
        )


def _check_options(group: Group) -> None:
    options = group.options
    if options.compression not in COMPRESSIONS:
        raise InvalidSchema(
            f"group {group.name!r}: compression {show(options.compression)} is not one of {', '.join(COMPRESSIONS)}"
        )
    if type(options.block_bytes) is not int or not BLOCK_BYTES_MIN <= options.block_bytes <= BLOCK_BYTES_MAX:
        raise InvalidSchema(
            f"group {group.name!r}: block_bytes {show(options.block_bytes)} "
            f"is not a whole number from {BLOCK_BYTES_MIN} to {BLOCK_BYTES_MAX}"
        )
    for name, value in (("in_memory", options.in_memory), ("bloom", options.bloom)):
        if type(value) is not bool:
            raise InvalidSchema(f"group {group.name!r}: {name} is {show(value)}, not True or False")
    _check_purge(group)


def _check_purge(group: Group) -> None:
    _check_policies(f"group {group.name!r}", group.options.purge, group.options.past)
    _check_policies(f"keys put alone in group {group.name!r}", None, group.options.keys_past)
    if len(group.options.keys_past) > KEYS_PAST_MAX:
        raise InvalidSchema(
            f"group {group.name!r}: keys put alone would have more than {KEYS_PAST_MAX} past purge policies, and each "
            "is kept, since what it purged is gone for good; copy the table to begin anew"
        )
    for family in group.families if isinstance(group, CellsGroup) else ():
        _check_policies(f"family {family.name!r}", None, family.past)


def _check_policies(what: str, now: PurgePolicy | None, past: tuple[PastPolicy, ...]) -> None:
    """Policies are stored as their text."""
    for purge in (now, *(each.policy for each in past)):
        if purge is None:
            continue
        if not isinstance(purge, PurgePolicy):
            raise InvalidSchema(f"{what}: {show(purge)} is no purge policy")
        if parse_purge(str(purge)) != purge:
            raise InvalidSchema(f"{what}: purge policy {str(purge)!r} is not in its canonical form")
    ends = [TXN_MIN - 1, *(each.until for each in past), TXN_MAX]
    if any(later <= end for end, later in pairwise(ends)):
        raise InvalidSchema(f"{what}: the past purge policies are not in the order of their ends")


def _check_column(column: Column) -> None:
    _check_type(f"column {column.name!r}", column.type)
    if column.default is None:
        return
    if not isinstance(column.type, t.KeyType):
        raise InvalidSchema(f"column {column.name!r}: {column.type} takes no default")
    try:
        kept = coerce(column.type, column.default, f"column {column.name!r} default")
    except InvalidArgument as error:
        raise InvalidSchema(str(error)) from None
    if kept != column.default and kept == kept:
        raise InvalidSchema(
            f"column {column.name!r}: default {show(column.default)} is not in its kept form {show(kept)}"
        )


def _check_type(what: str, type_: t.ColumnType) -> None:
    """Types are stored as their text."""
    try:
        known = t.parse_type(str(type_)) == type_
    except InvalidSchema as error:
        raise InvalidSchema(f"{what}: {error}") from None
    if not known:
        raise InvalidSchema(f"{what}: {show(type_)} is no column type")


def _names(schema: TableSchema) -> Iterator[tuple[str, str]]:
    for key in schema.key:
        yield f"key column {show(key.name)}", key.name
    for group in schema.groups:
        match group:
            case ColumnsGroup():
                yield from ((f"column {show(c.name)} of group {group.name!r}", c.name) for c in group.columns)
            case CellsGroup():
                yield from ((f"family {show(f.name)} of group {group.name!r}", f.name) for f in group.families)


def _check_names(schema: TableSchema, limits: Limits) -> None:
    _check_distinct([(f"group {show(group.name)}", group.name) for group in schema.groups], limits)
    members = list(_names(schema))
    _check_distinct(members, limits)
    for what, name in members:
        if name.casefold() == RESERVED:
            raise InvalidSchema(f"{what}: {RESERVED!r} is the encoded key in every predicate, and no column's name")


def _check_distinct(named: list[tuple[str, str]], limits: Limits) -> None:
    seen: dict[str, str] = {}
    for what, name in named:
        check_name(what, name, limits)
        earlier = seen.setdefault(name.casefold(), what)
        if earlier is not what:
            raise InvalidSchema(f"{what} has the same name as {earlier} (case does not count)")


def check_name(what: str, name: str, limits: Limits = DEFAULT_LIMITS) -> str:
    """Names of groups, columns and families: printable text, no colon, no leading underscore, not '*'."""
    problem = _name_problem(name, limits)
    if problem:
        raise InvalidSchema(f"{what}: {problem}")
    return name


def _name_problem(name: object, limits: Limits) -> str:
    if not isinstance(name, str):
        return "a name is text"
    if not name:
        return "a name has at least one character"
    if ":" in name:
        return "a name has no colon"
    if name.startswith("_"):
        return "names with a leading underscore are reserved"
    if name == WILDCARD or name != name.strip() or not name.isprintable():
        return "a name is printable text, not '*', with no space at its ends"
    if len(name.encode()) > limits.name_bytes_max:
        return f"a name has at most {limits.name_bytes_max} bytes"
    return ""


def _check_wildcard(schema: TableSchema) -> None:
    wild = [group.name for group in schema.groups if isinstance(group, CellsGroup) and group.wildcard]
    if len(wild) > 1:
        raise InvalidSchema(
            f"groups {wild[0]!r} and {wild[1]!r} are both the wildcard: a family could be in either; at most one may be"
        )


def _check_ids(schema: TableSchema) -> None:
    members: list[tuple[str, int]] = [(f"key column {c.name!r}", c.id) for c in schema.key]
    for group in schema.groups:
        members.append((f"group {group.name!r}", group.id))
        parts = group.columns if isinstance(group, ColumnsGroup) else group.families
        members.extend((f"{part.name!r} of group {group.name!r}", part.id) for part in parts)
    seen: dict[int, str] = {}
    for what, id_ in members:
        if not 1 <= id_ <= schema.last_id:
            raise InvalidSchema(f"{what}: id {id_} is not from 1 to the last id {schema.last_id}")
        earlier = seen.setdefault(id_, what)
        if earlier is not what:
            raise InvalidSchema(f"{what} has the same id {id_} as {earlier}")
