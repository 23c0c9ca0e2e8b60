"""The catalog's update log on a metastore.

| key | holds |
|---|---|
| catalog/version | the newest version, N |
| catalog/update/{N} | what happened in version N: the update itself, or where its chunks are |
| catalog/snapshot-version | the oldest version that can be had, and where its snapshot's chunks are |
| catalog/closed | a time at or below which no version will ever activate any more |
| catalog-chunks/.../{n} | chunks of a snapshot or of a large update |
| catalog-in-use/{token} | a version that some process still needs, while its lease lives |
| catalog-compacting | the version up to which someone is about to compact, while its lease lives |

Followers watch `catalog/` alone.

Version N is appended by comparing that the newest is N - 1 and that `closed` is what the writer saw, with an activation
above both. So versions have no gaps, activations grow, and what `closed` promises stays true whatever clocks say.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from stelae.catalog.check import check_touched
from stelae.catalog.entries import Update, apply_update
from stelae.catalog.serial.registry import BadBytes
from stelae.catalog.serial.snapshot import decode_snapshot
from stelae.catalog.serial.version1 import CATALOG_SERIALIZERS
from stelae.catalog.value import BrokenCatalog, Catalog, CatalogVersion, empty_catalog
from stelae.format.checksums import crc32c
from stelae.model.errors import Corruption, Deposed, InvalidSchema, Unavailable, UnsupportedFormat
from stelae.model.ids import Txn
from stelae.ports.metastore import (
    Compacted,
    Compare,
    Entry,
    IsAbsent,
    Metastore,
    ModRevisionIs,
    PutKey,
    Revision,
    TxnOutcome,
    ValueIs,
)
from stelae.registry.chunks import Manifest, read_chunks, write_chunks
from stelae.registry.decoding import json_of, number_of
from stelae.registry.views.compared import ComparedStore

PREFIX = "catalog/"
VERSION_KEY = PREFIX + "version"
SNAPSHOT_KEY = PREFIX + "snapshot-version"
CLOSED_KEY = PREFIX + "closed"
UPDATE_PREFIX = PREFIX + "update/"
SNAPSHOT_CHUNKS = "catalog-chunks/snapshot-"
UPDATE_CHUNKS = "catalog-chunks/update-"
IN_USE_PREFIX = "catalog-in-use/"
COMPACTING_KEY = "catalog-compacting"

INLINE_BYTES_MAX = 256 * 1024
_INLINE = b"\x00"
_CRC_BYTES = 4
_HEAD_READS_MAX = 20
_CHUNKED = b"\x01"
_PAGE = 500


class SnapshotMark(msgspec.Struct, frozen=True):
    """`revision`: the metastore's, at which the snapshot's version was the newest."""

    version: int
    chunks: Manifest
    revision: int


class LogHead(msgspec.Struct, frozen=True):
    """The small keys, at one revision."""

    version: CatalogVersion
    closed: Txn
    snapshot: SnapshotMark | None
    snapshot_revision: Revision | None
    revision: Revision

    @property
    def oldest(self) -> CatalogVersion:
        """The oldest version that can be had."""
        return CatalogVersion(self.snapshot.version if self.snapshot else 0)

    def snapshot_unchanged(self) -> Compare:
        if self.snapshot_revision is None:
            return IsAbsent(SNAPSHOT_KEY)
        return ModRevisionIs(SNAPSHOT_KEY, self.snapshot_revision)


def update_key(version: CatalogVersion | int) -> str:
    return f"{UPDATE_PREFIX}{version:020d}"


def version_of_key(key: str) -> CatalogVersion:
    digits = key.removeprefix(UPDATE_PREFIX)
    if not digits.isascii() or not digits.isdigit():
        raise Corruption("is not the key of a version", key)
    return CatalogVersion(int(digits))


async def read_head(store: Metastore) -> LogHead:
    """As of now: linearizable."""
    for _ in range(_HEAD_READS_MAX):
        try:
            return await _read_head(store)
        except Compacted:
            continue  # the revision just read is gone already: read a newer one
    raise Unavailable("the metastore was compacted again and again while the catalog's newest version was read")


async def _read_head(store: Metastore) -> LogHead:
    read = await store.range(VERSION_KEY, limit=1)
    revision = read.revision
    version = number_of(read.entries[0]) if read.entries and read.entries[0].key == VERSION_KEY else 0
    closed = await store.get(CLOSED_KEY, revision)
    snapshot = await store.get(SNAPSHOT_KEY, revision)
    return LogHead(
        CatalogVersion(version),
        Txn(number_of(closed) if closed else 0),
        snapshot_mark(snapshot) if snapshot else None,
        snapshot.mod_revision if snapshot else None,
        revision,
    )


def snapshot_mark(entry: Entry) -> SnapshotMark:
    return json_of(entry, SnapshotMark, "where the snapshot is")


def number_value(number: int) -> bytes:
    return b"%d" % number


def mark_value(mark: SnapshotMark) -> bytes:
    return msgspec.json.encode(mark)


def same_number(key: str, number: int) -> Compare:
    """The key holds the number; 0 is also said by its absence, as in a new store."""
    return ValueIs(key, number_value(number)) if number else IsAbsent(key)


def inline_value(data: bytes) -> bytes:
    return _INLINE + crc32c(data).to_bytes(_CRC_BYTES, "big") + data


class _Unmade(ComparedStore):
    """The metastore, as long as nobody has made this version of the catalog."""

    def __init__(self, store: Metastore, version: CatalogVersion) -> None:
        super().__init__(store, same_number(VERSION_KEY, version - 1))

    def refusal(self, entry: Entry | None) -> Deposed:
        return Deposed(f"another has made this version of the catalog: {VERSION_KEY} is {entry and entry.value!r}")


async def encode_update(store: Metastore, update: Update, attempt: bytes) -> bytes | None:
    """The value of the update's key; None if somebody else has made the version meanwhile. A large update's chunks are
    written before this returns, under a prefix of this attempt alone: an earlier one may still land, and its chunks
    must be what they were."""
    data = CATALOG_SERIALIZERS.encode(update)
    if len(data) <= INLINE_BYTES_MAX:
        return inline_value(data)
    prefix = f"{UPDATE_CHUNKS}{update.version:020d}-{attempt.hex()}/"
    try:
        manifest = await write_chunks(_Unmade(store, update.version), prefix, [data])
    except Deposed:
        return None
    return _CHUNKED + msgspec.json.encode(manifest)


async def append(store: Metastore, update: Update, value: bytes, closed: Txn) -> TxnOutcome:
    """One compare-and-set. `value` is what `encode_update` gave for the update."""
    return await store.txn(
        [same_number(VERSION_KEY, update.version - 1), same_number(CLOSED_KEY, closed)],
        [PutKey(update_key(update.version), value), PutKey(VERSION_KEY, number_value(update.version))],
    )


async def decode_update(store: Metastore, entry: Entry, revision: Revision | None = None) -> Update:
    """Raises Corruption or UnsupportedFormat naming the version and the key."""
    version = version_of_key(entry.key)
    try:
        update = CATALOG_SERIALIZERS.decode(await _update_bytes(store, entry.value, revision))
    except UnsupportedFormat as error:
        raise UnsupportedFormat(f"{entry.key}: catalog version {version} cannot be read: {error}") from None
    except (BadBytes, Corruption, msgspec.MsgspecError, ValueError) as error:
        raise Corruption(f"catalog version {version} cannot be read: {error}", entry.key) from None
    if not isinstance(update, Update) or update.version != version:
        raise Corruption(f"does not hold catalog version {version}", entry.key)
    return update


async def _update_bytes(store: Metastore, value: bytes, revision: Revision | None) -> bytes:
    if value[:1] == _INLINE:
        crc, data = value[1 : 1 + _CRC_BYTES], value[1 + _CRC_BYTES :]
        if crc32c(data).to_bytes(_CRC_BYTES, "big") != crc:
            raise BadBytes("the update does not have its checksum")
        return data
    if value[:1] != _CHUNKED:
        raise BadBytes("is neither an update nor says where its chunks are")
    (data,) = await read_chunks(store, msgspec.json.decode(value[1:], type=Manifest), revision)
    return data


def apply_checked(catalog: Catalog, update: Update) -> Catalog:
    """The next version; Corruption if the update does not fit the catalog."""
    key = update_key(update.version)
    if update.version != catalog.version + 1 or update.activation <= catalog.activation:
        raise Corruption(f"version {update.version} does not follow version {catalog.version}", key)
    try:
        following = apply_update(catalog, update)
        check_touched(following, update.entries)
    except (KeyError, BrokenCatalog, InvalidSchema) as error:
        raise Corruption(f"version {update.version} cannot follow version {catalog.version}: {error}", key) from None
    return following


async def read_snapshot(store: Metastore, mark: SnapshotMark, revision: Revision | None = None) -> Catalog:
    try:
        catalog = decode_snapshot(await read_chunks(store, mark.chunks, revision))
    except UnsupportedFormat as error:
        raise UnsupportedFormat(f"{SNAPSHOT_KEY}: snapshot of version {mark.version}: {error}") from None
    except (BadBytes, BrokenCatalog, Corruption) as error:
        raise Corruption(f"the snapshot of version {mark.version} cannot be read: {error}", SNAPSHOT_KEY) from None
    if catalog.version != mark.version:
        raise Corruption(f"holds version {catalog.version} instead of {mark.version}", SNAPSHOT_KEY)
    return catalog


async def read_base(store: Metastore, head: LogHead) -> Catalog:
    """The oldest catalog that can be had."""
    return await read_snapshot(store, head.snapshot, head.revision) if head.snapshot else empty_catalog()


async def read_updates(store: Metastore, after: CatalogVersion, head: LogHead) -> AsyncIterator[Update]:
    """Every update from `after` (exclusive) to the head's version, in order. Corruption if one is missing."""
    expected = after + 1
    start = update_key(expected)
    while expected <= head.version:
        try:
            page = await store.range(UPDATE_PREFIX, start=start, limit=_PAGE, revision=head.revision)
        except Compacted as error:
            raise Unavailable(f"the catalog's log was compacted while it was read ({error}); read it again") from None
        for entry in page.entries:
            update = await decode_update(store, entry, head.revision)
            if update.version != expected:
                raise Corruption(f"catalog version {expected} is missing", update_key(expected))
            expected += 1
            yield update
            if expected > head.version:
                return
        if not page.more:
            raise Corruption(f"catalog version {expected} is missing", update_key(expected))
        start = update_key(expected)


async def chunk_prefixes(store: Metastore, within: str) -> list[str]:
    """The prefixes under which chunks lie, read without their contents' number mattering: one look per prefix."""
    found: list[str] = []
    start: str | None = None
    while True:
        read = await store.range(within, start=start, limit=1)
        if not read.entries:
            return found
        prefix = read.entries[0].key.rpartition("/")[0] + "/"
        found.append(prefix)
        start = prefix[:-1] + "0"  # the character after '/': past everything under the prefix
