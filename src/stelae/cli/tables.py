"""`stelae table list|create|describe|alter|drop|recall|truncate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import stelae
from stelae.cli.looks import UNKNOWN, Looks
from stelae.cli.places import JsonOption, StorePlace, TableArgument, placed
from stelae.cli.screens import (
    Grid,
    as_shown,
    ask_yes_no,
    counted,
    facts,
    grid,
    note,
    number_text,
    out,
    print_json,
    print_line,
    size_text,
    verb_help,
)
from stelae.cli.tablets import json_tablet, tablet_grid
from stelae.cli.words import declarations as d
from stelae.model.declare import GroupSpec, declare
from stelae.model.errors import InvalidArgument, InvalidSchema

if TYPE_CHECKING:
    from stelae.service.tables import TableStats

table_app = typer.Typer(help="Make, look at, change and drop tables.", no_args_is_help=True)

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
_TABLETS_SHOWN_MAX = 20


@table_app.command("list", epilog="Example: stelae table list --path data")
@placed
def list_tables(place: StorePlace, json: JsonOption = False) -> None:
    """All tables, with their keys and sizes. With --json one line each.

    While a shard of a cluster does not answer, the sizes of tables that it has some of are not known: ?, or null."""
    with place.open(read_only=True) as database:
        looks = Looks(database)
        found = [looks.describe(name) for name in database.tables()]
    looks.explain()
    if json:
        for each in found:
            print_line(each)
        return
    if not found:
        out().print("no tables yet: `stelae table create` makes one")
        return
    table = grid("table", "key", "groups", "tablets", "size", right=("tablets", "size"))
    for each in found:
        key = ", ".join(f"{name} {type_}" for name, type_ in each["key"].items())
        table.add_row(
            f"[bold]{as_shown(each['name'])}[/]",
            as_shown(key),
            as_shown(", ".join(each["groups"])),
            each["tablets"],
            _size(each),
        )
    out().print(table)


def _size(found: dict[str, Any]) -> str:
    return UNKNOWN if found["size_bytes"] is None else size_text(found["size_bytes"])


_CREATE_HELP = """Make a table.

--key is one or more NAME TYPE with commas. --columns is a group of typed columns, GROUP: NAME TYPE [not null]
[default VALUE], ...; --cells a group of families, GROUP: FAMILY, ..., or GROUP alone for every family. Each may be
given again, for more groups; --option says how a group is kept: in_memory, compression, block_bytes, bloom. A store is
made where there is none yet.

Types: bool, int8 to int64, float32, float64, decimal(p, s), string, binary, date, timestamp,
timestamp_ntz, array<T>, struct<name: T, ...>, map<K, V>, vector(float32, n). Odd names stand in `backquotes`.

--split is the first part of a key, or of a compound key its first parts as JSON; --hash --tablets N spreads rows evenly
instead. With --like the columns are those of a Parquet, CSV or JSON lines file, and --key names which are the key.

    stelae table create users --key "id string" \\
        --columns "profile: name string, age int32 not null default 0" \\
        --cells "events: click, view" --purge "events: max-age=7d" --split m
    stelae table create orders --like orders.parquet --key "customer, number"
