"""The servers of the remote bench: started on 127.0.0.1, each with a sync for each commit, and ended with it.

What is not on PATH, or in the place named for it, is not installed: `PeerFailed` says in words what is missing.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from made_rows import place
from spark_peers import PeerFailed

from stelae.adapters.etcd.server import etcd_command, find_etcd, is_healthy
from stelae.adapters.free_ports import choose_free
from stelae.model.errors import StelaeError

HOST = "127.0.0.1"
_START_S_MAX = 60.0
_STOP_S_MAX = 30.0
_LOOK_S = 0.05
_LOG_CHARS = 300
_UVLOOP = "import asyncio, uvloop\nasyncio.set_event_loop_policy(uvloop.EventLoopPolicy())\n"


@dataclass(frozen=True, slots=True)
class Server:
    """`title`: which release it is, and how it is kept durable. `pids`: of its processes; those that they start count,
    too."""

    title: str
    endpoint: str
    pids: tuple[int, ...]


def client_module(name: str, package: str) -> Any:
    """A client that the bench's user installs: none of them is in the lock."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise PeerFailed(f"the Python package {package} is not installed ({error})") from error


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
        """Of the process that is its first master now."""
        said = _run_stelae(
            "up", "--dir", str(self.directory), "--status", "--json", environment=self.environment or os.environ
        )
        return int(json.loads(said)["masters"][0]["pid"])


@contextmanager
def serve_stelae(*, nodes: int = 1, shards: int = 1, uvloop: bool = False) -> Iterator[StelaeServer]:
    """`stelae up`: a master and nodes of so many shards, SQLite as their metastore. `uvloop`: their event loops are
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
            size = ["--nodes", str(nodes), "--shards", str(shards)]
            _run_stelae("up", *words, "--port", "0", *size, "--detach", environment=environment)
            status = json.loads(_run_stelae("up", *words, "--status", "--json", environment=environment))
            serving = [shard for node in status["nodes"] for shard in node["shards"]]
            pids = [each["pid"] for each in (*status["masters"], *serving)]
            title = "ours" + (", uvloop in the server" if uvloop else "")
            yield StelaeServer(title, status["connect"], tuple(pids), directory / "cluster", environment)
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
    program = _find("redis-server", "Debian's package redis-server has it")
    client_module("redis", "redis")
    with place("redis") as directory, _ended() as processes:
        (port,) = choose_free(HOST, 1)
        words = ["--bind", HOST, "--port", str(port), "--dir", str(directory), "--save", ""]
        words += ["--appendonly", "yes", "--appendfsync", "always", "--daemonize", "no"]
        redis = client_module("redis", "redis")
        process = processes(_begin([program, *words], directory))

        def answers() -> bool:
            with redis.Redis(HOST, port) as client:
                try:
                    return bool(client.ping())
                except redis.exceptions.ConnectionError:
                    return False

        _wait(process, answers, directory)
        with redis.Redis(HOST, port) as client:
            version = client.info("server")["redis_version"]
        yield Server(f"Redis {version}, appendfsync always", f"{HOST}:{port}", (process.pid,))


@contextmanager
def serve_postgres() -> Iterator[Server]:
    psycopg = client_module("psycopg", "psycopg[binary]")
    initdb, postgres = _find_postgres("initdb"), _find_postgres("postgres")
    with place("postgres") as directory, _ended(signal.SIGINT) as processes:
        user = _other_user(directory)
        data = directory / "data"
        words = ["-D", str(data), "-A", "trust", "-U", "postgres", "--no-instructions"]
        made = subprocess.run([initdb, *words], capture_output=True, text=True, check=False, **user)
        if made.returncode:
            raise PeerFailed(f"initdb failed: {made.stderr.strip()[-_LOG_CHARS:]}")
        (port,) = choose_free(HOST, 1)
        settings = {
            "listen_addresses": HOST,
            "port": str(port),
            "unix_socket_directories": "",
            "fsync": "on",
            "synchronous_commit": "on",
            "max_connections": "200",
            "shared_buffers": "512MB",
            "max_wal_size": "8GB",
        }
        command = [postgres, "-D", str(data), *(f"--{name}={value}" for name, value in settings.items())]
        process = processes(_begin(command, directory, user))
        endpoint = f"host={HOST} port={port} user=postgres dbname=postgres"

        def answers() -> bool:
            try:
                psycopg.connect(endpoint).close()
            except psycopg.OperationalError:
                return False
            return True

        _wait(process, answers, directory)
        with psycopg.connect(endpoint) as connection:
            (version,) = connection.execute("show server_version").fetchone()
        yield Server(f"Postgres {version.split()[0]}, synchronous_commit", endpoint, (process.pid,))


@contextmanager
def serve_etcd() -> Iterator[Server]:
    try:
        program = find_etcd()
    except StelaeError as error:
        raise PeerFailed(str(error)) from error
    with place("etcd") as directory, _ended() as processes:
        port, peer_port = choose_free(HOST, 2)
        process = processes(_begin(etcd_command(program, directory / "data", HOST, port, peer_port), directory))
        _wait(process, lambda: is_healthy(HOST, port), directory)
        version = ".".join(map(str, program.version))
        yield Server(f"etcd {version}, which always syncs", f"{HOST}:{port}", (process.pid,))


@contextmanager
def serve_kudu(home: Path | None) -> Iterator[Server]:
    """`home`: where `bin/kudu-master` and `bin/kudu-tserver` are, and the jars of kudu-client, anywhere below. The
    endpoint: the master, and the jars. What it brings of Kerberos may not run on another system than it was built on:
    without those files it takes the system's."""
    if home is None:
        raise PeerFailed(
            "say with --kudu where Maven Central's kudu-binary (linux-x86_64) was unpacked, and where the jars of its "
            "kudu-client lie"
        )
    programs = {path.name: path for path in home.rglob("bin/kudu-*") if os.access(path, os.X_OK)}
    jars = sorted(str(path) for path in home.rglob("*.jar") if not path.name.startswith("kudu-binary"))
    if not {"kudu-master", "kudu-tserver"} <= set(programs) or not any("kudu-client" in jar for jar in jars):
        raise PeerFailed(
            f"{home}: below it there must be bin/kudu-master and bin/kudu-tserver, which may be executed, and "
            "kudu-client-*.jar with the jars it needs"
        )
    client_module("jpype", "JPype1")
    with place("kudu") as directory, _ended() as processes:
        master_port, server_port = choose_free(HOST, 2)
        common = ["--unlock_unsafe_flags", "--unlock_experimental_flags", "--time_source=system_unsync"]
        common += ["--log_force_fsync_all=true", "--webserver_enabled=false"]
        common += ["--rpc_encryption=disabled", "--rpc_authentication=disabled"]
        # It would ask who hosts the machine, to find a clock there: nobody outside is asked.
        asked = ("aws_instance_id_url", "azure_instance_id_url", "gce_instance_id_url", "openstack_metadata_url")
        common += [f"--cloud_{each}=http://{HOST}:1/" for each in asked]
        environment = os.environ | {"SASL_PATH": os.pathsep.join(map(str, home.rglob("sasl2")))}
        started = []
        for name, port in (("master", master_port), ("tserver", server_port)):
            own = directory / name
            own.mkdir()
            words = [f"--fs_wal_dir={own / 'wal'}", f"--fs_data_dirs={own / 'data'}", f"--log_dir={own}"]
            words += [f"--rpc_bind_addresses={HOST}:{port}"]
            if name == "tserver":
                words.append(f"--tserver_master_addrs={HOST}:{master_port}")
            process = processes(_begin([str(programs[f"kudu-{name}"]), *common, *words], own, {"env": environment}))
            _wait(process, lambda port=port: _accepts(port), own)  # type: ignore[misc]
            started.append(process.pid)
        said = subprocess.run([programs["kudu-tserver"], "--version"], capture_output=True, text=True, check=False)
        version = [*said.stdout.split(), "", ""][1]
        endpoint = json.dumps({"master": f"{HOST}:{master_port}", "jars": jars})
        yield Server(f"Kudu {version}, log_force_fsync_all", endpoint, tuple(started))


