"""`stelae get|put|erase`: single rows, and rows as JSON lines."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import IO, Annotated, Any

import msgspec
import typer

import stelae
from stelae.cli.mistakes import told_at
from stelae.cli.places import ROWS_PANEL, JsonOption, StorePlace, TableArgument, placed
from stelae.cli.screens import (
    ask_yes_no,
    counted,
    facts,
    grid,
    is_screen,
    note,
    on_one_line,
    out,
    print_json,
    print_line,
    verb_help,
)
from stelae.cli.words.keys import assignments, comma_listed, is_json_key, only_key, typed_at, typed_bound, typed_key
from stelae.cli.words.values import column_types, decoded, json_row, json_value, json_versions, row_from_json
from stelae.model.errors import InvalidArgument, NotFound, StelaeError
from stelae.model.schema import TableSchema
from stelae.model.types import Binary, ColumnType
from stelae.model.values import Value, datetime_of_micros, show

KeyArgument = Annotated[
    list[str],
    typer.Argument(metavar="KEY", help="The key's parts; of several also as JSON: '[\"ann\", 7]'.", show_default=False),
]
ColumnsOption = Annotated[
    list[str] | None,
    typer.Option("--columns", metavar="NAME", help='Only these, with commas: name, "click:home", or "click:" for all.'),
]
AtOption = Annotated[
    str | None, typer.Option("--at", metavar="TXN|TIME", help="As of then: a txn, or 2026-01-31T12:00:00Z.")
]
RowsOption = Annotated[
    str, typer.Option("--rows", metavar="all|having", help="All rows that exist, or those having one of the columns.")
]
_ROWS_A_WRITE = 1_000


def register_row_verbs(app: typer.Typer) -> None:
    for name, verb, text, example in (
        ("get", get_row, get_row.__doc__ or "", "get users ann --columns name,age"),
        ("put", put_rows, _PUT_HELP, "put users ann name=Ann age=31"),
        ("erase", erase_rows, erase_rows.__doc__ or "", 'erase users ann --columns "age,click:"'),
    ):
        epilog = f"Example: stelae {example} --path data"
        app.command(name, rich_help_panel=ROWS_PANEL, help=verb_help(text), epilog=epilog)(verb)


# -- get


@placed
def get_row(
    name: TableArgument,
    key: KeyArgument,
    place: StorePlace,
    columns: ColumnsOption = None,
    rows: RowsOption = "all",
    at: AtOption = None,
    history: Annotated[int | None, typer.Option("--history", min=1, help="So many versions of each column.")] = None,
    json: JsonOption = False,
) -> None:
    """One row: its newest values, those at a time, or its history.

    Exit code 1 if there is no such row; one that has none of --columns is shown without values. With --json one line,
    in which binary values and cells are {"$binary": BASE64}, decimals strings, and NaN {"$float": "NaN"}; with
    --history each column is a list of {"value", "ts", "txn"}, newest first. A key that begins with - stands behind --.
    """
    wanted, moment = comma_listed(columns), typed_at(at)
    with place.open(read_only=True) as database:
        table = database.table(name)
        schema = table.schema
        row_key = only_key(schema, key)
        row = table.get(row_key, columns=wanted, at=moment, rows=rows)
        if row is None:
            raise _no_row(table, row_key, wanted, moment)
        versions = None if history is None else table.history(row_key, columns=wanted, limit=history, at=moment)
    types = column_types(schema)
    if versions is not None:
        _show_versions(schema, types, row, versions, json)
    elif json:
        print_line(json_row(types, row))
    else:
        out().print(facts((column, cell_text(types, column, value)) for column, value in row.items()))


def _no_row(table: stelae.Table, key: Any, columns: Sequence[str] | None, at: object) -> NotFound:
    what = f"no row {show(key)} in {table.name}"
    if columns and table.exists(key, at=at):
        return NotFound(f"row {show(key)} of {table.name} has no {' and no '.join(columns)}")
    return NotFound(f"{what} at that time" if at is not None else what)


def _show_versions(
    schema: TableSchema,
    types: Mapping[str, ColumnType],
    row: Mapping[str, Value],
    versions: Mapping[str, Sequence[stelae.Version]],
    json: bool,
) -> None:
    keys = {key.name: row[key.name] for key in schema.key}
    if json:
        told: dict[str, Any] = json_row(types, keys)
        for column, each in versions.items():
            told[column] = json_versions(types.get(column, Binary()), each)
        print_line(told)
        return
    out().print(facts((column, cell_text(types, column, value)) for column, value in keys.items()))
    table = grid("column", "value", "time", "txn", right=("txn",))
    for column, each in versions.items():
        for at, version in enumerate(each):
            table.add_row(
                on_one_line(column) if at == 0 or not is_screen(sys.stdout) else "",
                cell_text(types, column, version.value),
                f"{datetime_of_micros(version.ts):%Y-%m-%d %H:%M:%S.%f}"[:-3] + "Z",
                f"[dim]{version.txn}[/]",
            )
    out().print(table)


def cell_text(types: Mapping[str, ColumnType], column: str, value: Value) -> str:
    """A value for a person: bytes as text where they are some."""
    if value is None:
        return "[dim]NULL[/]"
    if isinstance(value, bytes):
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = ""
        return on_one_line(text) if text.isprintable() and text else f"[dim]0x[/]{value.hex()}"
    if isinstance(value, datetime):
        return value.isoformat(" ").removesuffix("+00:00") + ("" if value.tzinfo is None else "Z")
    if isinstance(value, list | dict):
        return on_one_line(_nested_text(types.get(column, Binary()), value))
    return on_one_line(str(value))


def _nested_text(type_: ColumnType, value: Value) -> str:
    return msgspec.json.encode(json_value(type_, value)).decode()


# -- put

_PUT_HELP = """Write columns and cells of a row; durable when it returns.