"""


@table_app.command(
    "create",
    help=verb_help(_CREATE_HELP),
    epilog='Example: stelae table create users --key "id string" --columns "profile: name string" --path data',
)
@placed
def create_new_table(
    name: TableArgument,
    place: StorePlace,
    key: Annotated[str, typer.Option("--key", metavar="TEXT", help='"id string"; with --like: "id".')],
    columns_: Annotated[
        list[str] | None, typer.Option("--columns", metavar="TEXT", help='"profile: name string, age int32"')
    ] = None,
    cells_: Annotated[list[str] | None, typer.Option("--cells", metavar="TEXT", help='"events: click, view"')] = None,
    purge: Annotated[
        list[str] | None, typer.Option("--purge", metavar="TEXT", help='"events: max-age=7d and max-history=100"')
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="TEXT", help='"profile: in_memory=yes, block_bytes=65536"'),
    ] = None,
    split: Annotated[
        list[str] | None, typer.Option("--split", metavar="KEY", help="A tablet begins here. Ascending.")
    ] = None,
    hash_: Annotated[bool, typer.Option("--hash", help="Spread rows by a hash of the key, over --tablets.")] = False,
    tablets: Annotated[int | None, typer.Option(min=1, help="How many tablets; with --hash.")] = None,
    like: Annotated[Path | None, typer.Option("--like", metavar="FILE", help="Columns as in this file.")] = None,
    zone: Annotated[str | None, typer.Option(help="Where it lives; the default zone if left out.")] = None,
    retention: Annotated[str | None, typer.Option(help="How long old versions stay readable: 15m, 7d.")] = None,
    comment: Annotated[str | None, typer.Option(help="Any text.")] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Leave one that is there as it is.")] = False,
    json: JsonOption = False,
) -> None:
    if hash_ and split:
        raise InvalidArgument("--split is for a table in the order of keys; with --hash say --tablets N")
    if tablets is not None and not hash_:
        raise InvalidArgument("--tablets goes with --hash; a table in the order of keys takes --split KEY")
    settings: dict[str, Any] = {"partition": "hash" if hash_ else "range", "tablets": tablets}
    settings |= {"zone": zone, "retention": retention, "comment": comment, "if_not_exists": if_not_exists}
    if like is not None:
        if columns_ or cells_ or purge or option:
            raise InvalidArgument("--like brings its columns: leave out --columns, --cells, --purge and --option")
        shape = _like_file(like, key)
    else:
        shape = {"key": _declared_key(key), "groups": _groups(columns_ or [], cells_ or [], purge or [], option or [])}
    settings["splits"] = _splits(shape, split)
    with place.open(make=True) as database:
        before = database.tables() if if_not_exists else []
        made = database.create_table(name, **shape, **settings)
        found = database.describe(made.name)
    is_new = found["name"] not in before
    if json:
        print_json({"created": is_new, **found})
        return
    word = "created" if is_new else "was there already, and stays as it is:"
    out().print(f"[green]{word}[/] {as_shown(found['name'])}, {counted(found['tablets'], 'tablet')}")


def _declared_key(text: str) -> dict[str, str]:
    declared = d.key_names_or_types(text, "--key")
    if isinstance(declared, dict):
        return declared
    raise InvalidArgument(f'--key {text!r}: say the type too, as in --key "{declared[0]} string"')


def _groups(columns_: list[str], cells_: list[str], purge: list[str], options: list[str]) -> list[GroupSpec]:
    policies = d.once_by_group(purge, "--purge", d.policy_text, example="events: max-age=7d")
    chosen = d.once_by_group(options, "--option", d.group_options, example="profile: in_memory=yes")
    groups = d.declared_groups(columns_, cells_, policies, chosen)
    if not groups:
        raise InvalidArgument('a table has at least one group: --columns "GROUP: NAME TYPE, ..." or --cells "GROUP"')
    for option, left in (("--purge", policies), ("--option", chosen)):
        for name in left:
            raise InvalidSchema(
                f"{option}: there is no group {name!r}; groups are {', '.join(group.name for group in groups)}"
            )
    return groups


def _like_file(file: Path, key: str) -> dict[str, Any]:
    from stelae.cli.files import arrow_schema_of_file

    return {"like": arrow_schema_of_file(file), "key": d.key_names_or_types(key, "--key")}


def _splits(shape: dict[str, Any], split: list[str] | None) -> list[Any] | None:
    if not split:
        return None
    from stelae.cli.words.keys import typed_bound

    if "groups" in shape:
        schema = declare(shape["key"], shape["groups"])
    else:
        from stelae.client.arguments.declarations import create_ask

        plain: dict[str, Any] = dict.fromkeys(("splits", "tablets", "zone", "retention", "comment"))
        asked = create_ask(
            "like", shape["key"], None, like=shape["like"], partition="range", if_not_exists=False, **plain
        )
        schema = asked.schema
    return [typed_bound(schema, word, "--split") for word in split]


@table_app.command("describe", epilog="Example: stelae table describe users --path data")
@placed
def describe_table(name: TableArgument, place: StorePlace, json: JsonOption = False) -> None:
    """A table's key, columns, options, tablets and sizes."""
    with place.open(read_only=True) as database:
        looks = Looks(database)
        found, schema = looks.describe(name), database.table(name).schema
        tablets, stats = looks.tablets(name), looks.stats(name)
    looks.explain()
    if json:
        sizes = {
            each: None if stats is None else getattr(stats, each)
            for each in ("records", "erasures", "file_bytes", "memory_bytes")
        }
        print_json({**found, **sizes, "tablet_list": [json_tablet(schema, each) for each in tablets]})
        return
    console = out()
    comment = f"  [dim]{as_shown(found['comment'])}[/]" if found["comment"] else ""
    console.print(f"[bold]{as_shown(found['name'])}[/]{comment}")
    console.print()
    for part in (_members(found), _options(found)):
        console.print(part)
        console.print()
    pairs = [
        ("partition", f"{found['partition']}, {counted(found['tablets'], 'tablet')}, zone {as_shown(found['zone'])}"),
        *_sizes(stats),
        ("retention", as_shown(found["retention"])),
        ("schema", f"version {found['schema_version']}, table id {found['id']}"),
    ]
    console.print(facts(pairs))
    console.print()
    console.print(tablet_grid(schema, tablets[:_TABLETS_SHOWN_MAX]))
    if len(tablets) > _TABLETS_SHOWN_MAX:
        console.print(
            f"and {number_text(len(tablets) - _TABLETS_SHOWN_MAX)} more: stelae tablet list {as_shown(found['name'])}"
        )


