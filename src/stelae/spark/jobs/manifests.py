"""What a backup is, as a value and as a file: the table as it was held, and where each of its files lies.

A backup directory holds, for each table of each store, one directory; in it one for each backup, named by its txn, with
the files that it copied and `manifest.json`, which is written last: without it there is no backup. A manifest names all
files of its table, in its own directory or in those of earlier backups, and makes them a `HeldTable` again, which
whoever reads tables reads. It has a checksum of its own text, so a damaged one is known as such; where it lies says
which backup it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from stelae.format.checksums import crc32c
from stelae.model.errors import Corruption, InvalidArgument, NotFound, StelaeError, UnsupportedFormat, nearest
from stelae.model.hybrid import COUNTER_MAX, TXN_MAX, counter_of, millis_of, pack, to_datetime
from stelae.model.ids import Txn
from stelae.model.schema import ColumnsGroup
from stelae.ports.blobs import BlobStore
from stelae.service.tickets import HeldTable
from stelae.spark.tickets import held_tablets

MANIFEST_VERSION = 1
MANIFEST_FILE = "manifest.json"
_FORMAT = "stelae backup"
_STORE_DIGITS = 12
_SPANS_SHOWN_MAX = 10


class BackedFile(msgspec.Struct, frozen=True):
    """`name`: in the backup directory. `source`: what it was called in the store. `crc32c`: of all its bytes."""

    name: str
    source: str
    size_bytes: int
    crc32c: int
    footer_crc: int


class BackupManifest(msgspec.Struct, frozen=True):
    """`key` is the table's directory. `txn` is the snapshot that was taken; the files answer for every snapshot from
    `horizon` on. `incremental_to`: the newest of the backups whose files it shares."""

    key: str
    store: str
    table_id: int
    table: str
    columns: dict[str, str]
    txn: Txn
    taken: str
    horizon: Txn
    incremental_to: Txn | None
    files: tuple[BackedFile, ...]
    description: bytes
    configs: tuple[msgspec.Raw, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def held(self, root: str, at: Txn | None = None) -> HeldTable:
        """The table in the backup directory, whose URL is `root`, at a snapshot."""
        txn = self.txn if at is None else at
        configs = tuple(bytes(config) for config in self.configs)
        return HeldTable("", txn, self.horizon, self.table, root, self.description, configs, self.store)


class _Envelope(msgspec.Struct, frozen=True):
    format: str
    version: int
    crc32c: str
    backup: msgspec.Raw


def backup_key(held: HeldTable) -> str:
    """By ids: tables may be renamed, and two stores may have tables of one name."""
    return f"{held.store[:_STORE_DIGITS]}-{held.description().id:08x}"


def backup_name(key: str, txn: Txn, file: str) -> str:
    return f"{key}/{txn:016x}/{file}"


def manifest_of(held: HeldTable, files: Sequence[BackedFile], incremental_to: Txn | None) -> BackupManifest:
    names = {file.source: file.name for file in files}
    schema = held.schema()
    columns = {key.name: f"{key.type} key" for key in schema.key}
    for group in schema.groups:
        if isinstance(group, ColumnsGroup):
            columns |= {column.name: str(column) for column in group.columns}
        else:
            columns |= {f"{family}:": "cells" for family in [f.name for f in group.families] or ["*"]}
    return BackupManifest(
        key=backup_key(held),
        store=held.store,
        table_id=held.description().id,
        table=held.name,
        columns=columns,
        txn=held.txn,
        taken=to_datetime(held.txn).isoformat(),
        horizon=held.horizon,
        incremental_to=incremental_to,
        files=tuple(files),
        description=held.table,
        configs=tuple(msgspec.Raw(tablet.renamed(names).encode()) for tablet in held_tablets(held)),
    )


def encode_manifest(manifest: BackupManifest) -> bytes:
    body = msgspec.json.encode(manifest)
    envelope = _Envelope(_FORMAT, MANIFEST_VERSION, f"{crc32c(body):08x}", msgspec.Raw(body))
    return msgspec.json.encode(envelope) + b"\n"


def decode_manifest(data: bytes, where: str) -> BackupManifest:
    try:
        version = msgspec.json.decode(data, type=dict[str, msgspec.Raw]).get("version", msgspec.Raw(b"0"))
        if msgspec.json.decode(version, type=int) != MANIFEST_VERSION:
            raise UnsupportedFormat(
                f"{where}: a manifest of version {bytes(version).decode()}; this release reads version "
                f"{MANIFEST_VERSION}"
            )
        envelope = msgspec.json.decode(data, type=_Envelope)
        if envelope.format != _FORMAT or f"{crc32c(bytes(envelope.backup)):08x}" != envelope.crc32c:
            raise Corruption("the manifest does not have its checksum", where)
        return msgspec.json.decode(envelope.backup, type=BackupManifest)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Corruption(f"the manifest cannot be read: {error}", where) from None


@dataclass(frozen=True, slots=True)
class FoundBackup:
    """One backup of a directory. `manifest` is None if it is damaged, and `problem` then says how."""

    key: str
    txn: Txn
    manifest: BackupManifest | None
    problem: StelaeError | None = None

    def good(self) -> BackupManifest:
        if self.problem is not None:
            raise self.problem
        if self.manifest is None:
            raise InvalidArgument(f"backup {self.key} at {self.txn} has no manifest")
        return self.manifest


def found_backups(blobs: BlobStore, key: str | None = None) -> list[FoundBackup]:
    """All that are there, by table and then from the oldest; those of one table, if its directory is given."""
    return sorted(_found(blobs, key), key=lambda each: (each.key, each.txn))


def _found(blobs: BlobStore, key: str | None) -> Iterator[FoundBackup]:
    for info in blobs.list("" if key is None else f"{key}/"):
        parts = info.name.split("/")
        if len(parts) != 3 or parts[2] != MANIFEST_FILE or not _is_txn(parts[1]):
            continue
        at = Txn(int(parts[1], 16))
        try:
            yield FoundBackup(parts[0], at, _read_manifest(blobs, info.name))
        except NotFound:
            continue  # it was removed meanwhile
        except (Corruption, UnsupportedFormat) as problem:
            yield FoundBackup(parts[0], at, None, problem)


def _read_manifest(blobs: BlobStore, name: str) -> BackupManifest:
    blob = blobs.open(name)
    try:
        manifest = decode_manifest(bytes(blob.read(0, blob.size_bytes)), name)
    finally:
        blob.close()
    if backup_name(manifest.key, manifest.txn, MANIFEST_FILE) != name:
        raise Corruption(f"the manifest is of backup {manifest.key} at {manifest.txn}", name)
    return manifest


def _is_txn(digits: str) -> bool:
    try:
        return len(digits) == 16 and int(digits, 16) <= TXN_MAX
    except ValueError:
        return False


def backups_of_table(blobs: BlobStore, directory: str, table: str | None) -> list[FoundBackup]:
    """Of the one table that is meant, from the oldest: by the name it had at its newest backup, or its directory's;
    None if there is only one."""
    found = found_backups(blobs)
    if not found:
        raise NotFound(f"there is no backup in {directory}")
    names: dict[str, str] = {}
    for each in found:
        names[each.key] = each.manifest.table if each.manifest is not None else names.get(each.key, each.key)
    keys = [key for key, name in names.items() if table is None or table in (key, name)]
    keys = keys or [key for key, name in names.items() if name.rpartition(".")[2] == table]
    shown = ", ".join(f"{name} ({key})" for key, name in names.items())
    if not keys:
        raise NotFound(f"no backup of table {table!r} in {directory}{nearest(str(table), names.values())}: has {shown}")
    if len(keys) > 1:
        raise InvalidArgument(f"say which table of {directory} is meant, by its name or its directory: {shown}")
    return [each for each in found if each.key == keys[0]]


def covering(found: Sequence[FoundBackup], at: Txn | None) -> BackupManifest:
    """The backup that answers for a snapshot, None: the newest. NotFound says what there is instead."""
    if at is None:
        return found[-1].good()
    good = [each.manifest for each in found if each.manifest is not None]
    for manifest in good:
        # A moment stands for the end of its millisecond, which a backup taken in it does not reach.
        until = at_end_of(manifest.txn) if counter_of(at) == COUNTER_MAX else manifest.txn
        if manifest.horizon <= at <= until:
            return manifest
    damaged = [f"; {each.problem}" for each in found if each.problem is not None and each.txn >= at]
    spans = ", ".join(f"{each.horizon} to {each.txn} ({each.taken})" for each in good[-_SPANS_SHOWN_MAX:])
    raise NotFound(
        f"no backup of {good[-1].table if good else found[-1].key} covers txn {at}; there are: "
        f"{spans or 'none that can be read'}{damaged[0] if damaged else ''}"
    )


def at_end_of(txn: Txn) -> Txn:
    """The last txn of its millisecond."""
    return pack(millis_of(txn), COUNTER_MAX)
