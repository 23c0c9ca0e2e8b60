"""The servers of the remote bench: started on 127.0.0.1, each with a sync for each commit, and ended with it.

What is not on PATH, or in the place named for it, is not installed: `PeerFailed` says in words what is missing.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from made_rows import place
from server_processes import (
    HOST,
    LOG_CHARS,
    Member,
    Server,
    begin,
    client_module,
    ended,
    find,
    find_postgres,
    other_user,
    wait_ready,
)
from spark_peers import PeerFailed

from stelae.adapters.etcd.server import etcd_command, find_etcd, is_healthy
from stelae.adapters.free_ports import choose_free
from stelae.model.errors import StelaeError

_POSTGRES = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "fsync": "on",
    "synchronous_commit": "on",
    "max_connections": "200",
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
}
_ETCD_BYTES = str(8 * 2**30)
_LOOK_S = 0.2
_UVLOOP = "import asyncio, uvloop\nasyncio.set_event_loop_policy(uvloop.EventLoopPolicy())\n"


# -- ours


@dataclass(frozen=True, slots=True)
class StelaeServer(Server):
    """`directory`: of the whole cluster, whose processes may be started again (`start_again`)."""

    directory: Path = Path()
    environment: Mapping[str, str] | None = None

    def start_again(self) -> None:
        """Whatever of it does not run."""
        _run_stelae("up", "--dir", str(self.directory), "--detach", environment=self.environment or os.environ)

    def master_pid(self) -> int:
        """Of the master that leads, once one does."""
        while not (leading := [each for each in self._status()["masters"] if each["leading"]]):
            time.sleep(_LOOK_S)
        return int(leading[0]["pid"])

    def shard_pid(self) -> int:
        """Of its first node's first shard, once that serves."""
        while not (shard := self._status()["nodes"][0]["shards"][0])["address"]:
            time.sleep(_LOOK_S)
        return int(shard["pid"])

    def _status(self) -> Any:
        words = ("up", "--dir", str(self.directory), "--status", "--json")
        return json.loads(_run_stelae(*words, environment=self.environment or os.environ))


