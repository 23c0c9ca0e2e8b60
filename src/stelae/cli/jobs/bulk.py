"""`stelae compact|export|backup|restore|verify|stats`: jobs over whole tables, on Spark.

Small tables are compacted, backed up and counted in this process: they are done before Spark has started."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stelae.cli.jobs.starting import JOBS_PANEL, MasterOption, start_spark
from stelae.cli.looks import Looks
from stelae.cli.places import JsonOption, StorePlace, TableArgument, placed
from stelae.cli.rows import AtOption, ColumnsOption, RowsOption
from stelae.cli.screens import (
    as_shown,
    ask_yes_no,
    counted,
    facts,
    grid,
    out,
    print_json,
    print_line,
    progress_bar,
    size_text,
    verb_help,
)
from stelae.cli.tables import YesOption
from stelae.cli.words.keys import comma_listed, typed_at
from stelae.model.errors import AlreadyExists, InvalidArgument
from stelae.model.hybrid import show_moment
from stelae.model.ids import Txn

if TYPE_CHECKING:
    import stelae
    from stelae.service.reports import Progress
    from stelae.spark.driver.progress import Summary
    from stelae.spark.jobs.manifests import FoundBackup

WITHOUT_SPARK_BYTES_MAX = 256 * 2**20
"""A table of so many bytes is compacted, backed up and counted sooner than Spark has started."""
DIFFERENT = 1

DirectoryArgument = Annotated[str, typer.Argument(metavar="DIR", help="With backups; or a URL.", show_default=False)]


def register_jobs(app: typer.Typer) -> None:
    for name, verb, example in (
        ("compact", compact_table, "compact users --path data"),
        ("export", export_table, "export users out --format csv --where 'age > 30' --path data"),
        ("backup", backup_table, "backup users backups --path data"),
        ("restore", restore_table, "restore backups --table users --name users_then --path data"),
        ("verify", verify_table, "verify users backups --path data"),
        ("stats", show_stats, "stats users --plot users.html --path data"),
    ):
        text = verb_help(verb.__doc__ or "")
        app.command(name, rich_help_panel=JOBS_PANEL, help=text, epilog=f"Example: stelae {example}")(verb)


@contextmanager
def _job(
    place: StorePlace, master: str | None, what: str, *, make: bool = False, table: str | None = None
) -> Iterator[tuple[Any, stelae.Database, Progress]]:
    """The store, a session, and whom to tell how it goes. `table`: which the job is on, if it can be done without
    Spark; a small one is, and there is no session, unless one is asked for."""
    with place.open(make=make) as database:
        is_small = table is not None and master is None and _size_bytes(database, table) <= WITHOUT_SPARK_BYTES_MAX
        spark = None if is_small else start_spark(master)
        with progress_bar(what) as bar:
            yield spark, database, bar.at


def _size_bytes(database: stelae.Database, table: str) -> int:
    found = database.table(table).stats()
    return found.file_bytes + found.memory_bytes


def _show(summary: Summary, *, colour: str = "green") -> None:
    out().print(f"[{colour}]{as_shown(summary.title)}[/]")
    out().print(facts((name, as_shown(value)) for name, value in summary.facts))


def _plain(value: Any) -> Any:
    """For JSON: bytes in hex, whatever it does not know as text."""
    match value:
        case dict():
            return {str(name): _plain(each) for name, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case bytes():
            return value.hex()
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(value)


@placed
def compact_table(
    name: TableArgument,
    place: StorePlace,
    worth_it: Annotated[bool, typer.Option("--worth-it", help="Only what is worth it now, not everything.")] = False,
    erase_now: Annotated[
        bool, typer.Option("--erase-now", help="Drop what is erased or purged without regard to retention.")
    ] = False,
    master: MasterOption = None,
    json: JsonOption = False,
) -> None:
    """Merge a table's files, so that reading is quick and what is erased goes.

    Reading and writing go on meanwhile. What is interrupted leaves the rest of the table as it was.
    """
    from stelae.spark.jobs.compacting import compact

    with _job(place, master, "compacting", table=name) as (spark, database, progress):
        result = compact(spark, database, name, full=not worth_it, erase_now=erase_now, progress=progress)
    if json:
        print_json(asdict(result))
    else:
        _show(result.summary)


@placed
def export_table(
    name: TableArgument,
    place: StorePlace,
    directory: Annotated[str, typer.Argument(metavar="DIR", help="Where to; made if it is not there.")],
    format_: Annotated[
        str, typer.Option("--format", metavar="parquet|csv|json", help="What kind of files.")
    ] = "parquet",
    columns: ColumnsOption = None,
    rows: RowsOption = "all",
    where: Annotated[str | None, typer.Option("--where", metavar="WHERE", help="A condition, as of `scan`.")] = None,
    at: AtOption = None,
    mode: Annotated[
        str, typer.Option("--mode", metavar="error|overwrite|append", help="If the directory is there.")
    ] = "error",
    master: MasterOption = None,
    json: JsonOption = False,
) -> None:
    """Write a table to a directory of Parquet, CSV or JSON files.

    Cells are maps. Bytes are {"$binary": BASE64} in JSON; in CSV they and nested values are the JSON that says them.
    """
    from stelae.spark.jobs.exporting import export

    asked: dict[str, Any] = {"columns": comma_listed(columns), "rows": rows, "where": where, "at": typed_at(at)}
    with _job(place, master, "exporting") as (spark, database, progress):
        try:
            result = export(spark, database, name, directory, format=format_, mode=mode, progress=progress, **asked)
        except AlreadyExists as error:
            raise AlreadyExists(re.sub(r"mode='(\w+)'", r"--mode \1", str(error))) from None
    if json:
        print_json(asdict(result))
    else:
        _show(result.summary)


def _or_listed(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb, or, if backups are to be listed, only their list: that needs no store."""

    @wraps(verb)
    def wrapped(**given: Any) -> None:
        listed = given["listed"]
        if listed is None:
            verb(**given)
        else:
            _list_backups(listed, given["json"])

    return wrapped


