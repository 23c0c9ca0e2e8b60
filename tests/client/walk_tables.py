"""What a random walk draws from: tables of all kinds, rows to put into them, and alterations of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import stelae
from stelae.model.schema import CellsGroup, Column, ColumnsGroup, TableSchema
from stelae.storage.checks.rules import required_columns

Key = tuple[Any, ...]

COLUMNS = ("a", "b", "c", "d", "e", "f", "g", "h")
FAMILIES = ("fa", "fb", "fc", "fd")
GROUPS = ("g1", "g2", "g3", "g4", "g5")
QUALIFIERS = ("", "q", "r")
TYPES = (
    "int64",
    "int32",
    "float64",
    "string",
    "binary",
    "bool",
    "decimal(6, 2)",
    "array<int32>",
    "float32",
    "int8",
    "date",
    "timestamp",
    "struct<x: int32, y: string>",
    "map<string, int64>",
    "vector(float32, 2)",
    "int64 not null default 7",
    'string default "d"',
    "int32 default 3",
)
WIDER = {
    "int8": ("int32", "int64"),
    "int32": ("int64",),
    "float32": ("float64",),
    "decimal(6, 2)": ("decimal(8, 2)", "decimal(30, 2)"),
    "array<int32>": ("array<int64>",),
}
POLICIES = (
    "max-history=1",
    "max-history=2",
    "max-history=3",
    "max-age=1h",
    "max-age=1d",
    "max-age=1h and max-history=1",
    "max-age=1h and max-history=2",
    "max-age=30m or max-history=2",
    "max-history=3 or (max-age=1h and max-history=1)",
)
RETENTIONS = {"15m": 900, "2h": 7_200, "30d": 2_592_000}

_MANY = 80
"""More rows than a block of single mutations takes: what is put of them goes in columns."""

_FEW = 4
"""Rows that most steps are about, so that each gets some history."""

_KEYS: dict[str, tuple[dict[str, str], list[Any], list[Any]]] = {
    "string": ({"k": "string"}, ["", "a", "ab", "b", "c\0", "m", "é", "z"], [f"x{n:03}" for n in range(_MANY)]),
    "binary": ({"k": "binary"}, [b"", b"\0", b"a", b"a\0", b"m", b"\xff"], [b"x%03d" % n for n in range(_MANY)]),
    "int64": ({"k": "int64"}, [-(2**63), -1, 0, 1, 7, 300, 2**40], list(range(1_000, 1_000 + _MANY))),
    "date": (
        {"k": "date"},
        [date(1, 1, 1), date(1969, 12, 31), date(2024, 2, 29), date(9999, 12, 31)],
        [date(2000, 1, 1) + timedelta(n) for n in range(_MANY)],
    ),
    "timestamp": (
        {"k": "timestamp"},
        [datetime(1960, 1, 1, tzinfo=UTC), datetime(2000, 1, 1, 0, 0, 0, 1, UTC), datetime(2024, 1, 1, tzinfo=UTC)],
        [datetime(2010, 1, 1, tzinfo=UTC) + timedelta(hours=n) for n in range(_MANY)],
    ),
    "two": (
        {"p": "string", "n": "int32"},
        [("", 0), ("a", -5), ("a", 0), ("a", 9), ("a\0", 1), ("m", 3), ("z", -1)],
        [("x", n) for n in range(_MANY)],
    ),
}


@dataclass(frozen=True, slots=True)
class Declared:
    """A table that is to be made, the keys that the walk is about, and more of them for large puts."""

    arguments: dict[str, Any]
    keys: list[Key]
    many: list[Key]
    hashed: bool
    retention_s: int


def draw_table(rng: Random) -> Declared:
    key, keys, many = _KEYS[rng.choice(list(_KEYS))]
    keys = sorted(rng.sample(keys, min(_FEW, len(keys))))
    hashed = rng.random() < 0.25
    retention = rng.choice(list(RETENTIONS))
    arguments: dict[str, Any] = {"key": key, "groups": _draw_groups(rng), "retention": retention}
    if hashed:
        arguments |= {"partition": "hash", "tablets": rng.randint(1, 3)}
    elif rng.random() < 0.3:
        arguments["splits"] = [keys[len(keys) // 2]]
    return Declared(arguments, _tuples(keys), _tuples(many), hashed, RETENTIONS[retention])


def _tuples(keys: Sequence[Any]) -> list[Key]:
    return [key if isinstance(key, tuple) else (key,) for key in keys]


def draw_purge(rng: Random) -> str | None:
    return rng.choice(POLICIES) if rng.random() < 0.5 else None


def _draw_groups(rng: Random) -> list[Any]:
    names, families = list(COLUMNS[:6]), list(FAMILIES[:3])
    rng.shuffle(names)
    groups: list[Any] = []
    for number in range(rng.choice((0, 1, 1, 2, 2, 3))):
        columns = {names.pop(): rng.choice(TYPES) for _ in range(rng.randint(1, 2))}
        if rng.random() < 0.1:
            columns[next(iter(columns))] = "int64 not null"
        groups.append(stelae.columns(GROUPS[number], columns, purge=draw_purge(rng), block_bytes=4_096))
    if rng.random() < 0.5:
        own = [families.pop(0) for _ in range(rng.randint(1, 2))]
        groups.append(stelae.cells("named", own, purge=draw_purge(rng), in_memory=rng.random() < 0.2))
    if rng.random() < 0.6 or not groups:
        groups.append(stelae.cells("wild", purge=draw_purge(rng), bloom=rng.random() < 0.8))
    rng.shuffle(groups)
    return groups


# -- rows


def columns_of(schema: TableSchema) -> dict[str, Column]:
    return {c.name: c for group in schema.groups if isinstance(group, ColumnsGroup) for c in group.columns}


def families_of(schema: TableSchema) -> list[str]:
    """Those that can be written: with a wildcard, all that the walk knows."""
    named = [f.name for group in schema.groups if isinstance(group, CellsGroup) for f in group.families]
    has_wildcard = any(isinstance(group, CellsGroup) and group.wildcard for group in schema.groups)
    return [*named, *(name for name in FAMILIES if name not in named)] if has_wildcard else named


def draw_value(rng: Random, column: Column) -> Any:
    if column.nullable and rng.random() < 0.15:
        return None
    number = rng.randint(-9, 9)
    kind = str(column.type).partition("(")[0].partition("<")[0]
    made: dict[str, Any] = {
        "int64": number * 2**33 if rng.random() < 0.2 else number,
        "int32": number,
        "int8": number,
        "float64": number / 4,
        "float32": number / 4,
        "string": f"é{number}",
        "binary": b"%d" % number,
        "bool": number > 0,
        "decimal": Decimal(number) / 4,
        "date": date(2000, 1, 1) + timedelta(number * 1_000),
        "timestamp": datetime(1970, 1, 1, tzinfo=UTC) + timedelta(number * 1_000, microseconds=number),
        "array": list(range(max(0, number))),
        "struct": {"x": number, "y": None if number < 0 else f"é{number}"},
        "map": {f"k{n}": n * 2**33 for n in range(max(0, number))},
        "vector": [number / 4, -number / 4],
    }
    return made[kind]


def draw_values(rng: Random, schema: TableSchema) -> dict[str, Any]:
    """Columns and cells of one row, as a put takes them; perhaps none."""
    found: dict[str, Any] = {}
    for group in schema.groups:
        if rng.random() < 0.4:
            continue
        if isinstance(group, ColumnsGroup):
            found |= {column.name: draw_value(rng, column) for column in group.columns if rng.random() < 0.6}
    for family in families_of(schema):
        if rng.random() < 0.3:
            found[f"{family}:{'q' if rng.random() < 0.8 else 'r'}"] = rng.choice((b"", b"1", b"22", b"333"))
    return add_required(rng, schema, found)


def add_required(rng: Random, schema: TableSchema, values: dict[str, Any]) -> dict[str, Any]:
    """With the columns that must be in every put which touches their group."""
    for group in schema.groups:
        if isinstance(group, ColumnsGroup):
            touched = any(column.name in values for column in group.columns)
            if touched or (not values and group is schema.existence_group):
                missing = [column for column in required_columns(group) if column.name not in values]
                values = values | {column.name: draw_value(rng, column) for column in missing}
    return values


def draw_members(rng: Random, schema: TableSchema) -> list[str]:
    """What `columns=` takes: names of columns, families, cells."""
    names = list(columns_of(schema))
    names += [f"{family}:{rng.choice(QUALIFIERS)}" for family in families_of(schema)]
    return rng.sample(names, rng.randint(1, min(3, len(names))))


# -- alterations


def draw_alteration(rng: Random, schema: TableSchema) -> dict[str, Any]:
    """Arguments of `alter_table`, now and then two changes in one; some of them are refused."""
    found = _draw_change(rng, schema)
    if rng.random() < 0.15:
        found |= {name: each for name, each in _draw_change(rng, schema).items() if name not in found}
    return found


def _draw_options(rng: Random) -> dict[str, Any]:
    every = {
        "compression": rng.choice(("zstd", "lz4", "none")),
        "block_bytes": rng.choice((4_096, 65_536)),
        "in_memory": rng.random() < 0.5,
        "bloom": rng.random() < 0.5,
    }
    return {name: every[name] for name in rng.sample(list(every), rng.randint(1, 2))}


def _draw_change(rng: Random, schema: TableSchema) -> dict[str, Any]:
    columns, taken = columns_of(schema), {group.name for group in schema.groups}
    groups = [group for group in schema.groups if isinstance(group, ColumnsGroup)]
    named = [group for group in schema.groups if isinstance(group, CellsGroup) and not group.wildcard]
    declared = [family.name for group in named for family in group.families]
    free = [name for name in COLUMNS if name not in columns]
    free_families = [name for name in FAMILIES if name not in declared]
    new_group = next((name for name in GROUPS if name not in taken), None)
    any_group = rng.choice(schema.groups)
    choices: list[dict[str, Any]] = [{"purge": {any_group.name: draw_purge(rng)}}] * 2
    choices += [{"options": {any_group.name: _draw_options(rng)}}, {"retention": rng.choice(list(RETENTIONS))}]
    if free and groups:
        type_ = rng.choice(TYPES)
        choices += [{"add": {rng.choice(groups).name: {rng.choice(free): type_}}}] * 2
    if columns:
        one = rng.choice(list(columns))
        choices.append({"drop": [one]})
        choices += [{"rename_columns": {one: rng.choice(free)}}] if free else []
        choices += [{"widen": {one: rng.choice(WIDER[type_])}} for type_ in WIDER if type_ == str(columns[one].type)]
        choices += [{"drop_not_null": [one]}] if not columns[one].nullable else []
        choices.append(_move(rng, rng.choice(groups).name, [one]))
    if declared:
        family = rng.choice(declared)
        choices += [{"drop_families": [family]}, _move(rng, rng.choice(named).name, [family])]
        choices += [{"rename_families": {family: rng.choice(free_families)}}] if free_families else []
    if named and free_families:
        more = {"add_families": {rng.choice(named).name: [rng.choice(free_families)]}}
        wild = [group.name for group in schema.groups if isinstance(group, CellsGroup) and group.wildcard]
        choices += [more, more, {**more, "drop_groups": wild}]
    if new_group is not None:
        choices += _new_groups(rng, new_group, free, free_families, schema)
        if columns:
            one = rng.choice(list(columns))
            home = next(group for group in groups if columns[one] in group.columns)
            added = stelae.columns(new_group, {}, purge=None if home.options.purge is None else str(home.options.purge))
            choices.append({"add_groups": [added], "move": {new_group: [one]}})
    if len(schema.groups) > 1:
        choices.append({"drop_groups": [any_group.name]})
    return rng.choice(choices)


def _move(rng: Random, group: str, members: list[str]) -> dict[str, Mapping[str, Any]]:
    purge = {"purge": {group: draw_purge(rng)}} if rng.random() < 0.2 else {}
    return {"move": {group: members}, **purge}


def _new_groups(
    rng: Random, name: str, free: list[str], free_families: list[str], schema: TableSchema
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if free:
        found.append({"add_groups": [stelae.columns(name, {free[0]: rng.choice(TYPES)}, purge=draw_purge(rng))]})
    if free_families:
        added = rng.sample(free_families, rng.randint(1, min(2, len(free_families))))
        found += [{"add_groups": [stelae.cells(name, added, purge=draw_purge(rng))]}] * 2
    wild = next((group for group in schema.groups if isinstance(group, CellsGroup) and group.wildcard), None)
    if wild is None:
        found.append({"add_groups": [stelae.cells(name, purge=draw_purge(rng))]})
    else:
        other = stelae.cells(name, purge=draw_purge(rng))
        named = stelae.cells(name, free_families[:1], purge=draw_purge(rng)) if free_families else other
        found.append({"add_groups": [rng.choice((other, named))], "drop_groups": [wild.name]})
    return found
