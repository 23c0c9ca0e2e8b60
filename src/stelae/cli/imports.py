"""`stelae import`: files of rows into a table, without Spark.

Rows are put part by part, in order, so after a failure all parts before it are durable; puts of the same rows say the
same again, so the whole command can simply be run again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import stelae
from stelae.adapters.clock import SystemClock
from stelae.cli.mistakes import told_at
from stelae.cli.places import ROWS_PANEL, JsonOption, StorePlace, TableArgument, placed
from stelae.cli.screens import Bar, as_shown, counted, note, out, print_json, progress_bar, verb_help
from stelae.cli.words.declarations import key_names_or_types
from stelae.cli.words.values import input_types
from stelae.model.errors import InvalidArgument, NotFound, PartialWrite, StelaeError, nearest

if TYPE_CHECKING:
    import pyarrow as pa

    from stelae.cli.files import FileForm, FilePart

_IMPORT_HELP = """Put the rows of CSV, JSON lines or Parquet files into a table.

Columns go by their names: the header of a CSV file, the names in JSON and Parquet; `click:home` is a cell. Fields are
read as the table's types say. An empty field of CSV that is not quoted is NULL, and NULL is written, unless --nulls
skip leaves the column untouched. Rows that are there already are updated, so that after a failure, which names the file
and the line, the command can be run again. Files may be compressed: .gz, .bz2, .zst.

With --create a table is made if there is none, with the types that the first file shows.

    stelae import users people.csv more.jsonl
    stelae import orders orders.parquet --create --key "customer, number"
    zcat people.csv.gz | stelae import users - --format csv
