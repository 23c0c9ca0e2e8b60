"""`stelae namespace list|create|drop` and `stelae zone list|create|alter|drop`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from stelae.cli.places import JsonOption, StorePlace, placed
from stelae.cli.screens import as_shown, counted, grid, note, out, print_json, print_line, verb_help
from stelae.cli.words.keys import comma_listed
from stelae.client.api.display import shown_bytes
from stelae.model.errors import InvalidArgument
from stelae.service.spaces import ZoneInfo

namespace_app = typer.Typer(help="Make, look at and drop namespaces: spaces of names for tables.", no_args_is_help=True)
zone_app = typer.Typer(help="Make, look at, change and drop zones: how tables are kept.", no_args_is_help=True)

_NamespaceArgument = Annotated[str, typer.Argument(metavar="NAMESPACE", show_default=False)]
_ZoneArgument = Annotated[str, typer.Argument(metavar="ZONE", show_default=False)]
_IfExists = Annotated[bool, typer.Option("--if-exists", help="One that is not there is no error.")]
_IfNotExists = Annotated[bool, typer.Option("--if-not-exists", help="Leave one that is there as it is.")]
_Default = Annotated[bool, typer.Option("--default", help="Tables that name no zone go here from now on.")]
_Racks = Annotated[list[str] | None, typer.Option("--racks", metavar="RACK,...", help="What replicas are spread over.")]
_TabletBytes = Annotated[
    int | None, typer.Option("--tablet-bytes", help="Tablets are split above twice that.", show_default=False)
]
_MinReplicas = "How many of them acknowledge a write, at least."


@namespace_app.command("list", epilog="Example: stelae namespace list --path data")
@placed
def list_namespaces(place: StorePlace, json: JsonOption = False) -> None:
    """All namespaces, with how many tables they have. With --json one line each."""
    with place.open(read_only=True) as database:
        names, tables = database.namespaces(), database.tables()
    counts = [sum(_namespace_of(table) == name for table in tables) for name in names]
    found: list[dict[str, Any]] = [{"name": name, "tables": n} for name, n in zip(names, counts, strict=True)]
    if json:
        for each in found:
            print_line(each)
        return
    table = grid("namespace", "tables", right=("tables",))
    for each in found:
        table.add_row(f"[bold]{as_shown(each['name'])}[/]", each["tables"])
    out().print(table)


def _namespace_of(table: str) -> str:
    namespace, dot, _ = table.partition(".")
    return namespace if dot else "default"


@namespace_app.command("create", epilog="Example: stelae namespace create sales --path data")
@placed
def create_namespace(
    name: _NamespaceArgument, place: StorePlace, if_not_exists: _IfNotExists = False, json: JsonOption = False
) -> None:
    """Make a namespace. `stelae table create NAMESPACE.NAME` makes it too."""
    with place.open(make=True) as database:
        before = database.namespaces()
        database.create_namespace(name, if_not_exists=if_not_exists)
        is_new = database.namespaces() != before
    if json:
        print_json({"created": is_new, "name": name})
        return
    out().print(f"[green]{_created(is_new)}[/] {as_shown(name)}")


def _created(is_new: bool) -> str:
    return "created" if is_new else "was there already, and stays as it is:"


@namespace_app.command("drop", epilog="Example: stelae namespace drop sales --path data")
@placed
def drop_namespace(
    name: _NamespaceArgument,
    place: StorePlace,
    if_exists: _IfExists = False,
    json: JsonOption = False,
) -> None:
    """Drop a namespace that has no tables."""
    with place.open() as database:
        found = next((each for each in database.namespaces() if each.casefold() == name.casefold()), None)
        database.drop_namespace(name, if_exists=if_exists)
    _print_dropped("namespace", found, json)


def _print_dropped(kind: str, name: str | None, json: bool) -> None:
    if json:
        print_json({"dropped": name})
    elif name is None:
        note(f"there is no such {kind}: nothing was done")
    else:
        out().print(f"[green]dropped[/] {as_shown(name)}")


@zone_app.command("list", epilog="Example: stelae zone list --path data")
@placed
def list_zones(place: StorePlace, json: JsonOption = False) -> None:
    """All zones: replicas, racks, sizes of tablets, how many tables they have. With --json one line each."""
    with place.open(read_only=True) as database:
        zones = database.zones()
    if json:
        for zone in zones.values():
            print_line(zone)
        return
    numbers = ("replicas", "at least", "tablets", "tables")
    table = grid("zone", "replicas", "at least", "racks", "placement", "tablets", "tables", "", right=numbers)
    for zone in zones.values():
        table.add_row(
            f"[bold]{as_shown(zone.name)}[/]",
            f"{zone.replicas}",
            f"{zone.min_replicas}",
            as_shown(", ".join(zone.racks)) or "any",
            zone.placement,
            shown_bytes(zone.tablet_bytes),
            zone.tables,
            "[green]default[/]" if zone.is_default else "",
        )
    out().print(table)


_CREATE_HELP = """Make a zone: how many replicas the tables in it have, where, and how large their tablets grow.