def _sizes(stats: TableStats | None) -> list[tuple[str, str]]:
    if stats is None:
        return [("size", UNKNOWN)]
    size = f"{size_text(stats.file_bytes)} in {counted(stats.files, 'file')}"
    records = counted(stats.records, "version")
    if stats.erasures:
        records += f", of which {counted(stats.erasures, 'is an erasure', 'are erasures')}"
    return [("size", f"{size}, {size_text(stats.memory_bytes)} in memory"), ("in files", records)]


def _members(found: dict[str, Any]) -> Grid:
    table = grid("group", "column", "type")
    for name, type_ in found["key"].items():
        table.add_row("[yellow]key[/]", f"[bold]{as_shown(name)}[/]", f"[cyan]{as_shown(type_)}[/]")
    for group, said in found["groups"].items():
        for name, type_ in said.get("columns", {}).items():
            table.add_row(as_shown(group), as_shown(name), f"[cyan]{as_shown(type_)}[/]")
        for family in said.get("families", ()):
            table.add_row(as_shown(group), f"{as_shown(family)}:", "[cyan]cells[/]")
    return table


def _options(found: dict[str, Any]) -> Grid:
    table = grid("group", "purge", "compression", "blocks", "bloom", "in memory")
    for group, said in found["groups"].items():
        flags = ["yes" if said[option] else "no" for option in ("bloom", "in_memory")]
        table.add_row(
            as_shown(group), as_shown(said["purge"]), said["compression"], size_text(said["block_bytes"]), *flags
        )
    return table


@table_app.command("drop", epilog="Example: stelae table drop users --yes --path data")
@placed
def drop_table(
    name: TableArgument,
    place: StorePlace,
    yes: YesOption = False,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="One that is not there is no error.")] = False,
    json: JsonOption = False,
) -> None:
    """Drop a table. For a while `stelae table recall` has it back."""
    with place.open() as database:
        found = _name_of(database, name, if_exists=if_exists)
        if found is not None:
            _ask(database, "Drop table", found, yes)
            database.drop_table(found, if_exists=if_exists)
    _print_done("dropped", found, json, f"; have it back with: stelae table recall {name}")


@table_app.command("truncate", epilog="Example: stelae table truncate users --yes --path data")
@placed
def truncate_table(name: TableArgument, place: StorePlace, yes: YesOption = False, json: JsonOption = False) -> None:
    """Erase all rows of a table, in one step. Snapshots from before still see them, for as long as its retention."""
    with place.open() as database:
        found = database.table(name).name
        _ask(database, "Erase all rows of", found, yes)
        database.truncate_table(found)
    _print_done("truncated", found, json)


@table_app.command("recall", epilog="Example: stelae table recall users --as users_before --path data")
@placed
def recall_table(
    name: TableArgument,
    place: StorePlace,
    new_name: Annotated[str | None, typer.Option("--as", metavar="NAME", help="Under another name.")] = None,
    json: JsonOption = False,
) -> None:
    """Have back the table that was dropped last under that name, with its rows."""
    with place.open() as database:
        recalled = database.recall_table(name, new_name).name
    _print_done("recalled", recalled, json)


def _name_of(database: stelae.Database, name: str, *, if_exists: bool) -> str | None:
    try:
        return database.table(name).name
    except stelae.NotFound:
        if if_exists:
            return None
        raise


def _ask(database: stelae.Database, what: str, name: str, yes: bool) -> None:
    """Its size is said if it is known: who is away is not waited for."""
    if yes:
        return
    looks = Looks(database)
    size = _size(looks.describe(name))
    looks.explain()
    if not ask_yes_no(f"{what} {name} ({'its size is not known now' if size == UNKNOWN else size})?"):
        raise InvalidArgument("nothing was done; --yes does it without asking")


def _print_done(word: str, name: str | None, json: bool, hint: str = "") -> None:
    if json:
        print_json({word: name})
    elif name is None:
        note("there is no such table: nothing was done")
    else:
        out().print(f"[green]{word}[/] {as_shown(name + hint)}")
