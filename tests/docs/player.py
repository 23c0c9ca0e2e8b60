"""Plays a document: runs its code in order and compares what it prints with what the document says.

| block | what is done with it |
|---|---|
| `python` | run in the document's one namespace; a `text` block right behind it is what it prints |
| `console` | lines with `$ ` are run by sh and must succeed; the lines behind each are what it prints, on any stream |
| `sh` | run by sh and must succeed; what it prints does not matter |

All of a document happens in one temporary directory, in one process, which has its stores open while `stelae` commands
run beside it. Where the process has Spark running, they run in it instead: to start another Spark for each would take
minutes. In what is compared, `...` stands for anything, and what differs from run to run (txns, times, sizes,
durations, names of files) only has to look alike.

    python -m tests.docs.player docs/tutorial.md            # says what differs
    python -m tests.docs.player --write docs/tutorial.md    # puts what was printed into the document
"""

from __future__ import annotations

import ast
import asyncio
import os
import re
import shlex
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass, field
from inspect import iscoroutine
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.effort import HANG_S

ROOT = Path(__file__).parent.parent.parent
NOT_RUN = {
    "make ": "the tests are started by `make test`, and tests/cli plays the demo",
    "pip install": "the tests have it installed, and reach no package index",
    "python examples/": "tests/spark plays the examples",
    "python3 -m venv": "the tests have their own",
    ". .venv/bin/activate": "the tests have their own",
}
"""Commands of documents that are not run, by their beginnings, and why."""