@_or_listed
@placed
def backup_table(
    place: StorePlace,
    name: Annotated[str | None, typer.Argument(metavar="TABLE", help="NAME, or NAMESPACE.NAME.")] = None,
    directory: Annotated[str | None, typer.Argument(metavar="DIR", help="Where to: a directory, or a URL.")] = None,
    at: AtOption = None,
    full: Annotated[bool, typer.Option("--full", help="Copy all files, also those an earlier backup has.")] = False,
    keep: Annotated[
        int | None, typer.Option("--keep", min=1, metavar="N", help="Remove all but the N newest backups of it.")
    ] = None,
    listed: Annotated[  # noqa: ARG001 - dealt with before
        str | None, typer.Option("--list", metavar="DIR", help="Only show what backups a directory has.")
    ] = None,
    master: MasterOption = None,
    json: JsonOption = False,
) -> None:
    """Copy a table to a backup directory: what changed since its last backup there, or all of it.

    Each backup stands for itself and covers all snapshots that the table could still show then. A directory may hold
    backups of many tables. With --list --json one line for each backup.
    """
    from stelae.spark.jobs.backups import backup

    if name is None or directory is None:
        raise InvalidArgument(
            "which table, and where to? Write `stelae backup TABLE DIR`, or `stelae backup --list DIR`"
        )
    moment = typed_at(at)
    with _job(place, master, "backing up", table=name) as (spark, database, progress):
        incremental = False if full else None
        result = backup(
            spark, database, name, directory, at=moment, incremental=incremental, keep=keep, progress=progress
        )
    if json:
        print_json(asdict(result))
    else:
        _show(result.summary)


def _list_backups(directory: str, json: bool) -> None:
    from stelae.spark.jobs.backups import backups

    found = backups(directory)
    if json:
        for each in found:
            print_line(_json_backup(each))
        return
    table = grid("table", "at", "taken", "kind", "files", "size", right=("at", "files", "size"))
    for each in found:
        manifest = each.manifest
        if manifest is None:
            table.add_row(as_shown(each.key), str(each.txn), "", f"[red]damaged: {as_shown(each.problem)}[/]", "", "")
            continue
        kind = (
            "full" if manifest.incremental_to is None else f"incremental to {show_moment(Txn(manifest.incremental_to))}"
        )
        size = size_text(manifest.size_bytes)
        table.add_row(as_shown(manifest.table), str(each.txn), show_moment(each.txn), kind, len(manifest.files), size)
    out().print(table if found else f"no backups in {as_shown(directory)}")


def _json_backup(found: FoundBackup) -> dict[str, Any]:
    manifest = found.manifest
    if manifest is None:
        return {"key": found.key, "txn": found.txn, "problem": str(found.problem)}
    return {
        "key": found.key,
        "txn": found.txn,
        "table": manifest.table,
        "taken": manifest.taken,
        "horizon": manifest.horizon,
        "incremental_to": manifest.incremental_to,
        "files": len(manifest.files),
        "size_bytes": manifest.size_bytes,
        "columns": manifest.columns,
    }


