"""Every command: what it does, and what stands against it, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

import stelae
from stelae.catalog.check import check_catalog
from stelae.catalog.commands import columns as c
from stelae.catalog.commands import spaces as s
from stelae.catalog.commands import tables as t
from stelae.catalog.decide import Command, decide_batch
from stelae.catalog.describe import differences
from stelae.catalog.entries import Entry, GroupOptionsSet
from stelae.catalog.index_entries import IndexCreated
from stelae.catalog.objects import Index, IndexId, TableProperties
from stelae.catalog.serial.snapshot import decode_snapshot, encode_snapshot
from stelae.catalog.value import Catalog
from stelae.model.declare import declare, parse_column
from stelae.model.errors import InvalidSchema, StelaeError
from stelae.model.ids import Txn
from stelae.model.purge import parse_purge
from stelae.model.schema import GroupOptions, TableSchema
from stelae.model.types import parse_type
from tests.catalog.samples import USERS, after, create, users_schema, with_users

N = t.TableName.parse


@dataclass(frozen=True)
class ByAge:
    """An index on users, as the log of a later release may hold it: no command makes one yet."""

    def decide(self, catalog: Catalog) -> tuple[Entry, ...]:
        users = catalog.table("default", "users")
        columns = (users.schema.column("age")[1].id,)
        return (IndexCreated(Index(IndexId(catalog.next_id), users.namespace, "by_age", users.id, columns)),)


BASE = after(
    with_users(),
    s.CreateNamespace("shop"),
    s.CreateZone("fast", replicas=3, min_replicas=2),
    create("shop.orders", zone="fast"),
    ByAge(),
    create("old"),
    t.DropTable(N("old")),
)


def changes(before: Catalog, *commands: Command) -> list[str]:
    return [f"{d.path}: {d.before} -> {d.after}" for d in differences(before, check_catalog(after(before, *commands)))]


DOES: list[tuple[Sequence[Command], list[str]]] = [
    ([s.CreateNamespace("x")], ["namespaces: ['default', 'shop', 'system'] -> ['default', 'shop', 'system', 'x']"]),
    ([s.CreateNamespace("SHOP", if_not_exists=True)], []),
    ([s.CreateNamespace("x"), s.DropNamespace("X")], []),
    ([s.DropNamespace("x", if_exists=True)], []),
    ([s.AlterZone("fast", replicas=5)], ["zones/fast/replicas: 3 -> 5"]),
    ([s.AlterZone("fast", replicas=3)], []),
    (
        [s.RenameZone("fast", "Fast")],
        ["zones/fast: {", "zones/Fast: None -> {", "tables/shop.orders/zone: fast -> Fast"],
    ),
    ([s.CreateZone("cold"), s.DropZone("cold")], []),
    ([s.SetDefaultZone("fast")], ["default_zone: default -> fast"]),
    ([s.CreateZone("cold", is_default=True)], ["default_zone: default -> cold", "zones/cold: None -> {"]),
    ([s.CreateZone("fast", is_default=True, if_not_exists=True)], []),
    ([s.SetDefaultZone("default")], []),
    ([create("users2")], ["tables/users2: None -> {"]),
    ([t.CreateTable(USERS, users_schema(), if_not_exists=True)], []),
    ([t.DropTable(USERS)], ["tables/users: {", "indexes/by_age: {", "dropped/users (16): None"]),
    ([t.DropTable(N("nothing"), if_exists=True)], []),
    ([t.RecallTable(N("old"))], ["tables/old: None -> {", "dropped/old (21): {"]),
    (
        [create("old"), t.RecallTable(N("old"), "older")],
        ["tables/old: None", "tables/older: None", "dropped/old (21): {"],
    ),
    ([t.ForgetTable(BASE.dropped[next(iter(BASE.dropped))].table.id)], ["dropped/old (21): {"]),
    ([t.ForgetTable(BASE.table("default", "users").id)], []),
    ([t.RenameTable(N("shop.orders"), N("orders"))], ["tables/shop.orders: {", "tables/orders: None"]),
    (
        [t.RenameTable(USERS, N("USERS"))],
        ["tables/users: {", "tables/USERS: None", "indexes/by_age/table: users -> USERS"],
    ),
    ([t.RenameTable(USERS, USERS)], []),
    ([t.SetTableZone(USERS, "fast")], ["tables/users/zone: default -> fast"]),
    ([t.SetProperty(USERS, "retention", "1h")], ["tables/users/retention: 15m -> 1h"]),
    ([t.SetProperty(USERS, "comment", "people")], ["tables/users/comment:  -> people"]),
    ([t.SetProperty(USERS, "retention", "900s")], []),
    (
        [c.AddColumns(USERS, "profile", (parse_column("email", "string not null default ''"),))],
        [
            "tables/users/schema_version: 1 -> 3",
            'tables/users/groups/profile/columns/email: None -> string not null default ""',
        ],
    ),
    (
        [c.DropColumns(USERS, ("Name",))],
        ["tables/users/schema_version", "tables/users/groups/profile/columns/name: string"],
    ),
    (
        [c.WidenColumn(N("shop.orders"), "age", parse_type("int64"))],
        ["schema_version", "int32 not null default 0 -> int64 not null"],
    ),
    ([c.WidenColumn(N("shop.orders"), "age", parse_type("int32"))], []),
    ([c.DropNotNull(USERS, "age")], ["schema_version", "int32 not null default 0 -> int32 default 0"]),
    ([c.RenameColumn(USERS, "name", "full_name")], ["schema_version", "columns/name", "columns/full_name"]),
    (
        [c.AddFamilies(USERS, "events", ("buy",))],
        ["schema_version", "families: ['click', 'view'] -> ['click', 'view', 'buy']"],
    ),
    ([c.DropFamilies(USERS, ("view",))], ["schema_version", "families: ['click', 'view'] -> ['click']"]),
    ([c.RenameFamily(USERS, "view", "seen")], ["schema_version", "['click', 'view'] -> ['click', 'seen']"]),
    (
        [c.AddGroup(USERS, stelae.cells("more", ["x"])), c.MoveMembers(USERS, ("view",), "more")],
        [
            "schema_version",
            "families: ['click', 'view'] -> ['click']",
            "groups/more: None -> {'families': ['x', 'view']",
        ],
    ),
    ([c.DropGroup(USERS, "events")], ["schema_version", "groups/events: {"]),
    ([c.MoveMembers(USERS, ("age",), "profile")], []),
    (
        [
            c.AddGroup(USERS, stelae.columns("more", {}, purge="max-history=3")),
            c.MoveMembers(USERS, ("Name", "name"), "more"),
        ],
        ["schema_version", "profile/columns/name: string", "groups/more: None -> {'columns': {'name': 'string'}"],
    ),
    (
        [
            c.AddGroup(USERS, stelae.cells("all", ["buy"])),
            c.MoveMembers(USERS, ("click", "view"), "all"),
            c.DropGroup(USERS, "events"),
        ],
        ["schema_version", "groups/events: {", "groups/all: None -> {'families': ['buy', 'click', 'view']"],
    ),
    ([s.AlterZone("fast", racks=("a", "b"))], ["zones/fast/racks: [] -> ['a', 'b']"]),
    ([s.AlterZone("fast", tablet_bytes=2**20)], ["zones/fast/tablet_bytes: 1073741824 -> 1048576"]),
    (
        [c.SetGroupOptions(USERS, "profile", purge="max-age=1d")],
        ["schema_version", "purge: max-history=3 -> max-age=1d"],
    ),
    (
        [c.SetGroupOptions(USERS, "profile", purge="none", bloom=False)],
        ["schema_version", "purge: max-history=3 -> none", "bloom"],
    ),
]


@pytest.mark.parametrize(
    ("commands", "expected"), DOES, ids=lambda x: type(x[0]).__name__ if x and isinstance(x, list) else ""
)
def test_what_commands_do(commands: Sequence[Command], expected: list[str]) -> None:
    found = changes(BASE, *commands)
    assert len(found) == len(expected), found
    for line, wanted in zip(found, expected, strict=True):
        assert wanted in line


BROKEN = TableSchema(users_schema().version, (), ())
STRICT = declare({"id": "string"}, [stelae.columns("data", {"k": "int8 not null", "v": "int8"})])

REFUSED: list[tuple[Sequence[Command], str]] = [
    ([s.CreateZone("z", replicas=1.5)], "zone 'z': replicas 1.5 is not a whole number"),  # type: ignore[arg-type]
    ([s.CreateZone("z", replicas=True)], "zone 'z': replicas True is not a whole number"),
    ([s.CreateZone("z", placement="ring")], "zone 'z': placement 'ring' is not one of"),  # type: ignore[arg-type]
    ([s.CreateZone("z", tablet_bytes=2**70)], "zone 'z': tablet_bytes"),
    ([t.SetProperty(USERS, "comment", "\ud800")], "table 'users': comment: '\\ud800' (str) is not a string"),
    ([t.SetProperty(USERS, "comment", None)], "table 'users': comment: None"),  # type: ignore[arg-type]
    ([c.AddGroup(USERS, stelae.columns("g", {"k": "int32 not null"}))], "column 'k' is NOT NULL and needs a default"),
    ([s.CreateNamespace("Shop")], "namespace 'Shop' exists already"),
    ([s.CreateNamespace("a.b")], "namespace 'a.b': a name has no dot"),
    ([s.CreateNamespace("_a")], "namespace '_a': names with a leading underscore are reserved"),
    ([s.DropNamespace("shop")], "namespace 'shop' cannot be dropped: table 'orders' is in it"),
    ([s.DropNamespace("default")], "namespace 'default' cannot be dropped: every catalog has it"),
    ([s.DropNamespace("shp")], "no namespace 'shp'; did you mean 'shop'?"),
    ([s.CreateZone("FAST")], "zone 'FAST' exists already"),
    ([s.CreateZone("z", replicas=0)], "zone 'z': replicas 0 is not a whole number from 1 to 16"),
    ([s.CreateZone("z", replicas=2, min_replicas=3)], "zone 'z': min_replicas 3 is not a whole number from 1 to 2"),
    ([s.CreateZone("z", tablet_bytes=5)], "zone 'z': tablet_bytes 5 is not a whole number from 1048576"),
    ([s.AlterZone("fast", min_replicas=9)], "zone 'fast': min_replicas 9"),
    ([s.AlterZone("fasst")], "no zone 'fasst'; did you mean 'fast'?"),
    ([s.RenameZone("fast", "Default")], "zone 'Default' exists already"),
    ([s.DropZone("fast")], "zone 'fast' cannot be dropped: table 'shop.orders' is in it"),
    ([s.DropZone("default")], "zone 'default' cannot be dropped: it is the default zone"),
    ([s.SetDefaultZone("none")], "no zone 'none'"),
    ([create("Users")], "table 'Users' exists already"),
    ([create("by_age")], "index 'by_age' exists already"),
    ([create("nowhere.users")], "no namespace 'nowhere'"),
    ([create("a:b")], "table 'a:b': a name has no colon"),
    ([create("x", zone="nozone")], "no zone 'nozone'"),
    ([create("x", schema=BROKEN)], "table 'x': a key has from 1 to 32 columns, not 0"),
    (
        [t.CreateTable(N("x"), users_schema(), None, TableProperties(retention_us=-1))],
        "table 'x': retention_us -1 is not",
    ),
    ([t.DropTable(N("user"))], "no table 'user'; did you mean 'users'?"),
    ([t.RecallTable(USERS)], "no dropped table 'users' can be recalled"),
    ([create("old"), t.RecallTable(N("old"))], "table 'old' exists already"),
    ([t.RenameTable(USERS, N("by_age"))], "index 'by_age' exists already"),
    ([t.RenameTable(USERS, N("shop.orders"))], "table 'shop.orders' exists already"),
    ([t.RenameTable(USERS, N("shop.people"))], "table 'users' has indexes and cannot change its namespace"),
    ([t.SetTableZone(USERS, "none")], "no zone 'none'"),
    ([t.SetProperty(USERS, "retenton", "1h")], "no property 'retenton'; did you mean 'retention'?"),
    ([t.SetProperty(USERS, "retention", "soon")], "table 'users': retention 'soon' is not a duration"),
    ([t.SetProperty(USERS, "comment", "x" * 5000)], "table 'users': a comment has at most 4096 bytes"),
    (
        [c.AddColumns(USERS, "profile", (parse_column("x", "int8 not null"),))],
        "column 'x' is NOT NULL and needs a default",
    ),
    (
        [c.AddColumns(USERS, "profile", (parse_column("Click", "int8"),))],
        "table 'users': family 'click' of group 'events' has the same name",
    ),
    ([c.AddColumns(USERS, "events", (parse_column("x", "int8"),))], "group 'events' holds cells, not columns"),
    (
        [c.AddColumns(USERS, "profil", (parse_column("x", "int8"),))],
        "table 'users': no group 'profil'; did you mean 'profile'?",
    ),
    ([c.DropColumns(USERS, ("id",))], "table 'users': 'id' is a key column, and the key is fixed"),
    ([c.DropColumns(USERS, ("age",))], "table 'users': column 'age' is used by index 'by_age'"),
    ([c.DropColumns(USERS, ("nam",))], "table 'users': no column 'nam'; did you mean 'name'?"),
    ([c.DropColumns(N("shop.orders"), ("name", "age"))], "table 'shop.orders': group 'profile': has 0 columns"),
    (
        [c.WidenColumn(USERS, "name", parse_type("binary"))],
        "column 'name' cannot go from string to binary: types only widen",
    ),
    ([c.WidenColumn(N("shop.orders"), "age", parse_type("int8"))], "cannot go from int32 to int8"),
    ([c.WidenColumn(USERS, "age", parse_type("int64"))], "column 'age' is used by index 'by_age'"),
    ([c.RenameColumn(USERS, "name", "ID")], "has the same name as key column 'id'"),
    ([c.RenameColumn(USERS, "id", "x")], "'id' is a key column, and the key is fixed"),
    ([c.AddFamilies(USERS, "profile", ("x",))], "group 'profile' holds columns, not cells"),
    ([c.AddFamilies(USERS, "events", ("Click",))], "family 'Click' of group 'events' has the same name"),
    ([c.DropFamilies(USERS, ("click", "view"))], "table 'users': group 'events': has 0 families"),
    ([c.RenameFamily(USERS, "clik", "x")], "no family 'clik'; did you mean 'click'?"),
    ([c.MoveMembers(USERS, ("click",), "profile")], "no column 'click'"),
    ([c.AddGroup(USERS, stelae.cells("EVENTS", ["x"]))], "group 'EVENTS' has the same name as group 'events'"),
    ([c.DropGroup(USERS, "profile")], "column 'age' is used by index 'by_age'"),
    ([c.DropGroup(USERS, "event")], "no group 'event'; did you mean 'events'?"),
    (
        [c.DropGroup(N("shop.orders"), "profile"), c.DropGroup(N("shop.orders"), "events")],
        "table 'orders': a table has from 1 to 100 groups, not 0",
    ),
    ([c.AddGroup(USERS, stelae.columns("more", {}))], "table 'users': group 'more': has 0 columns"),
    (
        [c.AddGroup(USERS, stelae.cells("all", ["x"])), c.MoveMembers(USERS, ("click", "view"), "all")],
        "table 'users': group 'events': has 0 families",
    ),
    (
        [c.AddGroup(USERS, stelae.columns("more", {"x": "int8"})), c.MoveMembers(USERS, ("name",), "more")],
        "from group 'profile' to 'more': one is purged by max-history=3, the other by nothing, and what was",
    ),
    (
        [
            c.SetGroupOptions(USERS, "events", purge="max-age=1d"),
            c.AddGroup(USERS, stelae.cells("all", ["x"], purge="max-age=1d")),
            c.MoveMembers(USERS, ("view",), "all"),
        ],
        "'view' cannot move from group 'events' to 'all': their purge policies are the same now, and were not before",
    ),
    (
        [
            t.CreateTable(N("n"), STRICT),
            c.AddGroup(N("n"), stelae.columns("more", {"x": "int8"})),
            c.MoveMembers(N("n"), ("k",), "more"),
        ],
        "table 'n': column 'k' is NOT NULL and needs a default",
    ),
    ([s.CreateZone("z", racks=("a", "a"))], "zone 'z': rack 'a' is there twice"),
    ([s.CreateZone("z", racks=("",))], "zone 'z': rack '': a name has at least one character"),
    ([s.CreateZone("z", racks=tuple(f"r{n}" for n in range(65)))], "zone 'z': 65 racks; at most 64"),
    ([c.SetGroupOptions(USERS, "profile", purge="sometimes")], "purge policy 'sometimes'"),
    ([c.SetGroupOptions(USERS, "profile", compression="gzip")], "table 'users': group 'profile': compression 'gzip'"),
    ([create("x"), create("x")], "table 'x' exists already"),
]


@pytest.mark.parametrize(("commands", "message"), REFUSED, ids=[message[:50] for _, message in REFUSED])
def test_what_is_refused_and_why(commands: Sequence[Command], message: str) -> None:
    with pytest.raises(StelaeError) as caught:
        after(BASE, *commands)
    assert message in str(caught.value)


def test_a_batch_is_one_version_and_all_or_nothing() -> None:
    made = after(BASE, create("a"), create("b"))
    assert made.version == BASE.version + 1
    assert {"a", "b"} <= {table.name for table in made.tables.values()}
    with pytest.raises(StelaeError):
        after(BASE, create("a"), create("users"))


def test_a_name_given_again_is_another_column() -> None:
    add = c.AddColumns(USERS, "profile", (parse_column("x", "int8"),))
    first = after(BASE, add).table("default", "users").schema.column("x")[1]
    again = after(BASE, add, c.DropColumns(USERS, ("x",)), add).table("default", "users").schema.column("x")[1]
    assert again.id > first.id


def test_a_renamed_column_is_the_same_column() -> None:
    before = BASE.table("default", "users").schema.column("name")[1]
    renamed = after(BASE, c.RenameColumn(USERS, "name", "full_name")).table("default", "users").schema
    assert renamed.column("full_name")[1].id == before.id


def test_the_last_dropped_of_a_name_is_recalled() -> None:
    catalog = after(BASE, create("old"))
    second = catalog.table("default", "old").id
    catalog = after(catalog, t.DropTable(N("old")))
    assert after(catalog, t.RecallTable(N("old"))).table("default", "old").id == second


def test_a_table_is_recalled_by_its_own_namespace() -> None:
    catalog = after(BASE, create("shop.a"), create("a"))
    ids = {name: catalog.table(*name.split(".")).id for name in ("default.a", "shop.a")}
    catalog = after(catalog, t.DropTable(N("a")), t.DropTable(N("shop.a")), t.DropTable(N("shop.orders")))
    catalog = after(catalog, s.DropNamespace("shop"))
    assert after(catalog, t.RecallTable(N("a"))).table("default", "a").id == ids["default.a"]
    with pytest.raises(StelaeError, match=r"no dropped table 'nosuch\.a'"):
        after(catalog, t.RecallTable(N("nosuch.a")))
    homeless = after(catalog, t.RecallTable(N("shop.a")))
    assert homeless.table("default", "a").id == ids["shop.a"]
    rebuilt = after(catalog, s.CreateNamespace("Shop"), t.RecallTable(N("shop.a")))
    assert rebuilt.table("shop", "a").id == ids["shop.a"]


def altered(catalog: Catalog, *policies: str) -> Catalog:
    return after(catalog, *(c.SetGroupOptions(USERS, "profile", purge=policy) for policy in policies))


def past_of(catalog: Catalog) -> list[tuple[str, int]]:
    options = catalog.table("default", "users").schema.groups[0].options
    return [(str(past.policy), past.until) for past in options.past]


def test_an_altered_policy_has_judged_all_before_the_activation() -> None:
    first = altered(BASE, "max-age=1d")
    assert past_of(first) == [("max-history=3", first.activation - 1)]
    second = altered(after(first, create("another")), "none")
    assert past_of(second) == [*past_of(first), ("max-age=1d", second.activation - 1)]
    assert past_of(after(second, c.SetGroupOptions(USERS, "profile", bloom=False))) == past_of(second)
    assert past_of(altered(second, "none")) == past_of(second)
    assert check_catalog(decode_snapshot(encode_snapshot(second))) == second


def test_within_one_version_only_the_last_policy_counts() -> None:
    made = altered(BASE, "max-age=1d", "max-age=2d")
    assert past_of(made) == [("max-history=3", made.activation - 1)]
    assert past_of(altered(BASE, "max-age=1d", "max-history=3")) == []
    following = altered(made, "max-age=3d")
    assert past_of(following) == [*past_of(made), ("max-age=2d", following.activation - 1)]


def test_the_entry_says_nothing_of_the_past_and_everybody_finds_the_same() -> None:
    """So the bytes of a log are those of version 1, and logs that older releases wrote give the past as well."""
    made = altered(BASE, "max-age=1d")
    (entry,) = decide_batch(made, [c.SetGroupOptions(USERS, "profile", purge="max-age=2d", compression="lz4")])
    assert isinstance(entry, GroupOptionsSet)
    assert entry.options == GroupOptions(compression="lz4", purge=parse_purge("max-age=2d"))
    applied = entry.apply(replace(made, activation=Txn(made.activation + 50)))
    assert past_of(applied) == [*past_of(made), ("max-age=1d", made.activation + 49)]


def test_a_policy_is_altered_so_many_times_and_not_more() -> None:
    catalog = BASE
    for days in range(c.PAST_POLICIES_MAX):
        catalog = altered(catalog, f"max-age={days + 1}h")
    assert len(past_of(check_catalog(catalog))) == c.PAST_POLICIES_MAX
    with pytest.raises(InvalidSchema, match="table 'users': group 'profile': its purge policy was changed 32 times"):
        altered(catalog, "none")
    other = c.SetGroupOptions(USERS, "profile", bloom=False)
    assert past_of(after(catalog, other)) == past_of(catalog)