LANGUAGES = {"python", "text", "console", "sh"}
_COMMAND_S_MAX = HANG_S
_TERMINAL = {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb", "TTY_COMPATIBLE": "1"}
_PLAIN_COMMAND = re.compile(r"""stelae ([^|;&<>$`'"]|'[^']*'|"[^"$`]*")*""")
_QUOTED = re.compile(r"""'[^']*'|"[^"]*\"""")
_ELSEWHERE = re.compile(r"(?<!\|)\|(?!\|)|>")
"""What is printed goes to another program, or into a file."""
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_LOOKS = (
    (re.compile(r"\b\d{18}\b"), "TXN"),
    (re.compile(r"\b\d{16}\b"), "MICROS"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(\+00(:00)?|Z)?"), "TIME"),
    (re.compile(r"\b[0-9a-f]{16}-[0-9a-f]{12}\.parquet|\b[0-9a-f]{16}\.log"), "FILE"),
    (re.compile(r"\b[\d.,]+ (B|KiB|MiB|GiB|bytes)\b"), "SIZE"),
    (re.compile(r"(_bytes'?\s*[=:]\s*)\d+"), r"\1SIZE"),
    (re.compile(r"\b[\d.,]+ (us|ms|s)\b"), "DURATION"),
    (re.compile(r"(log_segments = )\d+|\d+ (log segments|log records)"), r"\1COUNT \2"),
    (re.compile(r"\b[\d.,]+ (million )?rows/s"), "RATE"),
    (re.compile(r"/[^\s:'\"]*/play-[^/\s:'\"]+"), "HERE"),
    (re.compile(r"\bprocess \d+ on [\w.-]+"), "PROCESS"),
    (re.compile(r"s1\.[\w=+/-]+"), "TOKEN"),
    (re.compile(r"[─━═]{3,}"), "---"),
    (re.compile(r" +"), " "),
)


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """`start` and `stop`: where its text lies in the document."""

    language: str
    text: str
    line: int
    start: int
    stop: int


@dataclass(slots=True)
class Played:
    """What was wrong, in words; and what was printed, as (start, stop, text) of the document."""

    complaints: list[str] = field(default_factory=list)
    printed: list[tuple[int, int, str]] = field(default_factory=list)

    def heard(self, block: CodeBlock, expected: str, printed: str, where: tuple[int, int]) -> None:
        if not alike(expected, printed):
            self.complaints.append(f"line {block.line}: says\n{expected}\nand prints\n{printed}")
        self.printed.append((*where, printed))


def blocks_of(document: str) -> Iterator[CodeBlock]:
    for found in _FENCE.finditer(document):
        line = document.count("\n", 0, found.start()) + 1
        yield CodeBlock(found[2], found[3], line, found.start(3), found.end(3))


def alike(expected: str, printed: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in re.split(r"\.\.\.", _plain(expected)))
    return re.fullmatch(pattern, _plain(printed), re.DOTALL) is not None


def _plain(text: str) -> str:
    for look, name in _LOOKS:
        text = look.sub(name, text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def reason_not_to_run(command: str) -> str | None:
    return next((reason for start, reason in NOT_RUN.items() if command.startswith(start)), None)


def run_python(code: str, namespace: dict[str, Any], name: str) -> str:
    """What it prints. An expression at its end is not shown, as in a script; `await` may stand anywhere."""
    printed = StringIO()
    compiled = compile(code, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    with redirect_stdout(printed):
        outcome = eval(compiled, namespace)
        if iscoroutine(outcome):
            asyncio.run(outcome)
    return printed.getvalue()


def run_shell(command: str) -> tuple[int, str]:
    variables = {**os.environ, **_TERMINAL}
    if _ELSEWHERE.search(_QUOTED.sub("", command)):
        variables["TTY_COMPATIBLE"] = "0"
    variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=variables,
        text=True,
        check=False,
        timeout=_COMMAND_S_MAX,
    )
    return done.returncode, done.stdout


def run_here(command: str) -> tuple[int, str]:
    """A `stelae` command in this process."""
    from typer.testing import CliRunner

    from stelae.cli.app import app

    done = CliRunner(env=_TERMINAL).invoke(app, shlex.split(command.replace("\\\n", " "))[1:])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def has_spark() -> bool:
    if "pyspark.sql" not in sys.modules:
        return False
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() is not None


def needs_spark(document: str) -> bool:
    return any(block.language == "python" and "stelae.spark" in block.text for block in blocks_of(document))


def play(document: str) -> Played:
    """In the current directory."""
    played, namespace = Played(), dict[str, Any](__name__="__main__")
    blocks = list(blocks_of(document))
    for at, block in enumerate(blocks):
        try:
            match block.language:
                case "python":
                    printed = run_python(block.text, namespace, f"line {block.line}")
                    after = blocks[at + 1] if at + 1 < len(blocks) else None
                    if after is not None and after.language == "text" and _is_right_behind(document, block, after):
                        played.heard(after, after.text, printed, (after.start, after.stop))
                    elif printed:
                        played.complaints.append(f"line {block.line}: prints, and no text block says what\n{printed}")
                case "console":
                    _play_console(block, played)
                case "sh":
                    _play_script(block, played)
                case _:
                    continue  # what a block before it prints
        except Exception:  # noqa: BLE001 - whatever it is, it is what the reader would meet
            played.complaints.append(f"line {block.line}: fails\n{traceback.format_exc()}")
            break
    return played


def _is_right_behind(document: str, before: CodeBlock, after: CodeBlock) -> bool:
    return re.fullmatch(r"```\n\n?```text\n", document[before.stop : after.start]) is not None


def _play_console(block: CodeBlock, played: Played) -> None:
    for command, expected, where in _commands(block):
        if reason_not_to_run(command) is None:
            is_here = _PLAIN_COMMAND.fullmatch(command) and has_spark()
            code, printed = run_here(command) if is_here else run_shell(command)
            if code:
                played.complaints.append(f"line {block.line}: {command}: exit code {code}")
            played.heard(block, expected, "".join(f"{line.rstrip()}\n" for line in printed.splitlines()), where)


def _commands(block: CodeBlock) -> Iterator[tuple[str, str, tuple[int, int]]]:
    for found in re.finditer(r"^\$ ((?:.*\\\n)*.*\n)((?:(?!\$ ).*\n)*)", block.text, re.MULTILINE):
        yield found[1].rstrip("\n"), found[2], (block.start + found.start(2), block.start + found.end(2))


def _play_script(block: CodeBlock, played: Played) -> None:
    lines = [line for line in block.text.splitlines() if reason_not_to_run(line.strip()) is None]
    code, printed = run_shell("set -e\n" + "\n".join(lines))
    if code:
        played.complaints.append(f"line {block.line}: exit code {code}\n{printed}")


def play_file(path: Path, *, write: bool = False) -> Sequence[str]:
    document = path.read_text("utf-8")
    with TemporaryDirectory(prefix="play-") as directory, chdir(directory):
        try:
            played = play(document)
        finally:
            _end_clusters(Path(directory))
    if write:
        for start, stop, printed in reversed(played.printed):
            if not alike(document[start:stop], printed):
                document = document[:start] + printed.rstrip("\n") + ("\n" if printed else "") + document[stop:]
        path.write_text(document, "utf-8")
    return played.complaints


def _end_clusters(directory: Path) -> None:
    """A document that was not played to its end leaves none running."""
    plans = list(directory.glob("*/cluster.json"))
    if plans:
        from tests.clusters import RealCluster

        for plan in plans:
            RealCluster(plan.parent).end()


def main(arguments: Sequence[str]) -> int:
    write = "--write" in arguments
    failed = False
    for name in arguments:
        if name != "--write":
            complaints = play_file(Path(name).absolute(), write=write)
            failed |= bool(complaints)
            for complaint in complaints:
                print(f"{name}: {complaint}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
