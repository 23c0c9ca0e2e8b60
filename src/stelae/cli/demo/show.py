"""`stelae demo`: a store at work on a directory of its own, with figures taken on the way and a report at the end.

With Spark it is the whole pipeline; where there is none, it says what to install and shows what the embedded store does
by itself. The directory it names is all that it leaves: interrupted, it removes a temporary one.
"""

from __future__ import annotations

import shlex
import shutil
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stelae.cli.demo import on_spark, store
from stelae.cli.demo.report import next_commands, write_report
from stelae.cli.demo.stage import DemoStage, rounded
from stelae.model.errors import AlreadyExists, InvalidArgument, JobFailed, PermissionDenied, Unavailable

ROWS_WITH_SPARK, ROWS_WITHOUT = 2_000_000, 300_000


def run(rows: int | None, spark: bool, keep: Path | None, console: Console, report: Path | None = None) -> None:
    if keep is not None and keep.exists():
        raise AlreadyExists(f"{keep} is there already; name a new directory")
    if report is not None and not report.absolute().parent.is_dir():
        raise InvalidArgument(f"the report cannot be written to {report}: there is no such directory")
    directory = Path(tempfile.mkdtemp(prefix="stelae-demo-")) if keep is None else keep.absolute()
    directory.mkdir(exist_ok=True, parents=True)
    stage = DemoStage(directory, rows or (ROWS_WITH_SPARK if spark else ROWS_WITHOUT), console)
    try:
        stage.say(escape(f"All of this happens in {directory}"))
        running = _start_session(stage, rows) if spark else None
        try:
            stage.open()
            try:
                _play(stage, running)
            finally:
                stage.db.close()
        finally:
            if running is not None:
                running.stop()
            shutil.rmtree(directory / "spark", ignore_errors=True)
    except BaseException:
        if keep is None:
            shutil.rmtree(directory, ignore_errors=True)
        raise
    written = report or directory / "report.html"
    write_report(written, stage.story)
    _close(stage, written)


def _start_session(stage: DemoStage, rows: int | None) -> Any:
    """A session, or None if there cannot be one."""
    try:
        return on_spark.start_demo_spark(stage)
    except (InvalidArgument, JobFailed, PermissionDenied, Unavailable) as error:
        stage.rows = stage.story.rows = rows or ROWS_WITHOUT
        stage.say(f"[bold yellow]Without Spark:[/] {escape(str(error))}")
        stage.say("So this is what the embedded store does by itself.")
        return None


def _play(stage: DemoStage, spark: Any) -> None:
    if spark is None:
        _play_embedded(stage)
        return
    with stage.step(f"Make a table, and load {stage.rows:,} devices into it with Spark", "loaded", with_spark=True):
        on_spark.load_fleet(stage, spark)
    serving = "Serve single rows, reads and updates, while Spark scans the whole table"
    with stage.step(serving, "served", "scanned", with_spark=True):
        on_spark.serve_while_scanning(stage, spark)
    with stage.step("Upsert a batch with Spark, and see the table before and after", "changed", with_spark=True):
        on_spark.upsert(stage, spark)
    with stage.step("Change a row in a transaction, and look at what it was", "changed"):
        store.one_row(stage)
    with stage.step("Kill a writer with -9 in the middle, and find every row it was promised"):
        store.kill_a_writer(stage)
    _open_a_file(stage)
    with stage.step("Compact with Spark", with_spark=True):
        on_spark.compact_fleet(stage, spark)
    with stage.step("Back up, make a mistake, restore, and verify", "restored", with_spark=True):
        on_spark.back_up_and_restore(stage, spark)
    with stage.step("Check every byte of it"):
        store.check_all(stage)


def _play_embedded(stage: DemoStage) -> None:
    with stage.step(f"Open a directory, make a table, put {stage.rows:,} devices into it", "put"):
        store.put_fleet(stage)
    with stage.step("Put single rows, each durable when it returns, and get single rows", "served"):
        store.single_rows(stage)
    with stage.step("Change a row in a transaction, and look at what it was", "changed"):
        store.one_row(stage)
    with stage.step("Kill a writer with -9 in the middle, and find every row it was promised"):
        store.kill_a_writer(stage)
    with stage.step("Two processes on one directory add to the same counter"):
        store.two_processes(stage)
    with stage.step("Scan it all to Arrow", "scanned"):
        store.scan_all(stage)
    _open_a_file(stage)
    with stage.step("Check every byte of it"):
        store.check_all(stage)


def _open_a_file(stage: DemoStage) -> None:
    duckdb = store.find_duckdb()
    with stage.step(f"Open a file of the store with {'pyarrow' if duckdb is None else 'DuckDB'}"):
        store.read_a_file(stage, duckdb)


def _close(stage: DemoStage, report: Path) -> None:
    stage.console.print()
    table = Table("figures of this machine", "", show_header=True)
    for figure in stage.story.figures:
        table.add_row(figure.name, rounded(figure.value))
    stage.console.print(table)
    stage.say(f"The report, with plots:  [bold]{escape(str(report))}[/]")
    stage.say("Go on from here:")
    for command in next_commands(stage.story):
        stage.say(escape(f"    {command}"))
    stage.say(escape(f"Remove all of it:    rm -r {shlex.quote(str(stage.directory))}"))
