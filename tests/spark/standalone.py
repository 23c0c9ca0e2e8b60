"""A small Spark cluster of its own: a master, and workers under addresses of their own, so that Spark takes them for
several machines. Only between such does it run a task a second time because the first is slow."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event

import pyspark

from stelae.spark.driver.java import find_java

_HOME = Path(pyspark.__file__).parent
_PACKAGE = "org.apache.spark.deploy"
_Started = tuple[Path, subprocess.Popen[bytes]]


@contextmanager
def cluster(directory: Path, workers: int) -> Iterator[str]:
    """Its address, for a session. What it writes is in the directory."""
    with ExitStack() as running:

        def started(name: str, host: str, *words: str) -> _Started:
            environment = os.environ | {
                "JAVA_HOME": str(find_java().home),
                "SPARK_HOME": str(_HOME),
                "SPARK_LOCAL_IP": host,
                "SPARK_DAEMON_MEMORY": "128m",
            }
            command = [str(_HOME / "bin" / "spark-class"), f"{_PACKAGE}.{name}", "--host", host, *words]
            log = directory / f"{host}.log"
            with log.open("w") as sink:
                process = subprocess.Popen(command, env=environment, stdout=sink, stderr=sink)
            running.callback(process.wait, 60)
            running.callback(process.kill)
            return log, process

        directory.mkdir(parents=True, exist_ok=True)
        address = _told(started("master.Master", "127.0.0.1", "--port", "0", "--webui-port", "0"), "Spark master at ")
        for number in range(workers):
            place = directory / f"worker{number}"
            words = ("--port", "0", "--webui-port", "0", "--cores", "1", "--memory", "1g", "--work-dir", str(place))
            _told(started("worker.Worker", f"127.0.0.{number + 2}", *words, address), "registered with master ")
        yield address


def _told(started: _Started, what: str) -> str:
    """The word after what it says when it has come so far."""
    log, process = started
    never = Event()
    while process.poll() is None:
        _, found, rest = log.read_text().partition(what)
        if found and "\n" in rest:
            return rest.split()[0]
        never.wait(0.1)
    raise AssertionError(log.read_text())
