"""`stelae scan`: many rows, to the screen, as JSON lines, or into a file."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stelae.cli.places import ROWS_PANEL, JsonOption, StorePlace, TableArgument, placed
from stelae.cli.rows import AtOption, ColumnsOption, RowsOption, cell_text
from stelae.cli.screens import (
    Grid,
    counted,
    grid,
    note,
    number_text,
    on_one_line,
    out,
    print_json,
    print_line,
    verb_help,
)
from stelae.cli.words.keys import comma_listed, typed_at, typed_bound
from stelae.model.errors import InvalidArgument
from stelae.model.schema import WILDCARD

if TYPE_CHECKING:
    import pyarrow as pa

    from stelae.cli.outputs import FoundRows

_PAGE_ROWS = 1_000

_SCAN_HELP = """Many rows: to the screen, as JSON lines, or into a file.

Rows come in the order of their keys; those of a hashed table do not, unless they are --ordered. --columns chooses what
is shown of them, and not which rows: with --rows having only those come that have one of the columns.

WHERE compares columns by name with =, !=, <, <=, >, >=, ~= (begins with), in (...), is null, joined by and, or, not;
`row` is the encoded key, `column ~= "click:"` chooses cells, `history = N` gives versions. --start (included), --stop
(excluded) and --prefix are the first part of a key, or as JSON its first parts. The end of FILE chooses the format:
.parquet, .csv, .json or .jsonl (JSON lines); the file appears when it is whole.

    stelae scan users 'age > 30 and name ~= "A"' --columns name,age --limit 10
    stelae scan users --prefix us- --output us.parquet
    stelae scan users 'column ~= "click:" and history = 2' --json
"""


def register_scan(app: typer.Typer) -> None:
    epilog = "Example: stelae scan users 'age > 30' --limit 10 --path data"
    app.command("scan", rich_help_panel=ROWS_PANEL, help=verb_help(_SCAN_HELP), epilog=epilog)(scan_table)


@placed
def scan_table(
    name: TableArgument,
    place: StorePlace,
    where: Annotated[str | None, typer.Argument(metavar="WHERE", help="A condition.", show_default=False)] = None,
    start: Annotated[str | None, typer.Option("--start", metavar="KEY", help="From this key on.")] = None,
    stop: Annotated[str | None, typer.Option("--stop", metavar="KEY", help="To below this key.")] = None,
    prefix: Annotated[str | None, typer.Option("--prefix", metavar="KEY", help="Keys that begin with it.")] = None,
    columns: ColumnsOption = None,
    rows: RowsOption = "all",
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=0, help="No more rows than that.")] = None,
    reverse: Annotated[bool, typer.Option("--reverse", "-r", help="From the last to the first.")] = False,
    ordered: Annotated[bool, typer.Option("--ordered", help="Sort the rows of a hashed table, in memory.")] = False,
    at: AtOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Into a .parquet, .csv or .json file.")
    ] = None,
    count: Annotated[bool, typer.Option("--count", help="Only how many there are.")] = False,
    json: JsonOption = False,
) -> None:
    from stelae.cli.outputs import FoundRows, write_file

    moment, wanted = typed_at(at), comma_listed(columns)
    kind = None if output is None else _kind(output)
    if count and output is not None:
        raise InvalidArgument("give --count or --output, not both")
    with place.open(read_only=True) as database:
        table = database.table(name)
        schema = table.schema
        bounds = {
            "start": typed_bound(schema, start, "--start"),
            "stop": typed_bound(schema, stop, "--stop"),
            "prefix": typed_bound(schema, prefix, "--prefix"),
        }
        chosen: dict[str, Any] = {"columns": wanted, "rows": rows, "limit": limit}
        chosen |= {"reverse": reverse, "ordered": ordered}
        with table.scan(where, at=moment, **bounds, **chosen) as scan:
            found = FoundRows(scan, schema, wanted)
            if count:
                _print_count(sum(batch.num_rows for batch in scan.batches()), json)
            elif output is not None and kind is not None:
                write_file(found, output, kind, json)
            elif json:
                for row in scan:
                    print_line(found.json(row))
            else:
                _to_screen(found)


def _kind(file: Path) -> str:
    from stelae.cli.outputs import SUFFIXES

    kind = SUFFIXES.get(file.suffix.lower())
    if kind is None:
        raise InvalidArgument(f"--output {str(file)!r}: the name ends in none of {', '.join(SUFFIXES)}")
    return kind


def _print_count(count: int, json: bool) -> None:
    if json:
        print_json({"rows": count})
    else:
        out().print(number_text(count))


# -- the screen


def _to_screen(found: FoundRows) -> None:
    rows, shown = iter(found.scan), 0
    while page := list(islice(rows, _PAGE_ROWS)):
        table = _page(found, page)
        table.is_continued = shown > 0
        out().print(table)
        shown += len(page)
    if sys.stderr.isatty() or not shown:
        note(counted(shown, "row"))


def _page(found: FoundRows, page: Sequence[Mapping[str, Any]]) -> Grid:
    names = found.scan.schema.names
    numbers = [field.name for field in found.scan.schema if _is_number(field.type)]
    plain = [name for name in names if name in found.types]
    families = [name for name in names if name not in found.types]
    table = grid(*plain, *(name if name == WILDCARD else f"{name}:" for name in families), right=numbers)
    for row in page:
        cells = [_family_text(found, row, family, families) for family in families]
        table.add_row(*(_value_text(found, name, row.get(name)) for name in plain), *cells)
    return table


def _is_number(type_: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_))


def _value_text(found: FoundRows, name: str, value: Any) -> str:
    if found.has_versions and name not in found.keys:
        return "\n".join(cell_text(found.types, name, each.value) for each in value or ())
    return cell_text(found.types, name, value)


def _family_text(found: FoundRows, row: Mapping[str, Any], family: str, families: Sequence[str]) -> str:
    """A family's cells, one a line; of the wildcard, those of no other family that is shown."""
    lines = []
    for name, value in row.items():
        own, colon, qualifier = name.partition(":")
        if colon and (own == family or (family == WILDCARD and own not in families)):
            shown = on_one_line(name if family == WILDCARD else qualifier)
            lines.append(f"[cyan]{shown}[/]={_value_text(found, name, value)}")
    return "\n".join(lines)