@contextmanager
def serve_stelae(*, nodes: int = 1, shards: int = 1, masters: int = 1, uvloop: bool = False) -> Iterator[StelaeServer]:
    """`stelae up`: masters and nodes of so many shards, SQLite as their metastore. `uvloop`: their event loops are
    uvloop's."""
    with place("stelae") as directory:
        environment = dict(os.environ)
        if uvloop:
            client_module("uvloop", "uvloop")
            (directory / "loops").mkdir()
            (directory / "loops" / "sitecustomize.py").write_text(_UVLOOP)
            paths = [str(directory / "loops"), environment.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        words = ["--dir", str(directory / "cluster")]
        try:
            size = ["--nodes", str(nodes), "--shards", str(shards), "--masters", str(masters)]
            _run_stelae("up", *words, "--port", "0", *size, "--detach", environment=environment)
            status = json.loads(_run_stelae("up", *words, "--status", "--json", environment=environment))
            serving = [shard for node in status["nodes"] for shard in node["shards"]]
            pids = [each["pid"] for each in (*status["masters"], *serving)]
            title = "ours" + (", uvloop in the server" if uvloop else "")
            yield StelaeServer(
                title, status["connect"], tuple(pids), directory=directory / "cluster", environment=environment
            )
        finally:
            _run_stelae("down", *words, environment=environment)


def _run_stelae(*words: str, environment: Mapping[str, str]) -> str:
    command = [sys.executable, "-P", "-m", "stelae.cli", *words]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


@contextmanager
def open_embedded() -> Iterator[Server]:
    """The store in the caller's own process."""
    with place("embedded") as directory:
        yield Server("ours, embedded", str(directory / "store"), ())


# -- peers


@contextmanager
def serve_redis() -> Iterator[Server]:
    program = find("redis-server", "Debian's package redis-server has it")
    client_module("redis", "redis")
    with place("redis") as directory, ended() as processes:
        (port,) = choose_free(HOST, 1)
        words = ["--bind", HOST, "--port", str(port), "--dir", str(directory), "--save", ""]
        words += ["--appendonly", "yes", "--appendfsync", "always", "--daemonize", "no"]
        redis = client_module("redis", "redis")
        process = processes(begin([program, *words], directory))

        def answers() -> bool:
            with redis.Redis(HOST, port) as client:
                try:
                    return bool(client.ping())
                except redis.exceptions.ConnectionError:
                    return False

        wait_ready(process, answers, directory)
        with redis.Redis(HOST, port) as client:
            version = client.info("server")["redis_version"]
        yield Server(f"Redis {version}, appendfsync always", f"{HOST}:{port}", (process.pid,))


@contextmanager
def serve_postgres(standbys: int = 0) -> Iterator[Server]:
    """`standbys`: each has a copy, and a commit waits until one of them has synced it, as well."""
    psycopg = client_module("psycopg", "psycopg[binary]")
    initdb, postgres = find_postgres("initdb"), find_postgres("postgres")
    with place("postgres") as directory, ExitStack() as ends:
        user = other_user(directory)
        words = ["-D", str(directory / "data"), "-A", "trust", "-U", "postgres", "--no-instructions"]
        _run_postgres([initdb, *words], user)
        ports = choose_free(HOST, 1 + standbys)
        made = []
        for number, port in enumerate(ports):
            data = directory / ("data" if number == 0 else f"standby{number}")
            if number:
                source = ["-h", HOST, "-p", str(ports[0]), "-U", "postgres"]
                slot = ["-X", "stream", "-R", "-C", "-S", f"standby{number}", "-c", "fast"]
                _run_postgres([find_postgres("pg_basebackup"), "-D", str(data), *source, *slot], user)
                with (data / "postgresql.auto.conf").open("a") as file:
                    file.write(
                        f"primary_conninfo = 'host={HOST} port={ports[0]} user=postgres "
                        f"application_name=standby{number}'\n"
                    )
            settings = _POSTGRES | {"port": str(port)}
            command = [postgres, "-D", str(data), *(f"--{name}={value}" for name, value in settings.items())]
            made.append(Member(command, directory / f"member-{port}", port, user, signal.SIGINT))
            ends.callback(made[-1].end)
            made[-1].start(partial(_is_postgres, psycopg, _postgres_endpoint(port)))
        endpoint = _postgres_endpoint(ports[0])
        title = "synchronous_commit"
        with psycopg.connect(endpoint, autocommit=True) as connection:
            (version,) = connection.execute("show server_version").fetchone()
            if standbys:
                names = ", ".join(f"standby{number}" for number in range(1, standbys + 1))
                connection.execute(f"alter system set synchronous_standby_names = 'ANY 1 ({names})'")
                connection.execute("select pg_reload_conf()")
                asked = "select count(*) from pg_stat_replication where sync_state = 'quorum'"
                wait_ready(
                    made[0].running,
                    lambda: connection.execute(asked).fetchone() == (standbys,),
                    made[0].directory,
                )
                title = f"synchronous_commit=on, {standbys} standbys, synchronous_standby_names = ANY 1"
        yield Server(
            f"Postgres {version.split()[0]}, {title}", endpoint, tuple(member.pid for member in made), tuple(made)
        )


def _run_postgres(command: Sequence[str], user: Mapping[str, Any]) -> None:
    made = subprocess.run(command, capture_output=True, text=True, check=False, **user)
    if made.returncode:
        raise PeerFailed(f"{Path(command[0]).name} failed: {made.stderr.strip()[-LOG_CHARS:]}")


def _postgres_endpoint(port: int) -> str:
    return f"host={HOST} port={port} user=postgres dbname=postgres"


def _is_postgres(psycopg: Any, endpoint: str) -> bool:
    try:
        psycopg.connect(endpoint).close()
    except psycopg.OperationalError:
        return False
    return True


@contextmanager
def serve_etcd(members: int = 1) -> Iterator[Server]:
    """The endpoint: of each member, by commas."""
    try:
        program = find_etcd()
    except StelaeError as error:
        raise PeerFailed(str(error)) from error
    with place("etcd") as directory, ExitStack() as ends:
        ports = choose_free(HOST, 2 * members)
        pairs = list(zip(ports[:members], ports[members:], strict=True))
        together = ",".join(f"etcd-{port}=http://{HOST}:{peer_port}" for port, peer_port in pairs)
        made = []
        for port, peer_port in pairs:
            command = etcd_command(program, directory / f"data-{port}", HOST, port, peer_port)
            # What is said twice counts as it is said last.
            command += ["--name", f"etcd-{port}", "--initial-cluster", together, "--quota-backend-bytes", _ETCD_BYTES]
            made.append(Member(command, directory / f"member-{port}", port))
            ends.callback(made[-1].end)
        for member in made:
            member.start(lambda: True)
        for member in made:
            wait_ready(member.running, partial(is_healthy, HOST, member.port), member.directory)
        version = ".".join(map(str, program.version))
        title = f"etcd {version}, which always syncs" + (f", {members} members" if members > 1 else "")
        endpoint = ",".join(f"{HOST}:{member.port}" for member in made)
        yield Server(title, endpoint, tuple(member.pid for member in made), tuple(made))