@placed
def restore_table(
    place: StorePlace,
    directory: DirectoryArgument,
    table: Annotated[
        str | None, typer.Option("--table", metavar="TABLE", help="Which, if the directory has several.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NEW", help="As a new table of that name.")] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="In the place of what the table holds now.")] = False,
    at: AtOption = None,
    yes: YesOption = False,
    master: MasterOption = None,
    json: JsonOption = False,
) -> None:
    """Bring a table back from its backups, as it was at any time that they cover.

    All of it appears at one txn, or nothing does. With --name a store is made if there is none.
    """
    from stelae.spark.jobs.restoring import restore

    moment = typed_at(at)
    if (
        in_place
        and not yes
        and not ask_yes_no(f"Put the backup in {directory} in the place of what the table holds now?")
    ):
        raise InvalidArgument("nothing was restored; --yes does it without asking")
    with _job(place, master, "restoring", make=name is not None) as (spark, database, progress):
        result = restore(spark, database, directory, table, name=name, in_place=in_place, at=moment, progress=progress)
    if json:
        print_json(asdict(result))
    else:
        _show(result.summary)


@placed
def verify_table(
    name: TableArgument,
    place: StorePlace,
    other: Annotated[str, typer.Argument(metavar="OTHER", help="Another table, or a backup directory.")],
    at: AtOption = None,
    other_at: Annotated[
        str | None, typer.Option("--other-at", metavar="TXN|TIME", help="The other side as of then.")
    ] = None,
    backup_of: Annotated[
        str | None, typer.Option("--backup-of", metavar="TABLE", help="Which table of a backup directory.")
    ] = None,
    columns: ColumnsOption = None,
    samples: Annotated[int, typer.Option("--samples", min=0, help="How many differing rows to show.")] = 10,
    master: MasterOption = None,
    json: JsonOption = False,
) -> None:
    """Is a table the same as another, or as its backup?

    Every value of every row is compared. Exit code 0: the same. 1: not, and what differs is shown.
    """
    from stelae.spark.jobs.verifying import verify

    moments, wanted = [typed_at(at), typed_at(other_at)], comma_listed(columns)
    with _job(place, master, "verifying") as (spark, database, progress):
        result = verify(
            spark,
            database,
            name,
            other,
            at=moments[0],
            other_at=moments[1],
            backup_of=backup_of,
            columns=wanted,
            samples=samples,
            progress=progress,
        )
    if json:
        print_json({"same": result.is_same, **_plain(asdict(result))})
    else:
        _show(result.summary, colour="bold green" if result.is_same else "bold red")
    if not result.is_same:
        raise typer.Exit(DIFFERENT)


@placed
def show_stats(
    name: TableArgument,
    place: StorePlace,
    at: AtOption = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw it too: an .html or .svg file.")
    ] = None,
    master: MasterOption = None,
    json: JsonOption = False,
) -> None:
    """How a table lies in its tablets: rows, versions, erasures, files, bytes, and how even they are.

    All is counted, at one snapshot.
    """
    from stelae.spark.jobs.plots import check_plot
    from stelae.spark.jobs.statistics import HEAD, stats

    moment = typed_at(at)
    if plot is not None:
        check_plot(plot)
    with place.open(read_only=True) as database:
        Looks(database).check_whole(name)
    with _job(place, master, "counting", table=name) as (spark, database, progress):
        result = stats(spark, database, name, at=moment, progress=progress)
    if plot is not None:
        result.plot(plot)
    if json:
        skews = {"row_skew": result.row_skew, "byte_skew": result.byte_skew}
        totals = {each: getattr(result, each) for each in ("rows", "records", "erasures", "size_bytes")}
        tablets = [
            {**asdict(each), "versions_per_row": each.versions_per_row, "share": result.share(each)}
            for each in result.tablets
        ]
        print_json(_plain({**asdict(result), **totals, **skews, "tablets": tablets}))
        return
    table = grid(*HEAD, right=tuple(each for each in HEAD if each != "from"), title=as_shown(result.caption()))
    for line in result.lines():
        table.add_row(*(_counted_cell(cell) for cell in line))
    out().print(table)
    out().print(as_shown(result.skews()))
    if plot is not None:
        out().print(f"[dim]drawn to {as_shown(plot)}, {counted(len(result.tablets), 'tablet')}[/]")


def _counted_cell(cell: str) -> str | int:
    """A count as a number, which shows as such to a program."""
    digits = cell.replace(",", "")
    return int(digits) if digits.isdecimal() else as_shown(cell)