Behind the key, COLUMN=VALUE takes the value as the column's type says, COLUMN:=JSON takes JSON (null is NULL). Columns
that are not named stay as they are; the key alone makes the row exist. Without a key, rows are read as JSON lines from
standard input, in the form that `get` and `scan` give with --json. Words that begin with - stand behind --.

    stelae put users ann name=Ann age=31 click:home=1
    stelae put users ann 'tags:=["new"]' score:=null
    stelae put users --json-line '{"id": "ann", "age": 31}'
    stelae put users < rows.jsonl
"""


@placed
def put_rows(
    name: TableArgument,
    place: StorePlace,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY COLUMN=VALUE", show_default=False, help="The key's parts, then values."),
    ] = None,
    json_line: Annotated[
        list[str] | None, typer.Option("--json-line", metavar="JSON", help="A row; may be repeated.")
    ] = None,
    if_absent: Annotated[bool, typer.Option("--if-absent", help="Refuse if there is such a row.")] = False,
    ts: Annotated[int | None, typer.Option("--ts", help="The values' time in microseconds; else now.")] = None,
    json: JsonOption = False,
) -> None:
    if words and json_line:
        raise InvalidArgument("give a key and values, or --json-line, but not both")
    lines: Iterable[tuple[str, str | bytes]] | None = None
    if json_line:
        lines = (("--json-line", text) for text in json_line)
    elif not words:
        lines = _lines_of(sys.stdin.buffer)
    with place.open() as database:
        table = database.table(name)
        if lines is None:
            row = _said_row(table.schema, words or [])
            txn: int | None = table.put(row, ts=ts, if_absent=if_absent)
            count = 1
        else:
            txn, count = _put_lines(table, lines, ts, if_absent)
    if json:
        print_json({"rows": count, "txn": txn})
    else:
        out().print(f"[green]written[/] {counted(count, 'row')}" + (f" at {txn}" if txn is not None else ""))


def _said_row(schema: TableSchema, words: Sequence[str]) -> dict[str, Value]:
    if words and not is_json_key(schema, words[0]):
        for word in words[: len(schema.key)]:
            _check_is_key(schema, word)
    key, rest = typed_key(schema, words)
    parts = key if isinstance(key, tuple) else (key,)
    keys = key if isinstance(key, dict) else dict(zip(schema.codec.names, parts, strict=True))
    values = assignments(schema, rest)
    for column in values:
        if column.casefold() in {known.casefold() for known in keys}:
            raise InvalidArgument(f"column {column!r} is of the key, which stands before the values")
    return {**keys, **values}


def _check_is_key(schema: TableSchema, word: str) -> None:
    """A value where the key should stand would become a row with an odd key, which nobody means. Under a wildcard, any
    name may be a column's."""
    if "=" in word:
        keys = " ".join(key.name.upper() for key in schema.key)
        line = {key.name: word if at == 0 else "..." for at, key in enumerate(schema.key)}
        raise InvalidArgument(
            f"{word!r} is a value, and the key stands before values: {keys} {word}; a row whose key is {word!r} is "
            f"written by --json-line '{msgspec.json.encode(line).decode()}'"
        )


