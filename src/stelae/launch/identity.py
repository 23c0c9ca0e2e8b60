"""Who a directory belongs to: a master or a node of a cluster, or a shard. A small file that is written once."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from stelae.adapters.files import make_directories, os_errors, write_new_file
from stelae.model.errors import Corruption
from stelae.ports.rng import Rng

MASTER_FILE = "master.json"
NODE_FILE = "node.json"
SHARD_FILE = "shard.json"
_ID_BYTES = 8

T = TypeVar("T", bound=msgspec.Struct)


class MasterFile(msgspec.Struct, frozen=True):
    """`id`: that no other master has, whatever it is called."""

    id: str


class NodeIdentity(msgspec.Struct, frozen=True):
    """`node`: an id that no other node has, whatever it is called."""

    node: str
    name: str


class LogIdentity(msgspec.Struct, frozen=True):
    """`log`: which log lies in the directory. A new disk has another one."""

    node: str
    number: int
    log: str


def read_master(directory: Path, rng: Rng) -> MasterFile:
    """The master whose directory it is; a new one, if it is nobody's yet."""
    return _read_or_write(directory, MASTER_FILE, MasterFile(rng.token(_ID_BYTES).hex()))


def read_node(directory: Path, name: str, rng: Rng) -> NodeIdentity:
    """The node whose directory it is; a new one, if it is nobody's yet. `name` is for a new one."""
    return _read_or_write(directory, NODE_FILE, NodeIdentity(rng.token(_ID_BYTES).hex(), name))


def read_shard(directory: Path, node: str, number: int, rng: Rng) -> LogIdentity:
    """Corruption if the directory is another shard's."""
    found = _read_or_write(directory, SHARD_FILE, LogIdentity(node, number, rng.token(_ID_BYTES).hex()))
    if (found.node, found.number) != (node, number):
        raise Corruption(
            f"says that the directory is of shard {found.number} of node {found.node}, not of shard {number} of node "
            f"{node}: was it copied or moved? Nothing was changed",
            str(directory / SHARD_FILE),
        )
    return found


def _read_or_write(directory: Path, name: str, fresh: T) -> T:
    file = directory / name
    if not file.exists():
        with os_errors(str(file)):
            make_directories(str(directory))
            write_new_file(str(file), msgspec.json.encode(fresh) + b"\n")
    with os_errors(str(file)):
        data = file.read_bytes()
    try:
        return msgspec.json.decode(data, type=type(fresh))
    except msgspec.MsgspecError as error:
        raise Corruption(f"cannot be read: {error}", str(file)) from None
