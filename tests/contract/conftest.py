"""Every implementation of every port, each behind one fixture."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from stelae.adapters.blobs.local import LocalBlobStore
from stelae.adapters.blobs.s3 import S3BlobStore
from stelae.adapters.logfiles.deferred import DeferredLogFiles
from stelae.adapters.logfiles.local import LocalLogFiles
from stelae.ports.blobs import BlobStore
from stelae.ports.logfiles import LogFiles
from stelae.sim.blobs import SimBlobServer, SimBlobStore
from stelae.sim.disk import SimDisk
from stelae.sim.rng import SimRng

OpenStore = Callable[[], BlobStore]

_KEYS: dict[str, Any] = {"region": "us-east-1", "access_key_id": "test", "secret_access_key": "test"}
_prefixes = count()


@pytest.fixture(params=["local", "sim", "sim-server", "s3"])
def open_blobs(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    """Opens the same store again, as another process would."""
    match request.param:
        case "local":
            return lambda: LocalBlobStore(tmp_path / "blobs")
        case "sim":
            store = SimBlobStore(SimRng(7))
            return lambda: store
        case "sim-server":
            return SimBlobServer(SimRng(7)).client
        case _:
            endpoint = request.getfixturevalue("s3_endpoint")
            url = f"s3://bucket/store-{next(_prefixes)}"
            return lambda: S3BlobStore(url, endpoint=endpoint, spool_directory=tmp_path, **_KEYS)


@pytest.fixture
def blobs(open_blobs: OpenStore) -> BlobStore:
    return open_blobs()


@pytest.fixture(params=["local", "sim", "deferred", "settled"])
def logfiles(request: pytest.FixtureRequest, tmp_path: Path) -> LogFiles:
    """`settled`: what has put off changes and made them; `deferred`: what still does until a file is created."""
    match request.param:
        case "local":
            return LocalLogFiles(tmp_path / "logs")
        case "sim":
            return SimDisk(SimRng(7))
        case "deferred":
            return DeferredLogFiles(LocalLogFiles(tmp_path / "logs"))
        case _:
            files = DeferredLogFiles(LocalLogFiles(tmp_path / "logs"))
            files.settle()
            return files
