"""Is everything there, and is it what it says it is? All of a running store is read, and nothing changed.

- The catalog holds together. Each table's tablets cover all rows without gap or overlap, as the master has recorded
  them and as the server has them, at the newest schema, and serving.
- Every file that a tablet needs, also of a table that was dropped and can be recalled, is on the store; every byte of
  it has its checksum; its records are in order, as many as it says, within the rows and times it says; its filters know
  its rows.
- The log can be read from its first segment to its end. What it has of replicas is what is in memory; and the other
  members of tablets that are led here have the same records (`replication/comparing`).
- What lies on the store and is needed by nobody is counted: it is not wrong, and goes with the next collection.

Problems are told in words, one for each thing that is wrong; a store in use is checked as it is when each is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from stelae.catalog.check import check_catalog
from stelae.catalog.value import Catalog
from stelae.format import layout
from stelae.format.fragment.footer import FragmentFile
from stelae.format.fragment.order import check_order, check_records
from stelae.format.fragment.reader import FragmentReader
from stelae.format.log.chain import read_log
from stelae.model.errors import NotFound, StelaeError
from stelae.model.ids import TableId, TabletId
from stelae.model.ranges import RangeSet, RowRange, check_cover
from stelae.model.values import show
from stelae.ports.logfiles import LogFiles
from stelae.registry.tablet_records import TabletPhase, TabletRecord
from stelae.service.reports import CheckReport, Problem, Progress
from stelae.storage.files.names import fragment_names, table_of_name
from stelae.storage.shard import Shard
from stelae.storage.tablet.config import TabletConfig
from stelae.storage.tablet.state import TabletState
from stelae.storage.upkeep.upkeep import Upkeep
from stelae.tserver.lives import Life
from stelae.tserver.replication.comparing import AskImages, OnDisk, compare_members
from stelae.tserver.replication.hosting import Hosting
from stelae.tserver.surroundings import Tables

TabletsRecorded = Callable[[TableId], Sequence[TabletRecord]]
"""A table's tablets as the master has recorded them."""


class AtRest(Protocol):
    """Who lets others look at tables while none is being made, changed or dropped. If one was all the same, `look` is
    called again: the last time counts."""

    def __call__(self, look: Callable[[Catalog, TabletsRecorded], None]) -> None: ...