A store in one process has one replica: more are refused there. --placement tablets moves tablets one by one to where
there is room; ring places them by a hash of their keys. Tables go into a zone by `stelae table create --zone` and
`stelae table alter --zone`.

    stelae zone create small --tablet-bytes 67108864 --default
    stelae zone create fast --racks a,b,c --placement tablets
"""


@zone_app.command(
    "create",
    help=verb_help(_CREATE_HELP),
    epilog="Example: stelae zone create small --tablet-bytes 67108864 --path data",
)
@placed
def create_zone(
    name: _ZoneArgument,
    place: StorePlace,
    replicas: Annotated[int, typer.Option(help="Of each tablet.")] = 1,
    min_replicas: Annotated[int, typer.Option("--min-replicas", help=_MinReplicas)] = 1,
    racks: _Racks = None,
    placement: Annotated[str, typer.Option(help="tablets, or ring.")] = "tablets",
    tablet_bytes: _TabletBytes = None,
    default: _Default = False,
    if_not_exists: _IfNotExists = False,
    json: JsonOption = False,
) -> None:
    with place.open(make=True) as database:
        before = database.zones()
        made = database.create_zone(
            name,
            replicas=replicas,
            min_replicas=min_replicas,
            racks=comma_listed(racks),
            placement=placement,
            tablet_bytes=tablet_bytes,
            default=default,
            if_not_exists=if_not_exists,
        )
    if json:
        import msgspec

        print_json({"created": made.name not in before, **msgspec.to_builtins(made)})
        return
    out().print(f"[green]{_created(made.name not in before)}[/] {_in_words(made)}")


def _in_words(zone: ZoneInfo) -> str:
    said = f"{zone.name}, {counted(zone.replicas, 'replica')}, tablets of {shown_bytes(zone.tablet_bytes)}"
    return as_shown(said + (", the default zone" if zone.is_default else ""))


_ALTER_HELP = """Change a zone, and how the tables in it are kept: all of it together, or nothing.

Tablets that are too large now are split, and small ones joined, by and by.

    stelae zone alter default --tablet-bytes 268435456
    stelae zone alter small --default --rename usual
"""


@zone_app.command(
    "alter",
    help=verb_help(_ALTER_HELP),
    epilog="Example: stelae zone alter default --tablet-bytes 268435456 --path data",
)
@placed
def alter_zone(
    name: _ZoneArgument,
    place: StorePlace,
    replicas: Annotated[int | None, typer.Option(help="Of each tablet.", show_default=False)] = None,
    min_replicas: Annotated[int | None, typer.Option("--min-replicas", help=_MinReplicas, show_default=False)] = None,
    racks: _Racks = None,
    any_rack: Annotated[
        bool, typer.Option("--any-rack", help="Replicas are spread over no racks in particular.")
    ] = False,
    tablet_bytes: _TabletBytes = None,
    default: _Default = False,
    rename: Annotated[str | None, typer.Option("--rename", metavar="NAME", help="The zone's new name.")] = None,
    json: JsonOption = False,
) -> None:
    if racks and any_rack:
        raise InvalidArgument("say --racks or --any-rack, not both")
    changes: dict[str, Any] = {
        "replicas": replicas,
        "min_replicas": min_replicas,
        "racks": [] if any_rack else comma_listed(racks) or None,
        "tablet_bytes": tablet_bytes,
        "default": default,
        "rename": rename,
    }
    if not any(change not in (None, False) for change in changes.values()):
        raise InvalidArgument("nothing is to be altered: say what, as in --tablet-bytes 268435456")
    with place.open() as database:
        altered = database.alter_zone(name, **changes)
    if json:
        print_json(altered)
        return
    out().print(f"[green]altered[/] {_in_words(altered)}")


@zone_app.command("drop", epilog="Example: stelae zone drop small --path data")
@placed
def drop_zone(
    name: _ZoneArgument,
    place: StorePlace,
    if_exists: _IfExists = False,
    json: JsonOption = False,
) -> None:
    """Drop a zone that has no tables and is not the default one."""
    with place.open() as database:
        found = next((each for each in database.zones() if each.casefold() == name.casefold()), None)
        database.drop_zone(name, if_exists=if_exists)
    _print_dropped("zone", found, json)