"""


def register_import(app: typer.Typer) -> None:
    epilog = "Example: stelae import users people.csv --path data"
    app.command("import", rich_help_panel=ROWS_PANEL, help=verb_help(_IMPORT_HELP), epilog=epilog)(import_files)


@placed
def import_files(
    name: TableArgument,
    place: StorePlace,
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="- is standard input.", show_default=False)],
    create: Annotated[bool, typer.Option("--create", help="Make the table if it is not there.")] = False,
    key: Annotated[str | None, typer.Option("--key", metavar="NAME", help="Its key columns, with --create.")] = None,
    format_: Annotated[
        str | None, typer.Option("--format", metavar="csv|tsv|json|parquet", help="Else by the files' names.")
    ] = None,
    nulls: Annotated[str, typer.Option("--nulls", metavar="write|skip", help="What NULL does.")] = "write",
    null_text: Annotated[
        list[str] | None, typer.Option("--null-text", metavar="TEXT", help="NULL in CSV; an empty field if left out.")
    ] = None,
    delimiter: Annotated[str | None, typer.Option("--delimiter", metavar="CHAR", help="Of CSV; a comma.")] = None,
    batch_rows: Annotated[int, typer.Option("--batch-rows", min=1, max=1_000_000, help="Written at once.")] = 10_000,
    json: JsonOption = False,
) -> None:
    from stelae.cli.files import check_file, file_kind

    form = _form(format_, delimiter, null_text, batch_rows)
    if nulls not in ("write", "skip"):
        raise InvalidArgument(f"--nulls {nulls!r}: write, or skip")
    if create and key is None:
        raise InvalidArgument("--create needs --key: which columns are the key?")
    for file in files:
        check_file(file)
        file_kind(file, form)
    clock = SystemClock()
    done = 0
    try:
        with place.open(make=create) as database:
            started = clock.monotonic_s()
            table = _table(database, name, files[0], form, key if create else None)
            said = table.name
            done = _Import(table, form, nulls, clock).run(files)
            took = max(clock.monotonic_s() - started, 1e-9)
    except KeyboardInterrupt:
        if done:  # the store was being closed
            note(f"all {counted(done, 'row is', 'rows are')} durable")
        raise
    if json:
        rate = round(done / took)
        print_json({"rows": done, "files": len(files), "seconds": round(took, 3), "rows_per_second": rate})
        return
    out().print(
        f"[green]imported[/] {counted(done, 'row')} of {counted(len(files), 'file')} into {as_shown(said)} "
        f"[dim]({took:.1f} s, {done / took:,.0f} rows/s)[/]"
    )


def _form(kind: str | None, delimiter: str | None, null_text: list[str] | None, batch_rows: int) -> FileForm:
    from stelae.cli.files import FileForm

    known = {"jsonl": "json", "ndjson": "json"}
    kind = None if kind is None else known.get(kind.lower(), kind.lower())
    if kind not in (None, "csv", "tsv", "json", "parquet"):
        raise InvalidArgument(f"--format {kind!r}: csv, tsv, json or parquet")
    delimiter = {"tab": "\t", "\\t": "\t"}.get(delimiter or "", delimiter)
    if delimiter is not None and len(delimiter.encode()) != 1:
        raise InvalidArgument(f"--delimiter {delimiter!r}: one character, or tab")
    return FileForm(kind, delimiter, tuple(null_text or [""]), batch_rows)


def _table(database: stelae.Database, name: str, first: Path, form: FileForm, key: str | None) -> stelae.Table:
    """As it is, or made like the first file."""
    from stelae.cli.files import arrow_schema_of_file

    try:
        return database.table(name)
    except NotFound as error:
        if key is None:
            raise NotFound(f"{error}; --create --key NAME makes it from the file") from None
    shown = arrow_schema_of_file(first, form)
    keys = key_names_or_types(key, "--key")
    families = list(dict.fromkeys(field.name.partition(":")[0] for field in shown if ":" in field.name))
    if not families:
        return database.create_table(name, keys, like=shown)
    return database.create_table(name, *_with_cells(shown, keys, families))


def _with_cells(shown: pa.Schema, keys: Mapping[str, str] | Sequence[str], families: list[str]) -> tuple[Any, Any]:
    """The key and the groups of a table for columns and cells."""
    from stelae.client.arguments.declarations import LIKE_GROUP
    from stelae.model.arrow import from_arrow

    types = {field.name: str(from_arrow(field.type, field.name)) for field in shown if ":" not in field.name}
    if not isinstance(keys, Mapping):
        for name in keys:
            if name not in types:
                raise InvalidArgument(f"--key {name}: there is no such column{nearest(name, types)}")
        keys = {name: types[name] for name in keys}
    plain = {name: type_ for name, type_ in types.items() if name not in keys}
    return keys, [*([stelae.columns(LIKE_GROUP, plain)] if plain else []), stelae.cells("cells", families)]


class _Import:
    def __init__(self, table: stelae.Table, form: FileForm, nulls: str, clock: SystemClock) -> None:
        self._table = table
        self._form = form
        self._nulls = nulls
        self._clock = clock
        self._durable = 0

    def run(self, files: Sequence[Path]) -> int:
        """Write the rows of all files; return how many there were."""
        from stelae.cli.files import STANDARD_INPUT, parts_of

        sizes = [0 if file == STANDARD_INPUT else file.stat().st_size for file in files]
        started, before = self._clock.monotonic_s(), 0
        types = input_types(self._table.schema)
        try:
            with progress_bar("importing", total=sum(sizes) or None) as bar:
                for file, size in zip(files, sizes, strict=True):
                    for part in parts_of(file, self._form, types):
                        self._write(part)
                        self._show(bar, before + part.read_bytes, started)
                    before += size
        except (StelaeError, KeyboardInterrupt) as error:
            self._durable += error.durable if isinstance(error, PartialWrite) else 0
            note(self._afterwards())
            raise
        return self._durable

    def _afterwards(self) -> str:
        if not self._durable:
            return "nothing of it was written"
        done = counted(self._durable, "row is", "rows are")
        return f"{done} durable; to go on run it again, writing rows twice changes nothing"

    def _write(self, part: FilePart) -> None:
        try:
            with told_at(part.place_of):
                self._table.put_many(part.rows, nulls=self._nulls)
        except InvalidArgument as error:
            raise InvalidArgument(str(error).replace("nulls='skip'", "--nulls skip")) from None
        self._durable += part.count

    def _show(self, bar: Bar, read_bytes: float, started: float) -> None:
        rate = self._durable / max(self._clock.monotonic_s() - started, 1e-9)
        bar.at(read_bytes, words=f"{counted(self._durable, 'row')}, {rate:,.0f} rows/s")
