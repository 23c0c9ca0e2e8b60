"""Schema changes that move no byte: what was written before is read as the new schema says, wherever it lies.

Each story is a chain of writes and changes; between any two steps something may happen to the files: nothing, a flush,
a compaction of one group or all, a restart. Whatever it is, every read gives what the plain model has, and no change
of the schema writes a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import cycle, repeat
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stelae.model.declare import GroupSpec, cells, columns, declare, parse_column
from stelae.model.ids import ColumnId, GroupId, Row, SchemaVersion, TabletId, Txn
from stelae.model.mutation import Cell, Columns, Erase, EraseVersion, Mutation, Put, PutCell, WholeFamily, WholeRow
from stelae.model.record import ROW_EXISTS
from stelae.model.schema import CellsGroup, Column, ColumnsGroup, Family, Group, TableSchema
from stelae.model.schema_checks import check_schema
from stelae.model.types import parse_type
from stelae.model.values import Value
from stelae.storage.tablet.config import config_of, decode_config, encode_config, state_of
from stelae.storage.tablet.parts import FamilySet
from stelae.storage.tablet.state import Ref
from stelae.storage.upkeep.estimate import describe
from stelae.storage.upkeep.picker import pick_all
from tests.effort import examples, tries
from tests.storage.engine import Engine, expected, selectors
from tests.storage.plain import PlainTable

ONLY = TabletId(1)
R, S, T = Row(b"r"), Row(b"s"), Row(b"t")
ACTS = ("nothing", "flush", "compact X", "compact Y", "compact", "compact and collect", "kill", "close")


class Table:
    """An engine with one tablet, the model beside it, and what is to happen at each pause."""

    def __init__(self, acts: Iterator[str], *groups: GroupSpec) -> None:
        self.schema = declare({"id": "string"}, list(groups))
        self.engine = Engine(self.schema)
        self.model = PlainTable(self.schema)
        self._acts = acts
        self._snapshots: list[Txn] = []
        self._checked = 0

    # -- steps

    def write(self, *mutations: Mutation) -> None:
        self.engine.clock.advance(0.001)
        for txn, part in self.engine.write(mutations):
            self.model.commit(txn, part)
            self._snapshots.append(txn)
        self.pause()

    def put(self, row: Row, **values: Value) -> None:
        """Of columns by name, or as "family_qualifier" of cells."""
        typed = [(self.id_of(name), value) for name, value in values.items() if "_" not in name]
        named = [(*name.split("_"), value) for name, value in values.items() if "_" in name]
        puts: list[Mutation] = [Put(row, tuple(typed))] if typed else []
        self.write(*puts, *(PutCell(row, family, qualifier, value) for family, qualifier, value in named))

    def alter(self, **groups: str) -> None:
        """The members each group has from now on: by name, `old->new` if renamed, with a type if new or wider; families
        end in a colon, and `*` is the wildcard. Groups that are not named are gone."""
        schema = altered_to(self.schema, groups)
        before = self.files()
        self.engine.alter(schema)
        self.model.alter(schema)
        assert self.files() == before, "a change of the schema wrote or took a file"
        self.schema = schema
        self.pause()

    def pause(self) -> None:
        act = next(self._acts)
        self.act(act)
        try:
            self.check()
        except AssertionError as error:
            raise AssertionError(f"after {act!r}: {error}") from None

    def act(self, act: str) -> None:
        engine = self.engine
        match act:
            case "nothing":
                return
            case "flush":
                engine.flush(ONLY)
            case "kill" | "close":
                engine.upkeep.save()
                engine.restart(act)
            case "compact" | "compact and collect":
                self.compact(*(group.name for group in self.schema.groups))
                if act != "compact":
                    engine.tidy()
            case _:
                self.compact(act.split()[1])

    def compact(self, *names: str) -> None:
        """All files of these groups, and all that no snapshot needs any more may go."""
        engine = self.engine
        engine.flush(ONLY)
        engine.advance_horizon(engine.shard.visible)
        self._snapshots = [txn for txn in self._snapshots if txn >= engine.shard.horizon(self.state.table)]
        for group in self.schema.groups:
            infos = describe(self.state, group, engine.shard.horizon(self.state.table), engine.shard.fragments)
            found = pick_all(infos) if group.name in names else None
            if found is not None:
                engine.upkeep.compact(ONLY, group.id, found)

    # -- looks

    @property
    def state(self) -> Any:
        return self.engine.shard.state(ONLY)

    def id_of(self, name: str) -> ColumnId:
        return self.schema.column(name)[1].id

    def group(self, name: str) -> Group:
        return next(group for group in self.schema.groups if group.name == name)

    def refs(self, group: str) -> dict[str, Ref]:
        """To files, by their names."""
        return {ref.file.name: ref for ref in self.state.refs(self.group(group).id) if ref.file is not None}

    def files(self) -> set[str]:
        return {info.name for info in self.engine.blobs.list("fragments/")}

    def read(self, row: Row) -> dict[str, Value] | None:
        return self.engine.scan(self.engine.shard.visible).get(row)

    def check(self) -> None:
        """Now, and at a snapshot from before; all columns, and one alone; and what would be saved."""
        engine, model, rows = self.engine, self.model, self.model.rows()
        for at in {engine.shard.visible, *self._snapshots[-2:-1]}:
            assert engine.scan(at) == expected(model, at)
            assert engine.history(rows, at, limit=3) == model.read(at, history=3)
        assert engine.newest_values(rows, engine.shard.visible) == expected(model, engine.shard.visible)
        names = [c.name for group in self.schema.groups if isinstance(group, ColumnsGroup) for c in group.columns]
        names += [f"{f.name}:" for group in self.schema.groups if isinstance(group, CellsGroup) for f in group.families]
        if names:
            self._checked += 1
            at, chosen = engine.shard.visible, [names[self._checked % len(names)]]
            assert engine.scan(at, selectors(chosen)) == expected(model, at, chosen)
            assert engine.newest_values(rows, at, selectors(chosen)) == expected(model, at, chosen)
        saved = config_of(self.state)
        loaded = state_of(decode_config(encode_config(saved), "here"), self.schema)
        assert config_of(loaded) == saved


def altered_to(schema: TableSchema, groups: Mapping[str, str]) -> TableSchema:
    last_id = schema.last_id
    made: list[Group] = []
    for name, text in groups.items():
        known = next((group for group in schema.groups if group.name == name), None)
        last_id += known is None
        id_ = GroupId(last_id) if known is None else known.id
        members: list[Column | Family] = []
        for word in [word.strip() for word in re.split(r",(?![^(]*\))", text) if word.strip() != "*"]:
            member = _member(schema, word, ColumnId(last_id + 1))
            last_id = max(last_id, member.id)
            members.append(member)
        if "*" in text or isinstance(members[0], Family):
            families = tuple(member for member in members if isinstance(member, Family))
            made.append(CellsGroup(id_, name, families, wildcard="*" in text))
        else:
            made.append(ColumnsGroup(id_, name, tuple(member for member in members if isinstance(member, Column))))
    version = SchemaVersion(schema.version + 1)
    return check_schema(replace(schema, version=version, groups=tuple(made), last_id=last_id))


def _member(schema: TableSchema, word: str, free: ColumnId) -> Column | Family:
    old, _, new = word.rpartition("->")
    name, _, type_ = new.strip().partition(" ")
    if name.endswith(":"):
        families = {f.name: f for group in schema.groups if isinstance(group, CellsGroup) for f in group.families}
        before = families.get((old or name).rstrip(":"))
        return Family(free if before is None else before.id, name.rstrip(":"))
    typed = {c.name: c for group in schema.groups if isinstance(group, ColumnsGroup) for c in group.columns}
    known = typed.get(old or name)
    if known is not None:
        return replace(known, name=name, type=parse_type(type_) if type_ else known.type)
    spec = parse_column(name, type_)
    return Column(free, spec.name, spec.type, spec.nullable, spec.default)


Story = Callable[[Iterator[str]], None]


# -- columns and families that move to another group and back


def four_columns(acts: Iterator[str]) -> Table:
    return Table(acts, columns("X", dict.fromkeys("ab", "int32")), columns("Y", dict.fromkeys("cd", "int32")))


def four_families(acts: Iterator[str]) -> Table:
    return Table(acts, cells("X", ["a", "b"]), cells("Y", ["c", "d"]))


KINDS = {"columns": four_columns, "cells": four_families}


def said(kind: str, letters: str, number: int) -> dict[str, Value]:
    if kind == "columns":
        return dict.fromkeys(letters, number)
    return {f"{letter}_q": b"%d" % number for letter in letters}


def listed(kind: str, letters: str) -> str:
    return ", ".join(letter if kind == "columns" else f"{letter}:" for letter in letters)


def shown(kind: str, **numbers: int | None) -> dict[str, Value]:
    if kind == "columns":
        return dict(numbers)
    return {f"{letter}:q": b"%d" % number for letter, number in numbers.items() if number is not None}


def move_and_return(kind: str, acts: Iterator[str]) -> Table:
    """c moves to X, is written and compacted there, and moves back to the group that still has an older one."""
    table = KINDS[kind](acts)
    table.put(R, **said(kind, "ac", 1))
    table.put(R, **said(kind, "ab", 2))
    table.put(R, **said(kind, "cd", 3))
    table.alter(X=listed(kind, "abc"), Y=listed(kind, "d"))
    table.put(R, **said(kind, "c", 4))
    table.alter(X=listed(kind, "a"), Y=listed(kind, "bcd"))
    assert table.read(R) == shown(kind, a=2, b=2, c=4, d=3)
    table.put(S, **said(kind, "abcd", 5))
    assert table.read(S) == shown(kind, a=5, b=5, c=5, d=5)
    return table


def erase_and_move(kind: str, acts: Iterator[str]) -> Table:
    """c is erased, and a compaction forgets both: it must not come back from the group it had been in."""
    table = KINDS[kind](acts)
    table.put(R, **said(kind, "ac", 1))
    table.put(R, **said(kind, "ab", 2))
    table.put(R, **said(kind, "cd", 3))
    table.write(Erase(R, Columns((table.id_of("c"),)) if kind == "columns" else WholeFamily("c")))
    table.alter(X=listed(kind, "abc"), Y=listed(kind, "d"))
    table.alter(X=listed(kind, "a"), Y=listed(kind, "bcd"))
    assert table.read(R) == shown(kind, a=2, b=2, c=None, d=3)
    table.alter(X=listed(kind, "abcd"))
    assert table.read(R) == shown(kind, a=2, b=2, c=None, d=3)
    return table


MOVES = {"moved and back": move_and_return, "erased and moved": erase_and_move}
each_kind = pytest.mark.parametrize("kind", list(KINDS))


@each_kind
def test_what_moves_and_returns_is_compacted_where_it_was(kind: str) -> None:
    """After the second change Y has c from the compaction of X alone: of its own files just d is left."""
    table = flushing(kind)
    table.put(R, **said(kind, "ac", 1))
    table.put(R, **said(kind, "ab", 2))
    table.put(R, **said(kind, "cd", 3))
    table.alter(X=listed(kind, "abc"), Y=listed(kind, "d"))
    table.compact("X")
    (compacted,) = table.refs("X")
    table.alter(X=listed(kind, "a"), Y=listed(kind, "bcd"))
    parts = {name: letters_of(table, ref) for name, ref in table.refs("Y").items()}
    assert parts.pop(compacted) == "bc"
    assert parts
    assert set(parts.values()) == {"d"}
    assert table.read(R) == shown(kind, a=2, b=2, c=3, d=3)


@each_kind
def test_what_was_erased_does_not_come_back_from_where_it_was(kind: str) -> None:
    """The compaction drops c and its erasure, and the file that still holds c is not asked for it."""
    table = flushing(kind)
    table.put(R, **said(kind, "ac", 1))
    table.put(R, **said(kind, "ab", 2))
    table.put(R, **said(kind, "cd", 3))
    table.write(Erase(R, Columns((table.id_of("c"),)) if kind == "columns" else WholeFamily("c")))
    table.alter(X=listed(kind, "abc"), Y=listed(kind, "d"))
    table.compact("X")
    ((compacted, ref),) = table.refs("X").items()
    assert ref.file is not None
    assert (ref.file.stats.erasures, ref.file.stats.rows) == (0, 1)
    table.alter(X=listed(kind, "a"), Y=listed(kind, "bcd"))
    parts = {name: letters_of(table, ref) for name, ref in table.refs("Y").items()}
    assert parts.pop(compacted) == "bc"
    assert set(parts.values()) == {"d"}
    assert table.read(R) == shown(kind, a=2, b=2, c=None, d=3)


def flushing(kind: str) -> Table:
    return KINDS[kind](repeat("flush"))


def letters_of(table: Table, ref: Ref) -> str:
    if isinstance(ref.part, FamilySet):
        assert not ref.part.others
        return "".join(sorted(ref.part.names))
    return "".join(sorted(table.schema.column_by_id(id_)[1].name for id_ in ref.part - {ROW_EXISTS}))


@each_kind
@pytest.mark.parametrize("story", list(MOVES))
@pytest.mark.parametrize("act", ["nothing", "flush", "compact X", "compact and collect"])
def test_stories_of_moves_with_the_same_at_every_step(story: str, kind: str, act: str) -> None:
    MOVES[story](kind, repeat(act))


@given(st.sampled_from(list(MOVES)), st.sampled_from(list(KINDS)), st.lists(st.sampled_from(ACTS), min_size=1))
@settings(max_examples=examples(8))
def test_stories_of_moves_with_anything_anywhere(story: str, kind: str, acts: list[str]) -> None:
    MOVES[story](kind, cycle(acts))


# -- other stories


def added_and_dropped(acts: Iterator[str]) -> None:
    """A name that is used again starts empty."""
    table = Table(acts, columns("X", {"a": "int32", "b": "int32"}))
    table.put(R, a=1, b=1)
    table.put(S, b=2)
    table.alter(X="a")
    assert table.read(R) == {"a": 1}
    assert table.read(S) is None, "all that it had is gone"
    table.alter(X="a, b string")
    assert table.read(R) == {"a": 1, "b": None}
    table.put(R, b="new")
    assert table.read(R) == {"a": 1, "b": "new"}
    table.alter(X="a")
    table.alter(X="a", Y="b string")
    assert table.read(R) == {"a": 1, "b": None}, "another b again"
    table.put(S, b="newer")
    assert table.read(S) == {"a": None, "b": "newer"}


def families_added_and_dropped(acts: Iterator[str]) -> None:
    table = Table(acts, cells("X", ["a", "b"]))
    table.put(R, a_q=b"1", b_q=b"1")
    table.put(S, b_q=b"2")
    table.alter(X="a:")
    assert table.read(S) is None
    table.alter(X="a:, b:")
    assert table.read(R) == {"a:q": b"1"}
    table.put(R, b_r=b"new")
    assert table.read(R) == {"a:q": b"1", "b:r": b"new"}


def renamed(acts: Iterator[str]) -> None:
    """Data goes with the id; a name that was given up may be taken by another."""
    table = Table(acts, columns("X", {"a": "int32", "b": "int32"}), cells("Y", ["f", "g"]))
    table.put(R, a=1, b=2, f_q=b"3", g_q=b"4")
    table.alter(X="b->c, a->b", Y="f:->h:, g:")
    assert table.read(R) == {"b": 1, "c": 2, "h:q": b"3", "g:q": b"4"}
    table.put(R, b=5, h_q=b"6")
    table.alter(X="b, c", Y="g:->f:, h:->g:")
    assert table.read(R) == {"b": 5, "c": 2, "g:q": b"6", "f:q": b"4"}
    table.write(Erase(R, WholeFamily("g")))
    assert table.read(R) == {"b": 5, "c": 2, "f:q": b"4"}
    table.alter(X="b->a, c->b", Y="g:->x:, f:->g:")
    table.put(R, x_q=b"7")
    assert table.read(R) == {"a": 5, "b": 2, "g:q": b"4", "x:q": b"7"}


def renamed_out_of_order(acts: Iterator[str]) -> None:
    """Each row in a file of its own, its families in another order than their names are now."""
    table = Table(acts, cells("X", ["a", "b"]))
    for name in (R, S, T):
        table.put(name, a_q=b"1", a_r=b"1", b_q=b"2")
    table.write(Erase(T, WholeRow()))
    table.alter(X="a:->z:, b:")
    table.compact("X")
    assert table.read(R) == table.read(S) == {"b:q": b"2", "z:q": b"1", "z:r": b"1"}
    table.put(R, z_q=b"3")
    table.alter(X="z:->a:, b:")
    table.compact("X")
    assert table.read(R) == {"a:q": b"3", "a:r": b"1", "b:q": b"2"}


def widened(acts: Iterator[str]) -> None:
    """Old values are values of the new type, beside larger ones."""
    narrow = {"n": "int32", "f": "float32", "d": "decimal(5, 2)", "l": "array<int32>"}
    table = Table(acts, columns("X", narrow))
    small = {"n": -(2**31), "f": 0.5, "d": Decimal("-999.99"), "l": [1, None, 2**31 - 1]}
    table.put(R, **small)
    table.put(S, n=1, f=None)
    wide = "n int64, f float64, d decimal(20, 2), l array<int64>"
    table.alter(X=wide)
    assert table.read(R) == small
    large = {"n": 2**40, "f": 0.1, "d": Decimal("123456789012345678.90"), "l": [2**40, None]}
    table.put(S, **large)
    table.put(R, n=2**50)
    assert table.read(S) == large
    assert table.read(R) == {**small, "n": 2**50}
    table.alter(X="f, d decimal(38, 2), l", Y="n")
    assert table.read(R) == {**small, "n": 2**50}


def not_null(acts: Iterator[str]) -> None:
    """What was written before a NOT NULL column came reads as its default, where the row appears."""
    table = Table(acts, columns("X", {"a": "int32"}))
    table.put(R, a=1)
    table.alter(X="a, b int32 not null default 7, c int32 default 8")
    assert table.read(R) == {"a": 1, "b": 7, "c": 8}
    table.put(S, b=2, c=None)
    assert table.read(S) == {"a": None, "b": 2, "c": None}, "NULL was said: that is no default"
    table.alter(X="a, c", Y="b")
    assert table.read(R) == {"a": 1, "c": 8, "b": 7}
    table.write(Erase(S, Columns((table.id_of("b"),))))
    assert table.read(S) == {"a": None, "c": None, "b": 7}
    table.write(Erase(S, Columns((table.id_of("c"),))))
    assert table.read(S) is None


def moved_about(acts: Iterator[str]) -> None:
    """From group to group and back, written, erased and erased at one time in each."""
    table = Table(acts, columns("X", {"a": "int32", "b": "int32"}), columns("Y", {"c": "int32"}))
    table.put(R, a=1, b=1, c=1)
    table.put(S, a=1, b=1)
    table.alter(X="a", Y="b, c")
    table.put(R, b=2)
    table.write(Erase(S, WholeRow()))
    table.alter(X="a, b", Y="c")
    table.put(S, b=3)
    assert table.read(S) == {"a": None, "b": 3, "c": None}
    table.write(EraseVersion(R, Columns((table.id_of("b"),)), newest_ts(table, R, "b")))
    assert table.read(R) == {"a": 1, "b": 1, "c": 1}, "the one before it"
    table.alter(X="b", Y="a, c")
    table.alter(X="b, c, a")
    assert table.read(R) == {"b": 1, "c": 1, "a": 1}
    table.write(Erase(R, WholeRow()))
    assert table.read(R) is None


def newest_ts(table: Table, row: Row, name: str) -> Any:
    return table.model.read(table.engine.shard.visible)[row].versions[name][0].ts


def families_moved_about(acts: Iterator[str]) -> None:
    table = Table(acts, cells("X", ["a", "b"]), cells("Y", ["c"]))
    table.put(R, a_q=b"1", b_q=b"1", c_q=b"1")
    table.alter(X="a:", Y="b:->d:, c:")
    table.put(R, d_q=b"2", d_r=b"2")
    table.write(Erase(R, Cell("d", "q")))
    table.alter(X="a:, d:->b:", Y="c:")
    assert table.read(R) == {"a:q": b"1", "b:r": b"2", "c:q": b"1"}
    table.write(Erase(R, WholeFamily("b")))
    table.alter(X="b:", Y="a:, c:")
    assert table.read(R) == {"a:q": b"1", "c:q": b"1"}
    table.put(R, b_q=b"3")
    assert table.read(R) == {"a:q": b"1", "b:q": b"3", "c:q": b"1"}


def out_of_the_wildcard(acts: Iterator[str]) -> None:
    """A family of the wildcard that is declared keeps its data; dropped, it is gone for good, and the wildcard takes
    the name anew."""
    table = Table(acts, cells("X", "*"))
    table.put(R, a_q=b"1", b_q=b"1")
    table.alter(X="*", Y="a:")
    assert table.read(R) == {"a:q": b"1", "b:q": b"1"}
    table.put(R, a_r=b"2")
    table.alter(X="*", Y="a:->c:")
    assert table.read(R) == {"b:q": b"1", "c:q": b"1", "c:r": b"2"}
    table.put(R, a_q=b"3")
    assert table.read(R) == {"a:q": b"3", "b:q": b"1", "c:q": b"1", "c:r": b"2"}
    table.alter(X="*")
    assert table.read(R) == {"a:q": b"3", "b:q": b"1"}
    table.put(R, c_q=b"4")
    assert table.read(R) == {"a:q": b"3", "b:q": b"1", "c:q": b"4"}


def a_name_taken_from_the_wildcard(acts: Iterator[str]) -> None:
    """What the wildcard had under a name that a declared family takes is gone for good."""
    table = Table(acts, cells("X", "*"), cells("Y", ["a"]))
    table.put(R, a_q=b"1", b_q=b"2")
    table.put(S, b_q=b"2")
    table.alter(X="*", Y="a:->b:")
    assert table.read(R) == {"b:q": b"1"}
    assert table.read(S) is None
    table.alter(X="*", Y="b:->a:")
    assert table.read(R) == {"a:q": b"1"}


def the_wildcard_comes_and_goes(acts: Iterator[str]) -> None:
    table = Table(acts, cells("X", "*"), cells("Y", ["a"]))
    table.put(R, a_q=b"1", b_q=b"1")
    table.alter(Y="a:, b:")
    assert table.read(R) == {"a:q": b"1", "b:q": b"1"}, "declared as the wildcard went"
    table.put(S, b_q=b"2")
    table.alter(Y="a:", Z="*")
    assert table.read(S) is None
    table.put(S, b_q=b"3", c_q=b"3")
    assert table.read(S) == {"b:q": b"3", "c:q": b"3"}
    table.alter(Y="a:")
    assert table.read(S) is None


def rows_that_only_exist(acts: Iterator[str]) -> None:
    """That a row exists belongs to the row: it stays when the group that kept it goes."""
    table = Table(acts, columns("X", {"a": "int32"}), columns("Y", {"b": "int32"}))
    table.write(Put(R, ()), Put(S, ((table.id_of("a"), 1),)))
    table.alter(Y="b")
    assert (table.read(R), table.read(S)) == ({"b": None}, None)
    table.put(R, b=1)
    table.write(Erase(R, Columns((table.id_of("b"),))))
    assert table.read(R) == {"b": None}
    table.alter(Y="b, c int32")
    table.write(Put(T, ()))
    table.write(Erase(R, WholeRow()))
    assert (table.read(R), table.read(T)) == (None, {"b": None, "c": None})
    table.alter(Y="b", Z="c")
    assert table.read(T) == {"b": None, "c": None}


def rows_that_only_exist_change_kinds(acts: Iterator[str]) -> None:
    """From a group of cells to one of columns and back."""
    table = Table(acts, cells("X", ["f"]))
    table.write(Put(R, ()))
    table.put(S, f_q=b"1")
    table.alter(X="f:", Y="a int32")
    assert table.read(R) == {"a": None}
    table.write(Put(T, ()))
    table.alter(X="f:")
    assert (table.read(R), table.read(S), table.read(T)) == ({}, {"f:q": b"1"}, {})
    table.alter(X="f:", Y="a int32")
    table.put(R, a=1)
    assert (table.read(R), table.read(T)) == ({"a": 1}, {"a": None})


def erased_after_their_group_went(acts: Iterator[str]) -> None:
    """A row that only exists falls with the whole row, also when its group is of another kind by then."""
    table = Table(acts, columns("X", {"a": "int32"}), cells("Y", ["f"]))
    table.write(Put(R, ()), Put(S, ()))
    table.alter(Y="f:")
    table.write(Erase(R, WholeRow()))
    assert (table.read(R), table.read(S)) == (None, {})
    table.put(R, f_q=b"1")
    table.write(Erase(R, WholeFamily("f")))
    assert table.read(R) is None


def erased_after_columns_came(acts: Iterator[str]) -> None:
    table = Table(acts, cells("Y", ["f"]))
    table.write(Put(R, ()), Put(S, ()))
    table.alter(Y="f:", X="a int32")
    table.write(Erase(R, WholeRow()))
    assert (table.read(R), table.read(S)) == (None, {"a": None})
    table.alter(Y="f:")
    assert (table.read(R), table.read(S)) == (None, {})


def erased_while_no_group_had_a_place(acts: Iterator[str]) -> None:
    """What says that rows exist is taken in by a new group, and the erasure was written when there was none."""
    table = Table(acts, columns("X", {"a": "int32"}), cells("Y", ["f"]))
    table.write(Put(R, ()), Put(S, ()))
    table.alter(Y="f:")
    table.write(Erase(R, WholeRow()))
    table.alter(Y="f:", Z="b int32")
    assert (table.read(R), table.read(S)) == (None, {"b": None})
    table.write(Put(R, ()), Erase(S, WholeRow()))
    assert (table.read(R), table.read(S)) == ({"b": None}, None)
    table.alter(Y="f:")
    assert (table.read(R), table.read(S)) == ({}, None)


def a_group_is_dropped(acts: Iterator[str]) -> None:
    """And its name used again: another group, without the data."""
    table = Table(acts, columns("X", {"a": "int32"}), columns("Y", {"b": "int32"}), cells("Z", ["f"]))
    table.put(R, a=1, b=1, f_q=b"1")
    table.alter(X="a")
    assert table.read(R) == {"a": 1}
    table.alter(X="a", Y="b int32", Z="f:")
    assert table.read(R) == {"a": 1, "b": None}
    table.put(R, b=2, f_q=b"2")
    assert table.read(R) == {"a": 1, "b": 2, "f:q": b"2"}


STORIES: Sequence[Story] = (
    added_and_dropped,
    families_added_and_dropped,
    renamed,
    renamed_out_of_order,
    widened,
    not_null,
    moved_about,
    families_moved_about,
    out_of_the_wildcard,
    a_name_taken_from_the_wildcard,
    the_wildcard_comes_and_goes,
    rows_that_only_exist,
    rows_that_only_exist_change_kinds,
    erased_after_their_group_went,
    erased_after_columns_came,
    erased_while_no_group_had_a_place,
    a_group_is_dropped,
)
stories = pytest.mark.parametrize("story", STORIES, ids=[story.__name__ for story in STORIES])


@stories
@pytest.mark.parametrize("act", ["nothing", "flush", "compact and collect", "kill"])
def test_a_story_with_the_same_at_every_step(story: Story, act: str) -> None:
    story(repeat(act))


@stories
def test_a_story_with_anything_anywhere(story: Story) -> None:
    for seed in range(tries(1)):
        random = Random(seed)
        story(iter(lambda: random.choice(ACTS), None))  # noqa: B023
