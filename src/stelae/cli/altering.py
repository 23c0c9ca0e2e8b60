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
"""


def _texts(option: str, metavar: str, text: str) -> Any:
    return typer.Option(option, metavar=metavar, help=text)


def register_alter(app: typer.Typer) -> None:
    epilog = 'Example: stelae table alter users --add "profile: email string" --path data'
    app.command("alter", help=verb_help(_ALTER_HELP), epilog=epilog)(alter_one_table)


@placed
def alter_one_table(
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
    rename: Annotated[str | None, typer.Option("--rename", metavar="NAME", help="The table's new name.")] = None,
    retention: Annotated[str | None, typer.Option(help="How long old versions stay readable: 15m, 7d.")] = None,
    comment: Annotated[str | None, typer.Option(help="Any text.")] = None,
    zone: Annotated[str | None, typer.Option(help="Where it lives.")] = None,
    json: JsonOption = False,
) -> None:
    widened: dict[str, str] = {}
    for text in widen or []:
        widened |= d.typed_columns(text, "--widen")
    changes: dict[str, Any] = {
        "add": d.once_by_group(add, "--add", d.typed_columns, example="profile: email string"),
        "drop": comma_listed(drop),
        "widen": widened,
        "rename_columns": d.renamings(rename_column or [], "--rename-column"),
        "drop_not_null": comma_listed(nullable),
        "add_families": d.once_by_group(add_families, "--add-families", d.listed_names, example="events: buy"),
        "drop_families": comma_listed(drop_family),
        "rename_families": d.renamings(rename_family or [], "--rename-family"),
        "purge": d.once_by_group(purge, "--purge", d.policy_text, example="events: none"),
        "rename": rename,
        "retention": retention,
        "comment": comment,
        "zone": zone,
    }
    said = {option: change for option, change in changes.items() if change not in (None, {}, [])}
    if not said:
        raise InvalidArgument('nothing is to be altered: say what, as in --add "profile: email string"')
    with place.opened() as database:
        found = database.describe(database.alter_table(name, **said).name)
    if json:
        print_json(found)
        return
    out().print(f"[green]altered[/] {as_shown(found['name'])}, schema version {found['schema_version']} now")
