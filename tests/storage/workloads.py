"""Small schemas, blocks and schema changes that meet each other often, by hypothesis or by a seed.

Everything is made of one act, `choose` one of several; the first is the simplest, so that failures shrink towards it.
`random.Random(seed).choice` is such an act; the strategies at the end give hypothesis the same generators:

    blocks(schema, rows, times)     ->  a strategy
    choose_block(rng.choice, schema, rows, times)  ->  a block

Commits start at `START` and go on by `later_txn`; ages in policies and the explicit times of `TIMES` are of the same
few milliseconds, so policies come true in the middle of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Protocol, TypeVar

from hypothesis import strategies as st
from msgspec.structs import replace

from stelae.model import types as t
from stelae.model.declare import CellsSpec, ColumnsSpec, GroupSpec, cells, columns, declare, parse_column
from stelae.model.hybrid import micros_of, millis_of, pack
from stelae.model.ids import TS_MAX, TS_MIN, ColumnId, GroupId, Micros, Row, SchemaVersion, Txn
from stelae.model.mutation import Cell, Columns, Erase, EraseVersion, Mutation, Put, PutCell, WholeFamily, WholeRow
from stelae.model.purge import parse_purge
from stelae.model.schema import CellsGroup, Column, ColumnsGroup, Family, Group, GroupOptions, TableSchema
from stelae.model.schema_checks import check_schema
from stelae.model.types import widens
from stelae.model.values import Value

T = TypeVar("T")

START = pack(1_700_000_000_000)
_START_US = micros_of(START)
AGES = ("2ms", "10ms", "60ms")
TIMES: tuple[Micros | None, ...] = (
    None,
    None,
    None,
    *(Micros(_START_US + us) for us in (0, -1, -3_000, -20_000, 1_000, 5_000, 5_001, 20_000, 3_600_000_000)),
    Micros(0),
    Micros(-1),
    TS_MIN,
    TS_MAX,
)
STEPS_MS = (1, 0, 0, 3, 20)
GROUPS_MAX = 4

POLICIES: tuple[str | None, ...] = (
    None,
    *(f"max-history={count}" for count in (1, 2, 3)),
    *(f"max-age={age}" for age in AGES),
    *(f"max-history={count} {word} max-age={age}" for word in ("and", "or") for count in (1, 2) for age in AGES[:2]),
    "max-history=1 and max-age=2ms or max-history=3",
    "(max-history=1 or max-age=60ms) and max-age=2ms",
)
KEYS: tuple[dict[str, str], ...] = ({"id": "string"}, {"id": "int64"}, {"area": "string", "place": "int64"})
KEY_VALUES: dict[str, tuple[Value, ...]] = {
    "string": ("a", "b", "", "a\x00", "ab", "b\x00\x01", "ü", "a\U0010ffff"),
    "int64": (0, 1, -1, 7, 2**63 - 1, -(2**63)),
}
COLUMNS = {
    "number": "int32",
    "big": "int64",
    "text": "string",
    "level": "int32 not null default 7",
    "raw": "binary",
    "share": "float64",
    "ratio": "float32",
    "seen": "timestamp",
    "items": "array<int64>",
    "parts": "array<int32>",
}
VALUES: dict[t.ColumnType, tuple[Value, ...]] = {
    t.Int(32): (0, 1, -(2**31), 2**31 - 1),
    t.Int(64): (0, 1, -(2**63), 2**63 - 1),
    t.String(): ("", "x", "ä\x00", "longer than a short string"),
    t.Binary(): (b"", b"x", b"\x00\xff"),
    t.Float(32): (0.0, 0.5, -1.25, float("inf")),
    t.Float(64): (0.0, 0.1, -1e300, float("-inf")),
    t.Timestamp(): (datetime(2024, 5, 6, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)),
    t.Array(t.Int(32)): ([], [1, None, -1]),
    t.Array(t.Int(64)): ([], [2**40, None, -1]),
}
FAMILIES = ("click", "view", "buy")
"""Families a schema may declare, and a wildcard may have: one that becomes declared is met under both."""
WILD_FAMILIES = (*FAMILIES, "wild")
QUALIFIERS = ("q", "r", "")


class Choose(Protocol):
    def __call__(self, options: Sequence[T], /) -> T: ...


def later_txn(choose: Choose, txn: Txn) -> Txn:
    """Of the same millisecond, or a little later."""
    step_ms = choose(STEPS_MS)
    return pack(millis_of(txn) + step_ms) if step_ms else Txn(txn + 1)


def choose_several(choose: Choose, options: Sequence[T], least: int, most: int) -> list[T]:
    """Different ones, in their order."""
    count = choose(range(least, min(most, len(options)) + 1))
    left = list(range(len(options)))
    picked = [left.pop(choose(range(len(left)))) for _ in range(count)]
    return [options[at] for at in sorted(picked)]


def choose_schema(choose: Choose) -> TableSchema:
    names = {"columns": list(COLUMNS), "cells": list(FAMILIES)}
    wildcard = False
    specs: list[GroupSpec] = []
    for number in range(choose((1, 2, 3))):
        kinds = [kind for kind in ("columns", "cells") if names[kind]] + ([] if wildcard else ["wildcard"])
        kind = choose(kinds)
        if kind == "wildcard":
            wildcard = True
            specs.append(cells(f"g{number}", purge=choose(POLICIES)))
            continue
        members = choose_several(choose, names[kind], 1, 4 if kind == "columns" else 2)
        names[kind] = [name for name in names[kind] if name not in members]
        specs.append(_group_spec(f"g{number}", members, choose(POLICIES)))
    return declare(choose(KEYS), specs, hashed=choose((False, True)))


def _group_spec(name: str, members: Sequence[str], purge: str | None) -> ColumnsSpec | CellsSpec:
    if members[0] in COLUMNS:
        return columns(name, {member: COLUMNS[member] for member in members}, purge=purge)
    return cells(name, members, purge=purge)


def choose_rows(choose: Choose, schema: TableSchema) -> list[Row]:
    """A few keys, in the order of their rows, so that blocks meet on them."""
    keys: list[tuple[Value, ...]] = [()]
    for column in schema.key:
        keys = [(*key, value) for key in keys for value in KEY_VALUES[str(column.type)]]
    chosen = choose_several(choose, keys, 5, 12)
    return sorted(schema.codec.encode(schema.codec.check(key)) for key in chosen)


def choose_block(
    choose: Choose, schema: TableSchema, rows: Sequence[Row], times: Sequence[Micros | None] = TIMES
) -> tuple[Mutation, ...]:
    return tuple(choose_mutation(choose, schema, rows, times) for _ in range(choose((1, 2, 3, 4, 5, 6))))


def choose_mutation(
    choose: Choose, schema: TableSchema, rows: Sequence[Row], times: Sequence[Micros | None] = TIMES
) -> Mutation:
    here = [column for group in schema.groups if isinstance(group, ColumnsGroup) for column in group.columns]
    families = families_of(schema)
    row = choose(rows)
    shapes = ["put"] * (4 if here else 0) + ["cell"] * (4 if families else 0) + ["key"]
    match choose([*shapes, "erase", "erase", "erase version"]):
        case "put":
            put = [(column.id, _value(choose, column)) for column in choose_several(choose, here, 1, len(here))]
            return Put(row, tuple(put), choose(times))
        case "cell":
            value = choose((b"x", b"y", b"", b"\x00\xff"))
            return PutCell(row, choose(families), choose(QUALIFIERS), value, choose(times))
        case "key":
            return Put(row, (), choose(times))
        case "erase":
            kinds = ["row", *(["columns"] if here else []), *(["cell", "family"] if families else [])]
            kind = choose(kinds)
            if kind == "row":
                return Erase(row, WholeRow(), choose(times))
            if kind == "family":
                return Erase(row, WholeFamily(choose(families)), choose(times))
            return Erase(row, _target(choose, kind, here, families), choose(times))
        case _:
            kind = choose([*(["columns"] if here else []), *(["cell"] if families else [])])
            # A version of the past is met only at the times that puts are given.
            ts = choose([time for time in times if time is not None] or [_START_US])
            return EraseVersion(row, _target(choose, kind, here, families), ts)


def _target(choose: Choose, kind: str, here: Sequence[Column], families: Sequence[str]) -> Columns | Cell:
    if kind == "columns":
        return Columns(tuple(column.id for column in choose_several(choose, here, 1, len(here))))
    return Cell(choose(families), choose(QUALIFIERS))


def families_of(schema: TableSchema) -> list[str]:
    """Those declared, and where there is a wildcard those it may have."""
    groups = [group for group in schema.groups if isinstance(group, CellsGroup)]
    names = [family.name for group in groups for family in group.families]
    if any(group.wildcard for group in groups):
        names += [name for name in WILD_FAMILIES if name not in names]
    return names


def _value(choose: Choose, column: Column) -> Value:
    options = VALUES[column.type]
    return choose((*options, None) if column.nullable else options)


Groups = tuple[Group, ...]


def _set_purge(schema: TableSchema) -> Iterator[Groups]:
    for group in schema.groups:
        for policy in (None if text is None else parse_purge(text) for text in POLICIES):
            if policy != group.options.purge:
                yield _with(schema, replace(group, options=replace(group.options, purge=policy)))


def _add(kind: type[Group], schema: TableSchema) -> Iterator[Groups]:
    """Names of what was dropped come again: with another id, and without the data."""
    id_ = ColumnId(schema.last_id + 1)
    for group in _groups(schema, kind):
        if isinstance(group, ColumnsGroup):
            yield from (_with(schema, _extended(group, _column(id_, name))) for name in _free(schema, COLUMNS))
        elif not group.wildcard:
            yield from (_with(schema, _extended(group, Family(id_, name))) for name in _free(schema, FAMILIES))


def _drop(kind: type[Group], schema: TableSchema) -> Iterator[Groups]:
    for group in _groups(schema, kind):
        yield from (_with(schema, _without(group, part)) for part in _parts(group) if len(_parts(group)) > 1)


def _rename(kind: type[Group], schema: TableSchema) -> Iterator[Groups]:
    """Columns take names that dropped ones may have had. Families take one that nobody had: what a wildcard has under
    a name that a declared family takes is lost, and no table should be used so."""
    for group in _groups(schema, kind):
        for part in _parts(group):
            names = _free(schema, COLUMNS) if isinstance(part, Column) else [f"renamed{schema.version}"]
            yield from (_with(schema, _replaced(group, replace(part, name=name))) for name in names)


def _widen(schema: TableSchema) -> Iterator[Groups]:
    for group in schema.groups:
        for part in _parts(group):
            if isinstance(part, Column):
                wider = [type_ for type_ in VALUES if type_ != part.type and widens(part.type, type_)]
                yield from (_with(schema, _replaced(group, replace(part, type=type_))) for type_ in wider)


def _move(kind: type[Group], schema: TableSchema) -> Iterator[Groups]:
    for group in _groups(schema, kind):
        for other in _groups(schema, kind):
            if other is not group and not _is_wildcard(other) and len(_parts(group)) > 1:
                yield from (_with(schema, _without(group, part), _extended(other, part)) for part in _parts(group))


def _add_group(schema: TableSchema) -> Iterator[Groups]:
    if len(schema.groups) >= GROUPS_MAX:
        return
    id_, member = GroupId(schema.last_id + 1), ColumnId(schema.last_id + 2)
    name = f"g{id_}"
    for text in (None, "max-history=1", "max-age=10ms"):
        options = GroupOptions(purge=None if text is None else parse_purge(text))
        for free in _free(schema, COLUMNS):
            yield (*schema.groups, ColumnsGroup(id_, name, (_column(member, free),), options))
        for free in _free(schema, FAMILIES):
            yield (*schema.groups, CellsGroup(id_, name, (Family(member, free),), options=options))
        if not any(_is_wildcard(group) for group in schema.groups):
            yield (*schema.groups, CellsGroup(id_, name, wildcard=True, options=options))


def _drop_group(schema: TableSchema) -> Iterator[Groups]:
    if len(schema.groups) > 1:
        yield from (tuple(each for each in schema.groups if each is not group) for group in schema.groups)


# Each gives the groups that every possible change of its kind would make.
_CHANGES: dict[str, Callable[[TableSchema], Iterator[Groups]]] = {
    "set purge": _set_purge,
    "add column": partial(_add, ColumnsGroup),
    "drop column": partial(_drop, ColumnsGroup),
    "rename column": partial(_rename, ColumnsGroup),
    "widen column": _widen,
    "move column": partial(_move, ColumnsGroup),
    "add family": partial(_add, CellsGroup),
    "drop family": partial(_drop, CellsGroup),
    "rename family": partial(_rename, CellsGroup),
    "move family": partial(_move, CellsGroup),
    "add group": _add_group,
    "drop group": _drop_group,
}
ALTERATIONS = tuple(_CHANGES)


def choose_alteration(
    choose: Choose, schema: TableSchema, kinds: Sequence[str] = ALTERATIONS
) -> tuple[str, TableSchema]:
    """One change of these kinds, and the schema it makes; the same schema if none of them is possible."""
    results = {kind: list(_CHANGES[kind](schema)) for kind in kinds}
    possible = [kind for kind in kinds if results[kind]]
    if not possible:
        return "none", schema
    kind = choose(possible)
    groups = choose(results[kind])
    used = [group.id for group in groups] + [part.id for group in groups for part in _parts(group)]
    version = SchemaVersion(schema.version + 1)
    return kind, check_schema(replace(schema, version=version, groups=groups, last_id=max(schema.last_id, *used)))


def _column(id_: ColumnId, name: str) -> Column:
    spec = parse_column(name, COLUMNS[name])
    return Column(id_, spec.name, spec.type, spec.nullable, spec.default)


def _free(schema: TableSchema, names: Sequence[str] | dict[str, str]) -> list[str]:
    taken = {part.name for group in schema.groups for part in _parts(group)} | {column.name for column in schema.key}
    return [name for name in names if name not in taken]


def _groups(schema: TableSchema, kind: type[Group]) -> list[Group]:
    return [group for group in schema.groups if isinstance(group, kind)]


def _parts(group: Group) -> tuple[Column, ...] | tuple[Family, ...]:
    return group.columns if isinstance(group, ColumnsGroup) else group.families


def _is_wildcard(group: Group) -> bool:
    return isinstance(group, CellsGroup) and group.wildcard


def _with(schema: TableSchema, *changed: Group) -> Groups:
    by_id = {group.id: group for group in changed}
    return tuple(by_id.get(group.id, group) for group in schema.groups)


def _of_parts(group: Group, parts: Sequence[Column | Family]) -> Group:
    if isinstance(group, ColumnsGroup):
        return replace(group, columns=tuple(part for part in parts if isinstance(part, Column)))
    return replace(group, families=tuple(part for part in parts if isinstance(part, Family)))


def _without(group: Group, part: Column | Family) -> Group:
    return _of_parts(group, [each for each in _parts(group) if each.id != part.id])


def _extended(group: Group, part: Column | Family) -> Group:
    return _of_parts(group, [*_parts(group), part])


def _replaced(group: Group, part: Column | Family) -> Group:
    return _of_parts(group, [part if each.id == part.id else each for each in _parts(group)])


def _by(draw: st.DrawFn) -> Choose:
    def choose(options: Sequence[T]) -> T:
        return draw(st.sampled_from(options))

    return choose


@st.composite
def txns_after(draw: st.DrawFn, txn: Txn = START) -> Txn:
    return later_txn(_by(draw), txn)


@st.composite
def schemas(draw: st.DrawFn) -> TableSchema:
    return choose_schema(_by(draw))


@st.composite
def row_sets(draw: st.DrawFn, schema: TableSchema) -> list[Row]:
    return choose_rows(_by(draw), schema)


@st.composite
def mutations(
    draw: st.DrawFn, schema: TableSchema, rows: Sequence[Row], times: Sequence[Micros | None] = TIMES
) -> Mutation:
    return choose_mutation(_by(draw), schema, rows, times)


@st.composite
def blocks(
    draw: st.DrawFn, schema: TableSchema, rows: Sequence[Row], times: Sequence[Micros | None] = TIMES
) -> tuple[Mutation, ...]:
    return choose_block(_by(draw), schema, rows, times)


@st.composite
def alterations(draw: st.DrawFn, schema: TableSchema, kinds: Sequence[str] = ALTERATIONS) -> tuple[str, TableSchema]:
    return choose_alteration(_by(draw), schema, kinds)
