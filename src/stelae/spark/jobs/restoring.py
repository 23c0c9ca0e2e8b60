"""Restoring: what a backup shows at a snapshot becomes the content of a table, all of it or nothing.

Tasks read the backup as the store reads its own files, and write what it shows at the snapshot, histories included
(`storage/offline/snapshots`). The files are written for the target's schema, in which columns are found by their ids:
in place, renamed ones get their data and dropped ones are left out; a new table has the schema, the policies and the
cuts of the backup.

The files are a load: they become visible at one txn. In place, it hides what the table held before from later reads,
and earlier snapshots still show it. A new table whose load does not come to its end is dropped.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import structs

from stelae.adapters.blobs.urls import blobs_url, open_blobs, shown_place
from stelae.adapters.clock import SystemClock
from stelae.adapters.rng import SystemRng
from stelae.client.api.display import shown_bytes
from stelae.client.arguments.keys import txn_of
from stelae.model.errors import Corruption, InvalidArgument, NotFound, StelaeError
from stelae.model.hybrid import show_txn
from stelae.model.ids import GroupId, Row, TableId, Txn
from stelae.model.public import public
from stelae.model.ranges import RowRange
from stelae.ports.blobs import BlobStore
from stelae.service.reports import Progress
from stelae.service.tables import CreateAsk, TableInfo
from stelae.service.tickets import HeldTable, LoadedFile, LoadTicket
from stelae.spark.driver.progress import Advance, Renewal, Summary, released, shown_seconds
from stelae.spark.driver.tasks import run_tasks
from stelae.spark.jobs.manifests import BackupManifest, backups_of_table, covering
from stelae.spark.loading.fragment_task import new_name
from stelae.spark.stores import backend_of, blobs_of, fragments_of
from stelae.spark.tickets import held_tablets
from stelae.storage.offline.snapshots import SnapshotPart, write_snapshot
from stelae.storage.offline.tablets import HeldTablet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stelae.client.api.database import Database
    from stelae.client.calls.patient import PatientStore


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """What was restored: the table as it was at `at`, visible in `table` from `txn` on."""

    table: str
    source: str
    directory: str
    at: Txn
    txn: Txn
    is_new: bool
    files: int
    records: int
    size_bytes: int
    seconds: float = 0.0

    def __str__(self) -> str:
        return str(self.summary)

    @property
    def summary(self) -> Summary:
        where = f"table {self.table}" if self.is_new else f"table {self.table}, in place"
        facts = [
            ("from", f"{self.source} in {self.directory}"),
            ("as of", show_txn(self.at)),
            ("visible at", str(self.txn)),
            ("records", f"{self.records:,} in {self.files:,} files, {shown_bytes(self.size_bytes)}"),
            ("time", shown_seconds(self.seconds)),
        ]
        return Summary(f"restored {where}", tuple(facts))


@public("restore", "stelae.spark")
def restore(
    spark: SparkSession,
    db: Database,
    directory: object,
    table: str | None = None,
    *,
    name: str | None = None,
    in_place: bool = False,
    at: object = None,
    progress: Progress | None = None,
) -> RestoreResult:
    """Bring a table back from its backups, as it was at any snapshot that they cover.

        stelae.spark.restore(spark, db, "backups", "users", name="users_yesterday", at=txn)

    `table` is what it is called in the backups; it may be left out where there is only one. It is restored under a new
    `name`, or `in_place`, where it takes the place of what the table holds now, at one txn. `at` is a txn, a snapshot
    or an aware datetime (default: the newest backup). `progress` is called with the bytes that were read and how many
    there are.
    """
    clock = SystemClock()
    started_s = clock.monotonic_s()
    if (name is None) == (not in_place):
        raise InvalidArgument("restore to a new name= or in_place=True: say one of them")
    root = blobs_url(directory)
    blobs = open_blobs(root, read_only=True)
    wanted = None if at is None else txn_of(at)
    manifest = covering(backups_of_table(blobs, shown_place(root), table), wanted)
    _check_files(blobs, manifest)
    held = manifest.held(root, manifest.txn if wanted is None else min(wanted, manifest.txn))
    backend = backend_of(db)
    if name is None:
        result = _load_backup(spark, backend, held, _in_place(backend, manifest), progress, is_new=False)
    else:
        info = backend.create(_creation(held, name))
        try:
            result = _load_backup(spark, backend, held, info, progress, is_new=True)
        except BaseException as error:
            _drop(backend, info, error)
            raise
    return replace(result, seconds=clock.monotonic_s() - started_s)


def _check_files(blobs: BlobStore, manifest: BackupManifest) -> None:
    """Before anything is done: all of them are there, with their sizes. What is in them is checked when it is read."""
    there = {info.name: info.size_bytes for info in blobs.list(f"{manifest.key}/")}
    for file in manifest.files:
        size = there.get(file.name)
        if size != file.size_bytes:
            found = "is missing" if size is None else f"has {size} bytes instead of {file.size_bytes}"
            raise Corruption(f"the file {found}; the backup at {manifest.txn} needs it", file.name)


def _creation(held: HeldTable, name: str) -> CreateAsk:
    """The table as it was, without the policies that judged what is now left out."""
    table = held.description()
    groups = tuple(
        structs.replace(group, options=structs.replace(group.options, past=())) for group in table.schema.groups
    )
    cuts = tuple(Row(tablet.rows.start) for tablet in held_tablets(held)[1:])
    return CreateAsk(name, structs.replace(table.schema, groups=groups), cuts, properties=table.properties)


def _in_place(store: PatientStore, manifest: BackupManifest) -> TableInfo:
    """The very table that the backup is of, whatever it is called now."""
    advice = "restore it under a new name="
    try:
        info = store.info(TableId(manifest.table_id))
    except NotFound:
        raise NotFound(
            f"table {manifest.table!r} (id {manifest.table_id}), which was backed up, is not there: {advice}"
        ) from None
    with released(store, store.hold(info.id)) as held:
        if held.store != manifest.store:
            raise InvalidArgument(f"the backup of {manifest.table!r} is of another store: {advice}")
    return info


def _drop(store: PatientStore, info: TableInfo, reason: BaseException) -> None:
    """What is half made goes; what went wrong is told all the same."""
    try:
        store.drop(info.name)
    except StelaeError as error:
        reason.add_note(f"table {info.name!r} is half restored and could not be dropped: {error}")


def _load_backup(
    spark: SparkSession,
    store: PatientStore,
    held: HeldTable,
    info: TableInfo,
    progress: Progress | None,
    *,
    is_new: bool,
) -> RestoreResult:
    job = f"restore-{SystemRng().token(12).hex()}"
    with released(store, store.begin_load(info.id, job)) as ticket:
        works = _works(held, ticket)
        advance = Advance(progress, sum(work.size_bytes for work in works))
        files: list[LoadedFile] = []

        def take(written: _Written) -> None:
            files.extend(written.files)
            advance.add(written.size_bytes)

        run_tasks(
            spark,
            f"restore {info.name}",
            works,
            partial(restore_files, msgspec.structs.replace(held, configs=()), ticket),
            take,
            size_bytes=lambda work: work.size_bytes,
            beat=Renewal(store, [ticket.ticket]),
        )
        txn = store.commit_load(ticket.ticket, files, replaces=not is_new)
    return RestoreResult(
        table=info.name,
        source=held.name,
        directory=shown_place(held.root),
        at=held.txn,
        txn=txn,
        is_new=is_new,
        files=len(files),
        records=sum(each.file.stats.records for each in files),
        size_bytes=sum(each.file.seal.size_bytes for each in files),
    )


class RestoreWork(NamedTuple):
    """Of one tablet of the backup, the rows and the group of the target that are written."""

    config: bytes
    rows: RowRange
    group: GroupId
    size_bytes: int


class _Written(NamedTuple):
    files: tuple[LoadedFile, ...]
    size_bytes: int


def _works(held: HeldTable, ticket: LoadTicket) -> list[RestoreWork]:
    """One for each group of each stretch of rows that lies in one tablet, there and here."""
    works = []
    for data, tablet in zip(held.configs, held_tablets(held), strict=True):
        cuts = sorted({tablet.rows.start, *(start for start in ticket.starts if start in tablet.rows)})
        for start, stop in zip(cuts, [*cuts[1:], tablet.rows.stop], strict=True):
            for group in ticket.schema().groups:
                size = tablet.size_bytes // (len(cuts) * len(ticket.schema().groups))
                works.append(RestoreWork(data, RowRange(start, stop), group.id, size))
    return works


def restore_files(held: HeldTable, ticket: LoadTicket, work: RestoreWork) -> _Written:
    """Write the files of one work. Runs in a Spark task."""
    tablet = HeldTablet.decode(work.config, held.schema(), "a backup", read_as=ticket.schema())
    part = SnapshotPart(tablet, work.group, work.rows, held.txn, ticket.table)
    blobs = blobs_of(ticket.root, writing=True)
    with closing(fragments_of(held.root)) as fragments:
        files = write_snapshot(part, fragments, blobs, lambda: new_name(ticket.prefix))
    return _Written(tuple(LoadedFile(work.group, file) for file in files), work.size_bytes)