# -- processes


def _find(name: str, hint: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise PeerFailed(f"there is no {name} on PATH; {hint}")
    return found


def _find_postgres(name: str) -> str:
    """Debian keeps the server's programs of each release in a directory of their own, which is not on PATH."""
    beside = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(beside[-1]) if beside else _find(name, "Debian's package postgresql has it")


def _other_user(directory: Path) -> dict[str, Any]:
    """Postgres does not run as root: then it is its own user, who gets the directory."""
    if os.geteuid():
        return {}
    try:
        shutil.chown(directory, "postgres", "postgres")
    except LookupError as error:
        raise PeerFailed(f"Postgres does not run as root, and there is no user for it ({error})") from error
    return {"user": "postgres", "group": "postgres", "extra_groups": []}


def _begin(command: Sequence[str], directory: Path, how: Mapping[str, Any] | None = None) -> subprocess.Popen[bytes]:
    with (directory / "log.txt").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=directory, **(how or {}))


def _wait(process: subprocess.Popen[bytes], is_ready: Callable[[], bool], directory: Path) -> None:
    until_s = time.monotonic() + _START_S_MAX
    while not is_ready():
        if process.poll() is not None or time.monotonic() > until_s:
            said = (directory / "log.txt").read_text(errors="replace").strip()
            raise PeerFailed(f"it did not start: {said[-_LOG_CHARS:]}")
        time.sleep(_LOOK_S)


def _accepts(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex((HOST, port)) == 0


@contextmanager
def _ended(how: signal.Signals = signal.SIGTERM) -> Iterator[Callable[[subprocess.Popen[bytes]], Any]]:
    """What is noted here has ended when this is left."""

    def end(process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.send_signal(how)
        try:
            process.wait(_STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    with ExitStack() as ends:

        def note(process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
            ends.callback(end, process)
            return process

        yield note