def _lines_of(stream: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    if stream.isatty():
        raise InvalidArgument("give a key and values, --json-line, or rows as JSON lines on standard input")
    for number, line in enumerate(stream, 1):
        if line.strip():
            yield f"line {number}", line


def _put_lines(
    table: stelae.Table, lines: Iterable[tuple[str, str | bytes]], ts: int | None, if_absent: bool
) -> tuple[int | None, int]:
    """The last txn, and how many rows."""
    types, txn, count = column_types(table.schema), None, 0
    rows: list[dict[str, Value]] = []
    places: list[str] = []

    def write() -> None:
        nonlocal txn, count
        if len(rows) == 1 or if_absent:
            for row, place in zip(rows, places, strict=True):
                with told_at(lambda _, place=place: place):  # type: ignore[misc]
                    txn = table.put(row, ts=ts, if_absent=if_absent)
                count += 1
        elif rows:
            with told_at(lambda at: f"{places[0]} to {places[-1]}" if at is None else places[at]):
                txn = table.put_many(rows, ts=ts)
            count += len(rows)
        rows.clear()
        places.clear()

    try:
        for place, text in lines:
            rows.append(row_from_json(types, decoded(text, place), place))
            places.append(place)
            if len(rows) >= _ROWS_A_WRITE:
                write()
        write()
    except (StelaeError, KeyboardInterrupt):
        if count:
            note(f"{counted(count, 'row')} before are written")
        raise
    return txn, count


# -- erase


@placed
def erase_rows(
    name: TableArgument,
    place: StorePlace,
    key: Annotated[
        list[str] | None, typer.Argument(metavar="KEY", help="The key's parts, or as JSON.", show_default=False)
    ] = None,
    columns: ColumnsOption = None,
    start: Annotated[str | None, typer.Option("--start", metavar="KEY", help="Rows from this key on...")] = None,
    stop: Annotated[str | None, typer.Option("--stop", metavar="KEY", help="...to below this one.")] = None,
    prefix: Annotated[str | None, typer.Option("--prefix", metavar="KEY", help="Rows that begin with it.")] = None,
    ts: Annotated[int | None, typer.Option("--ts", help="Only what is not newer, in microseconds.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before erasing a range.")] = False,
    json: JsonOption = False,
) -> None:
    """Erase a row, some columns of it, or a range of rows.

    --start, --stop and --prefix are the first part of a key, or as JSON its first parts. A row that is not there is no
    error. History before the erasure stays readable for the table's retention.
    """
    is_range = any(bound is not None for bound in (start, stop, prefix))
    if bool(key) == is_range or (is_range and not any((start, stop, prefix))):
        raise InvalidArgument(
            "erase what? Give a key, or a range with --start, --stop or --prefix; "
            f"`stelae table truncate {name}` erases all rows"
        )
    with place.open() as database:
        table = database.table(name)
        schema = table.schema
        if not is_range:
            txn = table.erase(only_key(schema, key or []), columns=comma_listed(columns), ts=ts)
            told: dict[str, Any] = {"txn": txn}
            words = f"at {txn}"
        else:
            if columns or ts is not None:
                raise InvalidArgument("--columns and --ts go with a single key")
            low, high = typed_bound(schema, start, "--start"), typed_bound(schema, stop, "--stop")
            first = typed_bound(schema, prefix, "--prefix")
            count = table.count(start=low, stop=high, prefix=first)
            if not yes and count and not ask_yes_no(f"Erase {counted(count, 'row')} of {table.name}?"):
                raise InvalidArgument(f"none of {counted(count, 'row')} was erased; --yes does it without asking")
            told = {"rows": table.erase_range(low, high, prefix=first) if count else 0}
            words = counted(told["rows"], "row")
    if json:
        print_json(told)
    else:
        out().print(f"[green]erased[/] {words}")