class StoreCheck:
    """`tables_at_rest` is the master's."""

    def __init__(
        self,
        shard: Shard,
        upkeep: Upkeep,
        logs: LogFiles,
        tables: Tables,
        life: Callable[[TabletId], Life],
        tables_at_rest: AtRest,
        away: Callable[[], Sequence[TabletConfig]],
        server: str | None = None,
        hosting: Hosting | None = None,
        ask_images: AskImages | None = None,
    ) -> None:
        """`away`: the configs of tablets that are not open. `server`: what this one is called, if it is not the only
        one: then the tablets of others are theirs to look at. `hosting`, `ask_images`: its replicas, and who asks
        others for theirs."""
        self._shard = shard
        self._upkeep = upkeep
        self._logs = logs
        self._tables = tables
        self._life = life
        self._tables_at_rest = tables_at_rest
        self._away = away
        self._server = server
        self._hosting = hosting
        self._ask_images = ask_images
        self._dropped: dict[TableId, str] = {}
        self._problems: list[Problem] = []
        self._counts: dict[str, int] = dict.fromkeys(("tables", "tablets", "fragments", "records", "bytes"), 0)

    def run(self, progress: Progress | None = None) -> CheckReport:
        # A table that is being made, or dropped, is half there; that is not wrong.
        self._tables_at_rest(self._check_tables)
        self._check_files(progress)
        self._check_log()
        if self._hosting is not None and self._ask_images is not None:
            leading, ask, name_of = self._hosting.leading, self._ask_images, self._table_name
            self._problems += compare_members(leading, self._shard, ask, name_of)
        return CheckReport(tuple(self._problems), self._counts)

    def _wrong(self, what: str, where: str, words: object) -> None:
        self._problems.append(Problem(what, where, str(words)))

    # -- tables and tablets

    def _check_tables(self, catalog: Catalog, recorded: TabletsRecorded) -> None:
        self._problems.clear()
        self._counts["tables"] = self._counts["tablets"] = 0
        try:
            check_catalog(catalog)
        except StelaeError as error:
            self._wrong("catalog", f"version {catalog.version}", error)
        self._dropped = {id_: f"{each.table.name} (dropped)" for id_, each in catalog.dropped.items()}
        for id_, table in catalog.tables.items():
            self._counts["tables"] += 1
            with self._shard.lock:
                states = self._shard.of_table(id_)
                records = recorded(id_)
            name = catalog.qualified_name(table)
            self._check_table(name, table.schema.version, states)
            self._check_covered(name, [record.rows for record in records], "as recorded")
            known = {(r.tablet, r.rows): r.phase for r in records if self._server in (None, r.server)}
            if self._server is None:
                self._check_covered(name, [state.rows for state in states], "as they are")
            else:
                self._check_here(name, [rows for (_, rows), at in known.items() if at is TabletPhase.RUNNING], states)
            for state in states:
                phase = known.get((state.tablet, state.rows))
                if phase is not TabletPhase.RUNNING and not self._shard.tablets_changed(state):
                    said = "there is no record of it" if phase is None else f"it is recorded as {phase.name}"
                    self._wrong("tablet", f"{name}, tablet {state.tablet}", said)

    def _check_table(self, name: str, version: int, states: list[TabletState]) -> None:
        self._counts["tablets"] += len(states)
        for state in states:
            where = f"{name}, tablet {state.tablet}"
            if state.schema.version < version:
                self._wrong("tablet", where, f"is at schema version {state.schema.version}, the table at {version}")
            life = self._life(state.tablet)
            if life is not Life.ACTIVE and not self._shard.tablets_changed(state):
                self._wrong("tablet", where, f"is in state {life.value} {life.name}")

    def _check_covered(self, name: str, ranges: list[RowRange], how: str) -> None:
        try:
            check_cover(ranges)
        except StelaeError as error:
            self._wrong("table", name, f"its tablets, {how}, do not cover all rows once: {error}")

    def _check_here(self, name: str, recorded: list[RowRange], states: list[TabletState]) -> None:
        """What is recorded to run here is here."""
        lost = RangeSet.of(recorded).subtract(RangeSet.of([state.rows for state in states]))
        if not lost.is_empty:
            where = ", ".join(_said(each) for each in lost.ranges)
            self._wrong("table", name, f"rows {where} are recorded to be on {self._server}, and are not")

    # -- files

    def _check_files(self, progress: Progress | None) -> None:
        needed = self._needed()
        done, total = 0, sum(file.seal.size_bytes for file, _ in needed.values())
        for name, (file, where) in needed.items():
            self._counts["fragments"] += 1
            try:
                self._check_file(file)
            except NotFound:
                if name in self._needed():
                    self._wrong("fragment", f"{where}: {name}", "is missing")
            except StelaeError as error:
                self._wrong("fragment", f"{where}: {name}", error)
            done += file.seal.size_bytes
            if progress is not None:
                progress(done, total)
        # Listed first: what is made meanwhile is not in the list, or is needed by the time that is asked.
        present, upkeep = fragment_names(self._shard.blobs), self._upkeep
        for name in upkeep.unknown_files(present):
            told = f"is of table {table_of_name(name)}, of which the catalog knows nothing"
            self._wrong("fragment", name, f"{told}: was the metastore lost, or an older one put in its place?")
        if self._server is not None:
            self._check_files_of_replicas(set(present))
            return  # which files nobody needs is known to the master alone
        needed_now = upkeep.needed_files()
        self._counts["unneeded fragments"] = sum(not upkeep.keeps(name) for name in set(present) - needed_now)

    def _check_files_of_replicas(self, present: set[str]) -> None:
        """Of tablets that are led elsewhere: there whole files are read. Here it is seen that they are there."""
        with self._shard.lock:
            found = {tablet: replica.files() for tablet, replica in self._shard.replicas.items()}
        self._counts["replicas"] = len(found)
        for tablet, names in found.items():
            for name in sorted(names - present):
                with self._shard.lock:
                    replica = self._shard.replicas.get(tablet)
                    is_needed = replica is not None and name in replica.files()
                if is_needed and not self._is_there(name):
                    where = f"tablet {tablet} on {self._server}: {name}"
                    self._wrong("replica", where, "is missing: bring it back, perhaps from trash/ or a backup")

    def _is_there(self, name: str) -> bool:
        try:
            self._shard.blobs.open(name).close()
        except NotFound:
            return False
        return True

    def _needed(self) -> dict[str, tuple[FragmentFile, str]]:
        found: dict[str, tuple[FragmentFile, str]] = {}
        for state in self._shard.tablets().values():
            where = f"{self._table_name(state.table)}, tablet {state.tablet}"
            for name, file in state.files().items():
                found.setdefault(name, (file, where))
        for config in self._away():
            where = f"{self._table_name(config.table)}, tablet {config.tablet}"
            for file in config.fragments():
                found.setdefault(file.name, (file, where))
        return found

    def _table_name(self, table: TableId) -> str:
        if table in self._dropped:
            return self._dropped[table]
        try:
            return self._tables.info(table).table.name
        except NotFound:
            return f"table {table}"

    def _check_file(self, file: FragmentFile) -> None:
        blob = self._shard.blobs.open(file.name)
        try:
            reader = FragmentReader(blob, file.seal)
            reader.verify()
            records = rows = 0
            before: pa.RecordBatch | None = None
            for block, batch in _batches(reader):
                found = layout.rows_of(reader.codec, batch)
                check_records(reader.footer.spec, reader.codec, batch, found)
                rows += check_order(reader.footer.spec, batch, found, before) - (before is not None)
                if not reader.may_contain(found[0].as_py(), block):
                    self._wrong("fragment", file.name, f"the filter of block {block} does not know its first row")
                before = batch.slice(batch.num_rows - 1)
                records += batch.num_rows
            self._counts["records"] += records
            self._counts["bytes"] += file.seal.size_bytes
            if records != file.stats.records:
                self._wrong("fragment", file.name, f"has {records} records and says {file.stats.records}")
        finally:
            blob.close()

    # -- the log

    def _check_log(self) -> None:
        self._counts["log segments"] = self._counts["log records"] = 0
        on_disk = OnDisk(self._shard)
        try:
            for segment in read_log(self._logs):
                self._counts["log segments"] += 1
                self._counts["log records"] += len(segment.records)
                on_disk.take(segment.records)
            self._problems += on_disk.problems()
        except NotFound:
            return  # it was collected while it was read: what is needed lies further on
        except StelaeError as error:
            self._wrong("log", "log", error)


def _batches(reader: FragmentReader) -> Iterator[tuple[int, pa.RecordBatch]]:
    for block in range(reader.block_count):
        table = reader.read_block(block)
        for batch in table.combine_chunks().to_batches():
            yield block, batch


def _said(rows: RowRange) -> str:
    return f"from {show(rows.start)} {'on' if rows.stop is None else f'to {show(rows.stop)}'}"
