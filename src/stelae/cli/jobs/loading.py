"""`stelae load`: files of rows into a table, by Spark: all of them visible at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import stelae
from stelae.cli.jobs.starting import JOBS_PANEL, MasterOption, start_spark
from stelae.cli.places import JsonOption, StorePlace, placed
from stelae.cli.screens import as_shown, facts, out, print_json, progress_bar, verb_help
from stelae.cli.words.declarations import key_names_or_types, typed_columns
from stelae.model.errors import InvalidArgument, NotFound
from stelae.model.types import ColumnType, parse_type

if TYPE_CHECKING:
    from stelae.model.schema import TableSchema

_KINDS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "tsv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}
_COMPRESSED = (".gz", ".bz2", ".zst", ".lz4", ".snappy")

_HELP = """Load Parquet, CSV or JSON lines files into a table, with Spark.

All rows are checked, sorted and written as finished files, and then become visible together; if anything is wrong,
nothing is loaded, and the error shows some of the rows. --on-bad skip puts such rows aside and loads the others. A
--job that is named is done once, however often it is run.

Columns go by their names. Text is read as the table's types say, or as --schema does. With --create a table is made if
there is none, with what the files show, and tablets that begin where a sample of their keys says.

    stelae load orders/*.parquet --table orders --job orders-2026-11-16
    stelae load people.csv --table users --create --key id --tablets 8
    stelae load events.jsonl --table events --schema "id int64, at timestamp" --mode overwrite
"""


def register_load(app: typer.Typer) -> None:
    epilog = "Example: stelae load people.parquet --table users --path data"
    app.command("load", rich_help_panel=JOBS_PANEL, help=verb_help(_HELP), epilog=epilog)(load_files)


@placed
def load_files(
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="Files or directories.", show_default=False)],
    place: StorePlace,
    table: Annotated[
        str, typer.Option("--table", metavar="TABLE", help="NAME, or NAMESPACE.NAME.", show_default=False)
    ],
    format_: Annotated[
        str | None, typer.Option("--format", metavar="parquet|csv|tsv|json", help="Else by the files' names.")
    ] = None,
    schema: Annotated[
        str | None, typer.Option("--schema", metavar="COLUMNS", help="What the columns are: 'id int64, name string'.")
    ] = None,
    create: Annotated[bool, typer.Option("--create", help="Make the table if it is not there.")] = False,
    key: Annotated[str | None, typer.Option("--key", metavar="NAME", help="Its key columns, with --create.")] = None,
    tablets: Annotated[int | None, typer.Option("--tablets", min=1, help="How many, with --create.")] = None,
    mode: Annotated[str, typer.Option("--mode", metavar="append|overwrite", help="Update rows, or replace all.")] = (
        "append"
    ),
    job: Annotated[str | None, typer.Option("--job", metavar="NAME", help="Names the load: it is done once.")] = None,
    on_bad: Annotated[str, typer.Option("--on-bad", metavar="fail|skip", help="Rows that break a rule.")] = "fail",
    quarantine: Annotated[
        str | None, typer.Option("--quarantine", metavar="DIR", help="Where skipped rows go; else inside the store.")
    ] = None,
    duplicates: Annotated[
        str, typer.Option("--duplicates", metavar="error|last|any", help="Rows that say the same again.")
    ] = "error",
    nulls: Annotated[str, typer.Option("--nulls", metavar="write|skip", help="What NULL does.")] = "write",
    delimiter: Annotated[str, typer.Option("--delimiter", metavar="CHAR", help="Of CSV.")] = ",",
    multiline: Annotated[
        bool, typer.Option("--multiline", help="Fields of CSV have line ends; JSON is not one row a line.")
    ] = False,
    master: MasterOption = None,
    json: JsonOption = False,
) -> None:
    kind, delimiter = _kind(files, format_, delimiter)
    types = None if schema is None else _types(schema)
    if not create and (key is not None or tablets is not None):
        raise InvalidArgument("--key and --tablets are for a table that is made: say --create")
    with place.open(make=create) as database:
        known = _known(database, table, create=create, key=key)
        spark = start_spark(master)
        from stelae.spark.loading.inputs import frame_of_files
        from stelae.spark.loading.loads import load

        # Java's current directory is the one that the first session was started in.
        paths = [file if "://" in file else str(Path(file).absolute()) for file in files]
        frame = frame_of_files(
            spark, paths, kind, types if types is not None else known, delimiter=delimiter, multiline=multiline
        )
        with progress_bar(f"loading {table}") as bar:
            result = load(
                spark,
                database,
                table,
                frame,
                job=job,
                mode=mode,
                on_bad=on_bad,
                quarantine=quarantine,
                duplicates=duplicates,
                nulls=nulls,
                create=create,
                key=_keys(key) if create and known is None else None,
                tablets=tablets if create and known is None else None,
                progress=lambda done, total: bar.at(done, total, f"{done} of {total} tasks"),
            )
    if json:
        print_json(asdict(result))
        return
    summary = result.summary
    out().print(f"[green]{as_shown(summary.title)}[/]")
    out().print(facts((name, as_shown(value)) for name, value in summary.facts))


def _kind(files: Sequence[str], said: str | None, delimiter: str) -> tuple[str, str]:
    """What the files are, and what stands between fields of CSV."""
    delimiter = {"tab": "\t", "\\t": "\t"}.get(delimiter, delimiter)
    if len(delimiter) != 1:
        raise InvalidArgument(f"--delimiter {delimiter!r}: one character, or tab")
    for file in files:
        if "://" not in file and not any(sign in file for sign in "*?[{") and not Path(file).exists():
            raise NotFound(f"{file}: there is no such file")
    kinds = {said.lower()} if said is not None else {_kind_of(file) for file in files}
    kinds = {{"jsonl": "json", "ndjson": "json"}.get(kind, kind) for kind in kinds}
    if len(kinds) > 1:
        raise InvalidArgument(f"files of several formats, {' and '.join(sorted(kinds))}: load them one after the other")
    (kind,) = kinds
    if kind not in ("parquet", "csv", "tsv", "json"):
        raise InvalidArgument(f"--format {kind!r}: parquet, csv, tsv or json")
    return ("csv", "\t") if kind == "tsv" else (kind, delimiter)


def _kind_of(file: str) -> str:
    path = Path(file)
    if path.is_dir():
        inside = sorted(each.name for each in path.rglob("*") if each.is_file() and each.name[0] not in "._")
        path = Path(inside[0]) if inside else path
    suffixes = [suffix.lower() for suffix in path.suffixes]
    while suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    kind = _KINDS.get(suffixes[-1] if suffixes else "")
    if kind is None:
        raise InvalidArgument(f"{file}: say --format parquet, csv, tsv or json; the name does not tell")
    return kind


def _types(schema: str) -> Mapping[str, ColumnType]:
    return {name: parse_type(text) for name, text in typed_columns(schema, "--schema").items()}


def _keys(key: str | None) -> Mapping[str, str] | Sequence[str] | None:
    return None if key is None else key_names_or_types(key, "--key")


def _known(database: stelae.Database, table: str, *, create: bool, key: str | None) -> TableSchema | None:
    """The table's schema; None if it is to be made."""
    try:
        return database.table(table).schema
    except NotFound as error:
        if not create:
            raise NotFound(f"{error}; --create --key NAME makes it from the files") from None
        if key is None:
            raise InvalidArgument("--create needs --key: which columns are the key?") from None
        return None
