"""Backups: the files of a held table, copied by Spark tasks, and a manifest that makes them one.

Every byte is checked against what the store knows of the file while it is copied, and a file appears in the backup
directory whole or not at all. Files that an earlier backup of the same table has are not copied again, so a backup is
incremental to those before it, though it stands for itself: its manifest names all that it needs. The manifest comes
last. A backup that ends before it leaves whole files and nothing else; the next one takes those it can use, and what
is too old to be of one still under way is removed then.

Only files that no manifest names are ever removed, and none while a manifest cannot be read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from stelae.adapters.blobs.urls import blobs_url, open_blobs, shown_place
from stelae.adapters.clock import SystemClock
from stelae.client.api.display import shown_bytes
from stelae.client.arguments.keys import txn_of
from stelae.format.checksums import crc32c
from stelae.format.fragment.footer import FragmentFile, FragmentSeal
from stelae.format.fragment.reader import FragmentReader
from stelae.model.errors import AlreadyExists, Conflict, Corruption, InvalidArgument, NotFound
from stelae.model.hybrid import millis_of, show_txn
from stelae.model.ids import Txn
from stelae.model.public import public
from stelae.model.values import show
from stelae.ports.blobs import Blob, BlobStore
from stelae.service.reports import Progress
from stelae.service.tickets import HeldTable
from stelae.spark.driver.progress import Advance, Renewal, Summary, released, shown_seconds
from stelae.spark.driver.tasks import run_tasks
from stelae.spark.jobs.manifests import (
    MANIFEST_FILE,
    BackedFile,
    FoundBackup,
    backup_key,
    backup_name,
    encode_manifest,
    found_backups,
    manifest_of,
)
from stelae.spark.stores import backend_of, blobs_of, check_apart, check_apart_from
from stelae.spark.tickets import held_tablets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stelae.client.api.database import Database

LEFT_ALONE_MS = 24 * 3_600 * 1_000
"""What a backup left that never ended may be one that is still under way, until it is this old."""

_CHUNK_PAGES = 64


@dataclass(frozen=True, slots=True)
class BackupResult:
    """What a backup did. It answers for every snapshot from `horizon` to `txn`; `reused` files were there already, of
    the backup at `incremental_to` and those before it. `pruned` older backups were removed."""

    table: str
    directory: str
    txn: Txn
    horizon: Txn
    incremental_to: Txn | None
    files: int
    reused: int
    size_bytes: int
    copied_bytes: int
    pruned: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return str(self.summary)

    @property
    def summary(self) -> Summary:
        kind = "full" if self.incremental_to is None else f"incremental to {show_txn(self.incremental_to)}"
        facts = [
            ("at", f"{show_txn(self.txn)}, {kind}"),
            (
                "covers",
                f"snapshots from {show_txn(self.horizon)} on" if self.horizon else "all snapshots since it was made",
            ),
            ("files", f"{self.files:,}, of which {self.reused:,} were there already"),
            ("size", f"{shown_bytes(self.size_bytes)}, copied {shown_bytes(self.copied_bytes)}"),
            *([("pruned", f"{self.pruned:,} older")] if self.pruned else []),
            ("time", shown_seconds(self.seconds)),
        ]
        return Summary(f"backed up table {self.table} to {self.directory}", tuple(facts))


def backups(directory: object) -> list[FoundBackup]:
    """What a directory holds, by table and from the oldest; damaged ones too, each with its `problem`.

    [each.txn for each in backups("backups")]
    """
    return found_backups(open_blobs(directory, read_only=True))


@public("backup", "stelae.spark")
def backup(
    spark: SparkSession | None,
    db: Database,
    table: str,
    directory: object,
    *,
    at: object = None,
    incremental: bool | None = None,
    keep: int | None = None,
    progress: Progress | None = None,
) -> BackupResult:
    """Copy a table to a directory or a URL, as it is now or at a snapshot, while reading and writing go on.

        print(stelae.spark.backup(spark, db, "users", "backups"))

    Files that an earlier backup of the table has are not copied again, unless `incremental` is False: then all are.
    (True: there must be an earlier one.) One directory may hold backups of many tables and stores. `keep` removes all
    but so many of the table's newest backups, this one included, and the files that only they needed. `progress` is
    called with the bytes that were copied and how many there are. Without Spark (None) it is done in this process.
    """
    clock = SystemClock()
    started_s = clock.monotonic_s()
    if keep is not None and (type(keep) is not int or keep < 1):
        raise InvalidArgument(f"keep= is how many backups stay, at least 1, not {show(keep)}")
    root = blobs_url(directory)
    check_apart_from(root, db)
    backend = backend_of(db)
    info = backend.find(table)
    with released(backend, backend.hold(info.id, None if at is None else txn_of(at))) as held:
        check_apart(root, held.root)
        blobs = open_blobs(root)
        earlier = found_backups(blobs, backup_key(held))
        plan = _planned(held, root, blobs, earlier, incremental)
        if keep is not None:
            for each in earlier:
                each.good()  # what a damaged one needs is not known, so nothing could be removed
        advance = Advance(progress, sum(work.file.seal.size_bytes for work in plan.works))
        done = list(plan.known)

        def take(file: BackedFile) -> None:
            done.append(file)
            advance.add(file.size_bytes)

        run_tasks(
            spark,
            f"back up {info.name}",
            plan.works,
            partial(_copy, held.root, root),
            take,
            size_bytes=lambda work: work.file.seal.size_bytes,
            beat=Renewal(backend, [held.ticket]),
        )
        _publish(blobs, held, done, plan.incremental_to)
    reused = [file for file in done if not file.name.startswith(backup_name(backup_key(held), held.txn, ""))]
    result = BackupResult(
        table=info.name,
        directory=shown_place(root),
        txn=held.txn,
        horizon=held.horizon,
        incremental_to=plan.incremental_to,
        files=len(done),
        reused=len(reused),
        size_bytes=sum(file.size_bytes for file in done),
        copied_bytes=sum(file.size_bytes for file in done) - sum(file.size_bytes for file in reused),
        pruned=_prune(blobs, backup_key(held), keep, held.txn),
    )
    _sweep(blobs, backup_key(held), held.txn)
    return replace(result, seconds=clock.monotonic_s() - started_s)


class _CopyWork(NamedTuple):
    """`left`: where an earlier attempt may have left it."""

    file: FragmentFile
    name: str
    left: str | None


@dataclass(frozen=True, slots=True)
class _Plan:
    known: tuple[BackedFile, ...]
    works: tuple[_CopyWork, ...]
    incremental_to: Txn | None


def _planned(
    held: HeldTable, root: str, blobs: BlobStore, earlier: list[FoundBackup], incremental: bool | None
) -> _Plan:
    key, where = backup_key(held), shown_place(root)
    if any(each.txn == held.txn for each in earlier):
        raise AlreadyExists(f"there is a backup of table {held.name!r} at {show_txn(held.txn)} in {where} already")
    if incremental and not earlier:
        raise NotFound(f"there is no backup of table {held.name!r} in {where} that this one could be incremental to")
    there = {info.name: info.size_bytes for info in blobs.list(f"{key}/")} if incremental is not False else {}
    known, works, shared = [], [], set[Txn]()
    named = _named(earlier, there)
    lying = {name.rpartition("/")[2]: name for name in there}
    for file in _files_of(held).values():
        found = named.get((file.name, file.seal.size_bytes, file.seal.footer_crc))
        base = file.name.rpartition("/")[2]
        if found is not None:
            known.append(found[0])
            shared.add(found[1])
        else:
            works.append(_CopyWork(file, backup_name(key, held.txn, base), lying.get(base)))
    return _Plan(tuple(known), tuple(works), max(shared, default=None))


def _named(earlier: list[FoundBackup], there: Mapping[str, int]) -> dict[tuple[str, int, int], tuple[BackedFile, Txn]]:
    """The files of earlier backups that lie where they should, each with the newest backup that names it."""
    return {
        (file.source, file.size_bytes, file.footer_crc): (file, each.txn)
        for each in earlier
        for file in (each.manifest.files if each.manifest is not None else ())
        if there.get(file.name) == file.size_bytes
    }


def _files_of(held: HeldTable) -> dict[str, FragmentFile]:
    return {name: file for tablet in held_tablets(held) for name, file in tablet.files().items()}


def _copy(source_root: str, root: str, work: _CopyWork) -> BackedFile:
    """In a task: one file, or what is left of an earlier attempt if it is whole."""
    blobs, seal = blobs_of(root, writing=True), work.file.seal
    if work.left is not None:
        found = _checksum(blobs, work.left, seal)
        if found is not None:
            return BackedFile(work.left, work.file.name, seal.size_bytes, found, seal.footer_crc)
    blob = blobs_of(source_root).open(work.file.name)
    try:
        writer, crc = blobs.create(work.name), 0
        try:
            for chunk in checked_chunks(blob, seal):
                crc = crc32c(chunk, crc)
                writer.write(chunk)
            writer.commit()
        finally:
            writer.abort()
    except AlreadyExists:
        # Another attempt at this task was faster, or one before left what is not whole.
        crc_there = _checksum(blobs, work.name, seal)
        if crc_there is None:
            blobs.delete(work.name)
            return _copy(source_root, root, work._replace(left=None))
        crc = crc_there
    finally:
        blob.close()
    return BackedFile(work.name, work.file.name, seal.size_bytes, crc, seal.footer_crc)


def _checksum(blobs: BlobStore, name: str, seal: FragmentSeal) -> int | None:
    """Of a file that is there; None if it is not, or not what the seal says."""
    try:
        blob = blobs.open(name)
    except NotFound:
        return None
    crc = 0
    try:
        for chunk in checked_chunks(blob, seal):
            crc = crc32c(chunk, crc)
    except Corruption:
        return None
    finally:
        blob.close()
    return crc


def checked_chunks(blob: Blob, seal: FragmentSeal) -> Iterator[bytes]:
    """All bytes of a fragment in order, none that is not what was written: the footer by the seal, the data by the
    checksums of the footer."""
    footer = FragmentReader(blob, seal).footer
    page, crcs = footer.page_bytes, memoryview(footer.page_crcs).cast("B")
    for begin in range(0, seal.data_end, page * _CHUNK_PAGES):
        data = bytes(blob.read(begin, min(page * _CHUNK_PAGES, seal.data_end - begin)))
        for at in range(0, len(data), page):
            place = (begin + at) // page * 4
            if crc32c(data[at : at + page]) != int.from_bytes(crcs[place : place + 4], "little"):
                raise Corruption(f"the page of {page} bytes here does not have its checksum", blob.name, begin + at)
        yield data
    for start, stop, crc in (
        (seal.data_end, seal.footer_start, seal.index_crc),
        (seal.footer_start, seal.size_bytes, seal.footer_crc),
    ):
        data = bytes(blob.read(start, stop - start))
        if crc32c(data) != crc:
            raise Corruption("what is here does not have its checksum", blob.name, start)
        yield data


def _publish(blobs: BlobStore, held: HeldTable, files: list[BackedFile], incremental_to: Txn | None) -> None:
    """The manifest makes it a backup. Looked at again afterwards: whoever prunes the directory now has seen it, or is
    seen here."""
    manifest = manifest_of(held, sorted(files, key=lambda file: file.source), incremental_to)
    name = backup_name(manifest.key, manifest.txn, MANIFEST_FILE)
    writer = blobs.create(name)
    try:
        writer.write(encode_manifest(manifest))
        writer.commit()
    finally:
        writer.abort()
    there = {info.name for info in blobs.list(f"{manifest.key}/")}
    gone = [file.name for file in files if file.name not in there]
    if gone:
        blobs.delete(name)
        raise Conflict(f"{gone[0]} was removed from the backup directory meanwhile; run the backup again")


def _prune(blobs: BlobStore, key: str, keep: int | None, made: Txn) -> int:
    """Manifests first, so that no backup ever lacks a file. The one that was just made stays, even if it is of an old
    snapshot."""
    if keep is None:
        return 0
    old = [each for each in found_backups(blobs, key)[:-keep] if each.txn != made]
    for each in old:
        blobs.delete(backup_name(key, each.txn, MANIFEST_FILE))
    _remove(blobs, key, {backup_name(key, each.txn, "") for each in old})
    return len(old)


def _sweep(blobs: BlobStore, key: str, now: Txn) -> None:
    """What backups that never ended have left, once it is too old to be of one under way."""
    places = {info.name.rpartition("/")[0] + "/" for info in blobs.list(f"{key}/")}
    ended = {backup_name(key, each.txn, "") for each in found_backups(blobs, key)}
    old = {place for place in places - ended if millis_of(now) - millis_of(_txn_in(place)) > LEFT_ALONE_MS}
    if old:
        _remove(blobs, key, old)


def _txn_in(place: str) -> Txn:
    try:
        return Txn(int(place.split("/")[1], 16))
    except (IndexError, ValueError):
        return Txn(2**62)


def _remove(blobs: BlobStore, key: str, places: Collection[str]) -> None:
    """The fragments in these directories that no manifest names."""
    left = found_backups(blobs, key)
    if any(each.problem is not None for each in left):
        return
    needed = {file.name for each in left for file in each.good().files}
    for info in list(blobs.list(f"{key}/")):
        place, _, file = info.name.rpartition("/")
        if f"{place}/" in places and info.name not in needed and file.endswith(".parquet"):
            blobs.delete(info.name)
