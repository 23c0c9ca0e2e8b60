"""Which part of a source belongs to which group, after any chain of schema changes: each member is followed by its
id, or as a family of the wildcard by its name, apart from the code under test."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stelae.format.fragment.footer import FragmentFile, FragmentSeal, FragmentStats
from stelae.model.declare import cells, columns, declare
from stelae.model.ids import ColumnId, GroupId, SchemaVersion, TableId, TabletId
from stelae.model.ranges import ALL_ROWS
from stelae.model.record import ROW_EXISTS
from stelae.model.schema import CellsGroup, ColumnsGroup, Family, Group, KeyColumn, TableSchema
from stelae.model.types import String
from stelae.storage.tablet.config import config_of, decode_config, encode_config, state_of
from stelae.storage.tablet.parts import (
    LEFT_OVER,
    NO_FAMILIES,
    NO_FAMILY,
    SAME_NAMES,
    FamilySet,
    Naming,
    Part,
    carry,
    is_empty,
    place,
    says_existence,
    whole,
)
from stelae.storage.tablet.state import Ref, TabletState, altered, new_tablet, replaced, sealed
from tests.effort import examples
from tests.storage.workloads import FAMILIES, WILD_FAMILIES, choose_alteration, choose_schema

NAMES = ["", "a", "b", "c", "never said"]
family_sets = st.builds(FamilySet, st.frozensets(st.sampled_from(NAMES[:-1])), st.booleans())


# -- sets of families


def held(families: FamilySet) -> set[str]:
    return {name for name in NAMES if name in families}


@given(family_sets, family_sets)
def test_sets_of_families(a: FamilySet, b: FamilySet) -> None:
    assert held(a.complement()) == set(NAMES) - held(a)
    assert held(a.intersect(b)) == held(a) & held(b)
    assert held(a.union(b)) == held(a) | held(b)
    assert a.is_empty == (not held(a))
    assert is_empty(a) == (not held(a))
    assert says_existence(a) == ("" in held(a))
    assert a.union(a) == a == a.intersect(a) == a.complement().complement()
    assert (a == b) == (held(a) == held(b)), "a set has one form"


def test_no_families_hold_nothing() -> None:
    assert held(NO_FAMILIES) == set()
    assert is_empty(frozenset())
    assert not is_empty(frozenset({ROW_EXISTS}))
    assert says_existence(frozenset({ROW_EXISTS, ColumnId(3)}))


# -- names


def families(**ids: int) -> TableSchema:
    """A table with these families, by name."""
    group = CellsGroup(GroupId(2), "f", tuple(Family(ColumnId(id_), name) for name, id_ in ids.items()))
    return TableSchema(SchemaVersion(1), (KeyColumn(ColumnId(1), "id", String()),), (group,), last_id=99)


def followed_through(*schemas: TableSchema) -> Naming:
    naming = SAME_NAMES
    for old, new in pairwise(schemas):
        naming = naming.after(carry(old, new))
    return naming


def test_a_name_is_followed_through_renames() -> None:
    """Also when another family takes a name that was given up, and after it came back to its first."""
    chain = [families(a=10), families(b=10), families(b=10, a=11), families(c=10, d=11), families(a=10, d=11)]
    now = [followed_through(*chain[:count]).now("a") for count in range(1, 6)]
    assert now == ["a", "b", "b", "c", "a"]
    assert followed_through(*chain).now("x") == "x"


def test_two_names_are_swapped_at_once() -> None:
    naming = followed_through(families(a=10, b=11), families(b=10, a=11))
    assert [naming.now(name) for name in "abc"] == ["b", "a", "c"]


# -- chains of changes


class Followed:
    """What becomes of what one file held when it was written for a group: where each of it lies now, and its name.
    A family of the wildcard has no id, until it is declared."""

    def __init__(self, schema: TableSchema, group: Group) -> None:
        self.of_cells = isinstance(group, CellsGroup)
        self.has_markers = schema.existence_group.id == group.id
        self.is_left_over = False
        self.columns = {c.id for c in group.columns} if isinstance(group, ColumnsGroup) else set[ColumnId]()
        self.families: dict[str, ColumnId | str] = {}
        if isinstance(group, CellsGroup):
            self.families = {family.name: family.id for family in group.families}
            if group.wildcard:
                self.families = {name: name for name in UNIVERSE if name not in declared_in(schema)}

    def follow(self, old: TableSchema, new: TableSchema) -> None:
        ids = {column.id for group in new.groups if isinstance(group, ColumnsGroup) for column in group.columns}
        self.columns &= ids
        # What was left over once stays so: erasures of the time between may lie beside it.
        self.is_left_over |= self.has_markers and isinstance(new.existence_group, CellsGroup) != self.of_cells
        before, now = declared_in(old), declared_in(new)
        for then, member in list(self.families.items()):
            if isinstance(member, str):
                if member in now and now[member] not in before.values():
                    self.families[then] = now[member]
                elif member in now or wildcard_of(old) != wildcard_of(new):
                    del self.families[then]
            elif member not in now.values():
                del self.families[then]

    def homes(self, schema: TableSchema) -> dict[GroupId, dict[ColumnId | str, str]]:
        """By group: columns, or families by the name they had, with the name they have."""
        found: dict[GroupId, dict[ColumnId | str, str]] = {}
        for id_ in self.columns:
            found.setdefault(schema.column_by_id(id_)[0].id, {})[id_] = ""
        names = {id_: name for name, id_ in declared_in(schema).items()}
        for then, member in self.families.items():
            name = member if isinstance(member, str) else names[member]
            found.setdefault(schema.family_group(name).id, {})[then] = name
        if self.has_markers:
            home = LEFT_OVER if self.is_left_over else schema.existence_group.id
            found.setdefault(home, {})[NO_FAMILY if self.of_cells else ROW_EXISTS] = ""
        return found


UNIVERSE = [*WILD_FAMILIES, "never said", *(f"renamed{version}" for version in range(12))]


def declared_in(schema: TableSchema) -> dict[str, ColumnId]:
    return {f.name: f.id for group in schema.groups if isinstance(group, CellsGroup) for f in group.families}


def wildcard_of(schema: TableSchema) -> GroupId | None:
    return next((group.id for group in schema.groups if isinstance(group, CellsGroup) and group.wildcard), None)


def choose_change(random: Random, schema: TableSchema) -> TableSchema:
    """Any, and one that no table should know: a declared family takes a name that the wildcard may have."""
    named = [group for group in schema.groups if isinstance(group, CellsGroup) and group.families]
    free = [name for name in WILD_FAMILIES if name not in declared_in(schema)]
    if random.random() < 0.9 or not named or not free:
        return choose_alteration(random.choice, schema)[1]
    group = random.choice(named)
    taken = replace(group.families[0], name=random.choice(free))
    changed = replace(group, families=(taken, *group.families[1:]))
    groups = tuple(changed if each is group else each for each in schema.groups)
    return replace(schema, version=SchemaVersion(schema.version + 1), groups=groups)


def refs_of(state: TabletState, file: FragmentFile) -> dict[GroupId, Ref]:
    found: dict[GroupId, Ref] = {}
    for id_, refs in state.groups:
        for ref in refs:
            if ref.file is not None and ref.file.name == file.name:
                assert id_ not in found, "a group refers to a file twice"
                found[id_] = ref
    return found


def members(part: Part, naming: Naming, universe: Iterable[str]) -> dict[ColumnId | str, str]:
    if isinstance(part, FamilySet):
        return {name: naming.now(name) for name in [NO_FAMILY, *universe] if name in part}
    return dict.fromkeys(part, "")


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=examples(120))
def test_every_member_is_found_in_its_one_place(seed: int) -> None:
    """Files come at any time; now and then the state is saved and loaded."""
    random = Random(seed)
    schema = choose_schema(random.choice)
    state = new_tablet(TabletId(1), TableId(7), ALL_ROWS, schema)
    written: list[tuple[FragmentFile, Followed]] = []
    for number in range(random.randint(2, 12)):
        if random.random() < 0.4:
            group = random.choice(state.schema.groups)
            file = FragmentFile(f"fragments/{number}", FragmentSeal(0, 0, 0, 0, 0), FragmentStats())
            state = replaced(state, group.id, (), [file])
            written.append((file, Followed(state.schema, group)))
        else:
            schema = choose_change(random, state.schema)
            for _, followed in written:
                followed.follow(state.schema, schema)
            state = altered(state, schema)
        if random.random() < 0.2:
            state = state_of(decode_config(encode_config(config_of(state)), "here"), state.schema)
    for file, followed in written:
        found = {id_: members(ref.part, ref.naming, UNIVERSE) for id_, ref in refs_of(state, file).items()}
        assert {id_: some for id_, some in found.items() if some} == followed.homes(state.schema)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=examples(40))
def test_memory_is_shared_out_as_files_are(seed: int) -> None:
    """What is in memory when the schema changes keeps the schema it was written with."""
    random = Random(seed)
    state = new_tablet(TabletId(1), TableId(7), ALL_ROWS, choose_schema(random.choice))
    memory, old = state.active, state.schema
    memory.txns.append(state.flushed[0][1])
    followed = {group.id: Followed(old, group) for group in old.groups}
    for _ in range(random.randint(1, 4)):
        new = choose_change(random, state.schema)
        for each in followed.values():
            each.follow(state.schema, new)
        state = altered(sealed(state), new)
    assert memory in state.memories
    for id_, source in memory.groups.items():
        found = {
            group: members(ref.part, ref.naming, UNIVERSE)
            for group, refs in state.groups
            for ref in refs
            if ref.source is source
        }
        assert {group: some for group, some in found.items() if some} == followed[id_].homes(state.schema)


# -- single changes


def fresh(*groups: object) -> TableSchema:
    return declare({"id": "string"}, list(groups))  # type: ignore[arg-type]


def test_what_a_file_of_a_group_may_hold() -> None:
    schema = fresh(columns("c", {"n": "int32"}), cells("f", ["click"]), cells("rest"))
    c, f, rest = schema.groups
    assert whole(schema, c) == frozenset({ROW_EXISTS, schema.column("n")[1].id})
    assert whole(schema, f) == FamilySet(frozenset({"click"}))
    assert whole(schema, rest) == FamilySet(frozenset({"click", NO_FAMILY}), others=True)
    alone = fresh(cells("rest"), cells("f", FAMILIES))
    assert NO_FAMILY in whole(alone, alone.groups[0])
    assert NO_FAMILY not in whole(alone, alone.groups[1])


def test_the_first_group_of_columns_takes_over_what_says_that_rows_exist() -> None:
    """And gives it back to no other kind of group: then it is left over."""
    both = fresh(cells("f", ["click"]), columns("c", {"n": "int32"}))
    f, c = both.groups
    only_cells = TableSchema(both.version, both.key, (f,), last_id=both.last_id)
    part = whole(only_cells, f)
    assert place(part, SAME_NAMES, only_cells, both) == {
        f.id: FamilySet(frozenset({"click"})),
        LEFT_OVER: FamilySet(frozenset({NO_FAMILY})),
    }
    assert place(whole(both, c), SAME_NAMES, both, only_cells) == {LEFT_OVER: frozenset({ROW_EXISTS})}
    assert place(frozenset({ROW_EXISTS}), SAME_NAMES, only_cells, both) == {c.id: frozenset({ROW_EXISTS})}


@pytest.mark.parametrize("left_over", [frozenset({ROW_EXISTS}), FamilySet(frozenset({NO_FAMILY}))], ids=["c", "f"])
def test_what_is_left_over_stays_until_there_is_a_place_for_it(left_over: Part) -> None:
    schema = fresh(columns("c", {"n": "int32"})) if isinstance(left_over, FamilySet) else fresh(cells("f", ["click"]))
    assert place(left_over, SAME_NAMES, schema, schema) == {LEFT_OVER: left_over}


def test_carry_says_what_is_new_of_what_was() -> None:
    old = fresh(columns("c", {"n": "int32", "m": "int32"}), cells("f", ["click", "view"]), cells("rest"))
    c, f, rest = old.groups
    assert isinstance(c, ColumnsGroup)
    assert isinstance(f, CellsGroup)
    less = (replace(c, columns=c.columns[:1]), replace(f, families=(replace(f.families[0], name="tap"),)))
    change = carry(old, replace(old, groups=(*less, rest)))
    assert change.columns == {c.columns[0].id, ROW_EXISTS}
    names = ("click", "view", "wild", "tap")
    assert [change.family(name) for name in names] == ["tap", None, "wild", None], (
        "what the wildcard had as tap is gone"
    )
    change = carry(old, replace(old, groups=less))
    assert [change.family(name) for name in names] == ["tap", None, None, None], "nothing is left of the wildcard"
