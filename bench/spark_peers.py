"""Delta and Iceberg for the Spark bench: found, started, asked; and said in words where they cannot run.

Each runs in a process of its own, with jars that Spark itself fetches from Maven Central. First on the Spark that is
measured; if their newest release does not run on it, on the newest Spark that both are made for, which is fetched from
PyPI into a cache outside the repository. Then the times are of the same machine and minute, but of another Spark: so
that Spark reads plain Parquet too, for comparison.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from processor_time import Took
from rich.console import Console

OLDER_SPARK = "4.1"
"""The newest Spark that both are made for."""

# Their newest releases, and the Sparks that they are made for.
_PACKAGES = {
    "delta": ("io.delta:delta-spark_{spark}_2.13:4.4.0", ("4.2", OLDER_SPARK)),
    "iceberg": ("org.apache.iceberg:iceberg-spark-runtime-{spark}_2.13:1.12.0", (OLDER_SPARK,)),
    "parquet": ("", (OLDER_SPARK,)),
}
_TITLES = {
    "delta": "Delta 4.4.0, deletion vectors",
    "iceberg": "Iceberg 1.12.0, merge-on-read",
    "parquet": "native Parquet",
}
console = Console(width=140)


def cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("STELAE_BENCH_CACHE") or Path(base) / "stelae-bench")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something could not be run, in words."""

    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


class PeerFailed(Exception):
    """What the process said, in words."""


class Peer:
    """One format, as a process that answers."""

    def __init__(self, kind: str, process: subprocess.Popen[str], replies: Any) -> None:
        self.kind = kind
        self._process = process
        self._replies = replies
        self.spark = ""

    @property
    def title(self) -> str:
        return f"{_TITLES[self.kind]} (Spark {self.spark})"

    def hear(self) -> dict[str, Any]:
        line = self._replies.readline()
        if not line:
            raise PeerFailed(f"its process ended with {self._process.wait()}")
        said: dict[str, Any] = json.loads(line)
        if "error" in said:
            raise PeerFailed(said["error"])
        return said

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        if self._process.stdin is None:
            raise PeerFailed("its process takes no commands")
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise PeerFailed(f"its process ended with {self._process.wait()}") from error
        return self.hear()

    def took(self, do: str, **arguments: Any) -> Took:
        """As it measured it itself."""
        said = self.ask(do, **arguments)
        return Took(float(said["seconds"]), float(said["processor_s"]))

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._replies.close()


def start(kind: str, package: str, directory: Path, master: str, memory: str, older: Path | None) -> Peer:
    """PeerFailed says why it does not run here. `older`: where another Spark lies."""
    directory.mkdir(parents=True, exist_ok=True)
    here = Path(__file__).parent
    reading, writing = os.pipe()
    environment = dict(os.environ)
    if older is not None:
        found = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = str(older) if not found else f"{older}{os.pathsep}{found}"
        environment["SPARK_HOME"] = str(older / "pyspark")
    with (directory / "process.log").open("w") as log:
        process = subprocess.Popen(
            [
                sys.executable,
                str(here / "spark_peer_process.py"),
                kind,
                package,
                str(directory),
                master,
                memory,
                str(writing),
            ],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            pass_fds=(writing,),
        )
    os.close(writing)
    peer = Peer(kind, process, os.fdopen(reading))
    try:
        peer.spark = peer.hear()["spark"]
        peer.ask("warm")
    except PeerFailed:
        peer.close()
        raise
    return peer


def older_spark() -> Path:
    """Another release of Spark, beside the one that is installed."""
    place = cache_directory() / f"spark-{OLDER_SPARK}"
    if not (place / "pyspark").is_dir():
        console.print(f"[dim]fetching Spark {OLDER_SPARK}, on which Delta and Iceberg run ...[/]")
        tool = [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable, "--quiet"]
        command = [*tool, "--target", str(place), f"pyspark=={OLDER_SPARK}.*"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            raise PeerFailed(f"Spark {OLDER_SPARK} could not be fetched: {ended.stderr.strip()[-300:]}")
    return place


@contextmanager
def running(
    kinds: Sequence[str], directory: Path, master: str, memory: str
) -> Iterator[tuple[list[Peer], list[Refusal]]]:
    """Those of them that run, and what did not and why."""
    peers: list[Peer] = []
    refusals: list[Refusal] = []
    try:
        for kind in kinds:
            found = _found(kind, directory / kind, master, memory, refusals)
            if found is not None:
                peers.append(found)
        if any(peer.spark != _this_spark() for peer in peers):
            found = _found("parquet", directory / "parquet", master, memory, refusals)
            if found is not None:
                peers.append(found)
        yield peers, refusals
    finally:
        for peer in peers:
            peer.close()


def _this_spark() -> str:
    import pyspark

    return str(pyspark.__version__)


def _found(kind: str, directory: Path, master: str, memory: str, refusals: list[Refusal]) -> Peer | None:
    """On the Spark that is here if it can be, else on an older one."""
    package, made_for = _PACKAGES[kind]
    this = _this_spark()
    newest = this.rpartition(".")[0] if this.rpartition(".")[0] in made_for else made_for[0]
    for spark, is_older in ((newest, False), (OLDER_SPARK, True)):
        coordinate = package.format(spark=spark)
        what = f"{_TITLES[kind]}, on Spark {OLDER_SPARK if is_older else this} with {coordinate or 'no jar'}"
        known = None if is_older else _known().get(what)
        if kind == "parquet" and not is_older:
            continue
        if known is not None:
            refusals.append(Refusal(what, known))
            continue
        console.print(f"[dim]{what} ...[/]")
        try:
            return start(kind, coordinate, directory, master, memory, older_spark() if is_older else None)
        except PeerFailed as error:
            refusals.append(Refusal(what, f"{error}{_unresolved(directory)}"))
            if not is_older:
                _remember(refusals[-1])
    return None


def _unresolved(directory: Path) -> str:
    log = directory / "process.log"
    if log.exists() and "unresolved dependency" in log.read_text():
        return " (Maven Central has no such jar, or is out of reach)"
    return ""


def forget() -> None:
    """What did not run before is tried again."""
    _remembered().unlink(missing_ok=True)


def _remembered() -> Path:
    return cache_directory() / "refused.json"


def _known() -> dict[str, str]:
    """What did not run on this Spark: that takes a minute to find out, and does not change."""
    found: dict[str, str] = json.loads(_remembered().read_text()) if _remembered().exists() else {}
    return found


def _remember(refusal: Refusal) -> None:
    if not refusal.why.endswith("out of reach)"):
        cache_directory().mkdir(parents=True, exist_ok=True)
        _remembered().write_text(json.dumps(_known() | {refusal.what: refusal.why}, indent=2) + "\n")
