"""How fragments are called: whose they are, and when they were begun, can be told from the name."""

from __future__ import annotations

import re

from stelae.model.ids import TableId, Txn
from stelae.ports.blobs import BlobStore

FRAGMENTS = "fragments/"


def file_name(table: TableId, txn: Txn, token: str) -> str:
    """Names carry a hybrid time, by which whoever collects garbage knows what is too young to judge."""
    return f"{file_name_prefix(table, txn, token)}.parquet"


def file_name_prefix(table: TableId, txn: Txn, token: str) -> str:
    """How the names of all files begin that one job writes; more hex digits and the suffix follow."""
    return f"{FRAGMENTS}{table:08x}/{txn:016x}-{token}"


_FRAGMENT_NAME = re.compile(r"fragments/[0-9a-f]{8,16}/[0-9a-f]{16}-[0-9a-f]+\.parquet")


def is_fragment_name(name: str) -> bool:
    return _FRAGMENT_NAME.fullmatch(name) is not None


def table_of_name(name: str) -> TableId:
    """Of which table a fragment is, by its name."""
    return TableId(int(name.split("/")[1], 16))


def txn_of_name(name: str) -> Txn:
    """When a fragment was begun, by its name."""
    return Txn(int(name.split("/")[2].partition("-")[0], 16))


def fragment_names(blobs: BlobStore) -> list[str]:
    """Files that are called as ours are. What is not is somebody else's."""
    return list(fragment_sizes(blobs))


def fragment_sizes(blobs: BlobStore) -> dict[str, int]:
    """The same, each with its size in bytes."""
    return {info.name: info.size_bytes for info in blobs.list(FRAGMENTS) if is_fragment_name(info.name)}
