"""`stelae table alter`: all changes of one command happen together, or nothing does."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from stelae.cli.places import JsonOption, StorePlace, TableArgument, placed
from stelae.cli.screens import as_shown, out, print_json, verb_help
from stelae.cli.words import declarations as d
from stelae.cli.words.keys import comma_listed
from stelae.model.errors import InvalidArgument

_ALTER_HELP = """Change a table: all of it together, or nothing.

Rows stay as they are. A column that is dropped and added again starts empty. An added NOT NULL column reads as its
default in older rows.
Types widen only: int8 to int64, float32 to float64, decimals to more digits.

    stelae table alter users --add "profile: email string" --widen "age int64" \\
        --rename-column name=full_name --drop score --purge "events: max-age=30d"

Whole groups: --add-columns and --add-cells make them as `stelae table create` does, --drop-group drops them with all
that is in them. --move takes columns or families to another group, which may be a new one, with their data; both groups
must purge alike.

    stelae table alter users --add-columns "notes:" --move "notes: text" --option "profile: in_memory=yes"
"""


def _texts(option: str, metavar: str, text: str) -> Any:
    return typer.Option(option, metavar=metavar, help=text)


def register_alter(app: typer.Typer) -> None:
    epilog = 'Example: stelae table alter users --add "profile: email string" --path data'
    app.command("alter", help=verb_help(_ALTER_HELP), epilog=epilog)(alter_table)


@placed
def alter_table(
    name: TableArgument,
    place: StorePlace,
    add: Annotated[list[str] | None, _texts("--add", "TEXT", 'Columns: "profile: email string"')] = None,
    drop: Annotated[list[str] | None, _texts("--drop", "COLUMN", "Columns that go.")] = None,
    widen: Annotated[list[str] | None, _texts("--widen", "TEXT", 'A larger type: "age int64"')] = None,
    rename_column: Annotated[list[str] | None, _texts("--rename-column", "OLD=NEW", "It keeps its data.")] = None,
    nullable: Annotated[list[str] | None, _texts("--nullable", "COLUMN", "Take NOT NULL off.")] = None,
    add_families: Annotated[list[str] | None, _texts("--add-families", "TEXT", '"events: buy, sell"')] = None,
    drop_family: Annotated[list[str] | None, _texts("--drop-family", "FAMILY", "Families that go.")] = None,
    rename_family: Annotated[list[str] | None, _texts("--rename-family", "OLD=NEW", "It keeps its data.")] = None,
    purge: Annotated[list[str] | None, _texts("--purge", "TEXT", '"events: max-age=30d"; "events: none"')] = None,
    add_columns: Annotated[list[str] | None, _texts("--add-columns", "TEXT", 'A group: "notes: text string"')] = None,
    add_cells: Annotated[list[str] | None, _texts("--add-cells", "TEXT", 'A group: "tags: tag"')] = None,
    drop_group: Annotated[list[str] | None, _texts("--drop-group", "GROUP", "Groups that go, with their data.")] = None,
    move: Annotated[list[str] | None, _texts("--move", "TEXT", 'To another group: "notes: text"')] = None,
    option: Annotated[list[str] | None, _texts("--option", "TEXT", '"profile: in_memory=yes"')] = None,
    rename: Annotated[str | None, typer.Option("--rename", metavar="NAME", help="The table's new name.")] = None,
    retention: Annotated[str | None, typer.Option(help="How long old versions stay readable: 15m, 7d.")] = None,
    comment: Annotated[str | None, typer.Option(help="Any text.")] = None,
    zone: Annotated[str | None, typer.Option(help="Where it lives.")] = None,
    json: JsonOption = False,
) -> None:
    widened: dict[str, str] = {}
    for text in widen or []:
        widened |= d.typed_columns(text, "--widen")
    policies = d.once_by_group(purge, "--purge", d.policy_text, example="events: none")
    options = d.once_by_group(option, "--option", d.group_options, example="profile: in_memory=yes")
    groups = d.declared_groups(
        add_columns or [], add_cells or [], policies, options, names=("--add-columns", "--add-cells")
    )
    changes: dict[str, Any] = {
        "add": d.once_by_group(add, "--add", d.typed_columns, example="profile: email string"),
        "drop": comma_listed(drop),
        "widen": widened,
        "rename_columns": d.renamings(rename_column or [], "--rename-column"),
        "drop_not_null": comma_listed(nullable),
        "add_families": d.once_by_group(add_families, "--add-families", d.listed_names, example="events: buy"),
        "drop_families": comma_listed(drop_family),
        "rename_families": d.renamings(rename_family or [], "--rename-family"),
        "add_groups": groups,
        "drop_groups": comma_listed(drop_group),
        "move": d.once_by_group(move, "--move", d.listed_names, example="notes: text"),
        "purge": policies,
        "options": options,
        "rename": rename,
        "retention": retention,
        "comment": comment,
        "zone": zone,
    }
    said = {option: change for option, change in changes.items() if change not in (None, {}, [])}
    if not said:
        raise InvalidArgument('nothing is to be altered: say what, as in --add "profile: email string"')
    with place.open() as database:
        found = database.describe(database.alter_table(name, **said).name)
    if json:
        print_json(found)
        return
    out().print(f"[green]altered[/] {as_shown(found['name'])}, schema version {found['schema_version']} now")
