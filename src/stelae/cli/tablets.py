"""`stelae tablet list|split|join`: how a table is cut into row ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

import stelae
from stelae.cli.looks import UNKNOWN, Looks
from stelae.cli.places import ClusterPlace, JsonOption, StorePlace, TableArgument, placed
from stelae.cli.screens import Grid, as_shown, counted, grid, on_one_line, out, print_json, print_line, size_text
from stelae.cli.words.keys import only_key, typed_bound
from stelae.cli.words.values import json_value
from stelae.model.errors import InvalidArgument
from stelae.model.ids import Row
from stelae.model.keys.scalar import TOKEN_BYTES, KeyCodec
from stelae.model.schema import TableSchema
from stelae.model.types import KeyType, String
from stelae.model.values import Value
from stelae.service.tables import TabletInfo

if TYPE_CHECKING:
    from stelae.client.remote.cluster.looks import UnseenTablet

tablet_app = typer.Typer(help="Look at a table's tablets, split one, join two.", no_args_is_help=True)


@tablet_app.command("list", epilog="Example: stelae tablet list users --path data")
@placed
def list_tablets(name: TableArgument, place: StorePlace, json: JsonOption = False) -> None:
    """The tablets of a table, in the order of their rows; of a cluster with the shard that has each. With --json one
    line each.

    A tablet on a shard that does not answer, or that nobody leads now, is shown too, without what is not known of it:
    ?, or null."""
    with place.open(read_only=True) as database:
        looks = Looks(database)
        schema, tablets = database.table(name).schema, looks.tablets(name)
    looks.explain()
    if json:
        for each in tablets:
            print_line(json_tablet(schema, each))
        return
    out().print(tablet_grid(schema, tablets, with_places=isinstance(place, ClusterPlace)))


@tablet_app.command("split", epilog="Example: stelae tablet split users m --path data")
@placed
def split_tablet(
    name: TableArgument,
    place: StorePlace,
    key: Annotated[
        list[str] | None, typer.Argument(metavar="KEY", help="Where the new tablet begins.", show_default=False)
    ] = None,
    json: JsonOption = False,
) -> None:
    """Cut a tablet in two at a key; without one, the largest tablet in its middle."""
    with place.open() as database:
        table = database.table(name)
        schema = table.schema
        before = {each.start for each in table.tablets()}
        table.split(only_key(schema, key) if key else None)
        tablets = table.tablets()
    cut = [each.start for each in tablets if each.start not in before]
    if json:
        print_json({"tablets": len(tablets), "cut_rows": [start.hex() for start in cut]})
        return
    where = " and ".join(row_text(schema, start) for start in cut) or "where it was already"
    out().print(f"[green]split[/] at {where}: {counted(len(tablets), 'tablet')} now")


@tablet_app.command("join", epilog="Example: stelae tablet join users m --path data")
@placed
def join_tablets(
    name: TableArgument,
    place: StorePlace,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Where the second of the two begins, as listed.")],
    json: JsonOption = False,
) -> None:
    """Join the tablet that begins at a key with the one before it."""
    with place.open() as database:
        table = database.table(name)
        schema, tablets = table.schema, table.tablets()
        second = _tablet_at(schema, key, tablets)
        table.join(second)
        tablets = table.tablets()
    if json:
        print_json({"tablets": len(tablets)})
        return
    out().print(f"[green]joined[/] at {row_text(schema, second.start)}: {counted(len(tablets), 'tablet')} now")


def _tablet_at(schema: TableSchema, word: str, tablets: Sequence[TabletInfo]) -> TabletInfo:
    if schema.hashed:
        digits = word.removeprefix("0x")
        found = [each for each in tablets if each.start and each.start.hex().startswith(digits.lower())]
        if len(found) != 1 or not digits:
            raise InvalidArgument(
                f"KEY {word!r}: of a hashed table give where a tablet begins, as `tablet list` shows it"
            )
        return found[0]
    from stelae.client.arguments.keys import cuts_of

    (cut,) = cuts_of(schema, [typed_bound(schema, word, "KEY")], None)
    beginning = {each.start: each for each in tablets}
    if cut not in beginning:
        starts = ", ".join(row_text(schema, each.start) for each in tablets[1:6]) or "nowhere, as there is only one"
        raise InvalidArgument(f"no tablet begins at {word!r}; tablets begin at {starts}")
    return beginning[cut]


def tablet_grid(
    schema: TableSchema, tablets: Sequence[TabletInfo | UnseenTablet], *, with_places: bool = False
) -> Grid:
    """`with_places`: with the server that has each, and those of its other replicas."""
    places: tuple[str, ...] = ("on",) if with_places else ()
    if with_places and any(isinstance(each, TabletInfo) and each.replicas for each in tablets):
        places = ("led by", "epoch", "replicas")
    sizes = ("size", "in memory", "files")
    table = grid("tablet", "from", "to", *places, *sizes, "state", right=("tablet", *sizes))
    for each in tablets:
        rows = (
            row_text(schema, each.start) if each.start else "[dim]the first row[/]",
            row_text(schema, each.stop) if each.stop is not None else "[dim]the last row[/]",
        )
        if not isinstance(each, TabletInfo):
            places_here = (as_shown(each.server or "nobody"), UNKNOWN, UNKNOWN)[: len(places)]
            state = f"[red]{_words_of_unseen(each)}[/]"
            table.add_row(UNKNOWN, *rows, *places_here, *[UNKNOWN] * len(sizes), state)
            continue
        state = each.phase if each.phase != "running" else each.life.lower()
        colour = "green" if state == "active" else "yellow"
        table.add_row(
            str(each.tablet),
            *rows,
            *_places_of(each)[: len(places)],
            size_text(each.size_bytes),
            size_text(each.memory_bytes),
            each.files,
            f"[{colour}]{as_shown(state)}[/]",
        )
    return table


def _places_of(tablet: TabletInfo) -> tuple[str, str, str]:
    others = [f"{server} ({behind} behind)" if behind else server for server, behind in tablet.replicas]
    return as_shown(tablet.server), str(tablet.epoch), as_shown(", ".join(others))


def _words_of_unseen(tablet: UnseenTablet) -> str:
    return "does not answer" if tablet.server is not None else "nobody leads it"


def json_tablet(schema: TableSchema, tablet: TabletInfo | UnseenTablet) -> dict[str, Any]:
    rows = {
        "start_row": tablet.start.hex(),
        "start_key": _json_key(schema, tablet.start),
        "stop_row": None if tablet.stop is None else tablet.stop.hex(),
        "stop_key": None if tablet.stop is None else _json_key(schema, tablet.stop),
    }
    if not isinstance(tablet, TabletInfo):
        unknown = ("life", "size_bytes", "memory_bytes", "files", "schema_version", "epoch")
        said: dict[str, Any] = {"phase": _words_of_unseen(tablet), "server": tablet.server, "replicas": []}
        return {"tablet": None, **rows, **dict.fromkeys(unknown), **said}
    return {
        "tablet": tablet.tablet,
        **rows,
        "phase": tablet.phase,
        "life": tablet.life,
        "server": tablet.server,
        "size_bytes": tablet.size_bytes,
        "memory_bytes": tablet.memory_bytes,
        "files": tablet.files,
        "schema_version": tablet.schema_version,
        "epoch": tablet.epoch,
        "replicas": [{"server": server, "behind": behind} for server, behind in tablet.replicas],
    }


def _json_key(schema: TableSchema, row: bytes) -> list[Any] | None:
    values = leading_values(schema, row)
    if values is None:
        return None
    return [json_value(key.type, value) for key, value in zip(schema.key, values, strict=False)]


def row_text(schema: TableSchema, row: bytes) -> str:
    """A bound between tablets as the key columns it stands for; else its bytes."""
    values = leading_values(schema, row)
    if values is None:
        return on_one_line(f"0x{row.hex()}")
    return on_one_line(", ".join(str(value) if not isinstance(value, bytes) else repr(value)[1:] for value in values))


def leading_values(schema: TableSchema, row: bytes) -> tuple[Value, ...] | None:
    """Cuts need not be whole keys: those may be their first columns, and of hashed tables they are tokens."""
    if not row:
        return None
    if schema.hashed:
        return None if len(row) <= TOKEN_BYTES else _decoded(schema.codec, row)
    whole = _decoded(schema.codec, row)
    for count in range(len(schema.key) - 1, 0, -1):
        if whole is not None:
            break
        # With one more column behind them, that is empty, the first columns are encoded as they are in longer keys.
        first: dict[str, KeyType] = {key.name: key.type for key in schema.key[:count]}
        values = _decoded(KeyCodec({**first, "": String()}), row)
        whole = None if values is None or values[-1] else values[:-1]
    return whole


def _decoded(codec: KeyCodec, row: bytes) -> tuple[Value, ...] | None:
    try:
        return codec.decode(Row(row))
    except stelae.InvalidArgument:
        return None
