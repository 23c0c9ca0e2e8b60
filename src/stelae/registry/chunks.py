"""Values larger than a metastore transaction: written in chunks under a prefix of their own, revealed by one key.

The chunks mean nothing until some key holds their manifest; that key is written last, by compare-and-set. A manifest
says how many chunks there are and the checksum of all their bytes, so half a value is never taken for a whole one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from stelae.format.checksums import crc32c
from stelae.model.errors import Corruption
from stelae.ports.metastore import Metastore, PutKey, Revision
from stelae.registry.views.compared import ComparedStore
from stelae.registry.views.own import OwnStore

CHUNK_BYTES = 512 * 1024
_LENGTH_BYTES = 4


class Manifest(msgspec.Struct, frozen=True):
    prefix: str
    chunks: int
    crc: int


def chunk_key(prefix: str, number: int) -> str:
    return f"{prefix}{number:06d}"


async def write_chunks(store: ComparedStore | OwnStore, prefix: str, parts: Iterable[bytes]) -> Manifest:
    """Nobody else writes under the prefix, and nothing is written once what the store compares holds no more. An
    attempt that fails leaves chunks that the next compaction removes."""
    number, crc = 0, 0
    for data in _cut(parts):
        await store.txn([], [PutKey(chunk_key(prefix, number), data)])
        crc = crc32c(data, crc)
        number += 1
    return Manifest(prefix, number, crc)


async def read_chunks(store: Metastore, manifest: Manifest, revision: Revision | None = None) -> list[bytes]:
    """The parts as they were given. Raises Corruption naming the prefix if a chunk is missing or damaged."""
    chunks = []
    crc = 0
    for number in range(manifest.chunks):
        entry = await store.get(chunk_key(manifest.prefix, number), revision)
        if entry is None:
            raise Corruption(f"chunk {number} of {manifest.chunks} is missing", manifest.prefix)
        chunks.append(entry.value)
        crc = crc32c(entry.value, crc)
    if crc != manifest.crc:
        raise Corruption("the chunks do not have their checksum", manifest.prefix)
    return list(_parts(b"".join(chunks), manifest.prefix))


def _cut(parts: Iterable[bytes]) -> Iterator[bytes]:
    buffer = bytearray()
    for part in parts:
        buffer += len(part).to_bytes(_LENGTH_BYTES, "big") + part
        while len(buffer) >= CHUNK_BYTES:
            yield bytes(buffer[:CHUNK_BYTES])
            del buffer[:CHUNK_BYTES]
    if buffer:
        yield bytes(buffer)


def _parts(data: bytes, prefix: str) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        start = at + _LENGTH_BYTES
        at = start + int.from_bytes(data[at:start], "big")
        if at > len(data):
            raise Corruption("the chunks end inside a part", prefix)
        yield data[start:at]
