"""Where a server keeps its tablets' configs: as rows of the META tables, which are tablets of its own, and the root in
the metastore. A row is that of a range's end, so a tablet that is gone may have left its row to another: a row is
removed only by the tablet that it speaks of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from stelae.format.block import SmallBlock
from stelae.model.errors import InvalidArgument
from stelae.model.hybrid import TXN_MAX
from stelae.model.ids import Micros, Row, TableId, TabletId
from stelae.model.mutation import Mutation
from stelae.model.predicate.selectors import ALL_COLUMNS
from stelae.model.ranges import RangeSet
from stelae.registry.meta import META_SCHEMA, by_parent, from_cells, meta_row, parent_of, removal, to_mutations
from stelae.storage.files.fragments import Fragments
from stelae.storage.memory.cells import MemoryOfCells
from stelae.storage.read.asking import Asking
from stelae.storage.read.points.rows import RowReader
from stelae.storage.read.scans.rows import RowScan, ScanRequest
from stelae.storage.shard import Shard
from stelae.storage.tablet.config import TabletConfig
from stelae.storage.tablet.state import TabletState

_ANY_TIME = Micros(0)
_FEW = 100

SaveRoot = Callable[[TabletConfig], None]
"""Durable in the metastore when it returns."""


class MetaConfigs:
    """A `ConfigStore`. `attach` it to its shard before the first save."""

    def __init__(self, save_root: SaveRoot, location: str) -> None:
        self._save_root = save_root
        self._location = location
        self._shard: Shard | None = None
        self._owners: dict[Row, TabletId] = {}
        self._saved: dict[TabletId, TabletConfig] = {}

    def attach(self, shard: Shard, saved: Iterable[TabletConfig]) -> None:
        self._shard = shard
        for config in saved:
            self._own(config)

    def saved(self, tablet: TabletId) -> TabletConfig:
        """The tablet's config as it was saved last."""
        return self._saved[tablet]

    def save(self, configs: Sequence[TabletConfig], removed: Sequence[TabletId]) -> None:
        parted = by_parent(configs)
        for table in sorted((table for table in parted if table is not None), reverse=True):
            self._write(table, [m for config in parted[table] for m in to_mutations(config, self._location)])
        for config in parted.get(None, ()):
            self._save_root(config)
        before = [self._saved[config.tablet] for config in configs if config.tablet in self._saved]
        for config in configs:
            self._own(config)
        left = [old for old in before if old.rows.stop != self._saved[old.tablet].rows.stop]
        gone: dict[TableId, list[Mutation]] = {}
        for config in (*self._owned_by(removed), *(old for old in left if self._owners.get(_row(old)) == old.tablet)):
            parent = parent_of(config.table)
            if parent is not None:
                gone.setdefault(parent, []).append(removal(config.table, config.rows))
        for table, mutations in gone.items():
            self._write(table, mutations)
        for config in self._owned_by(removed):
            del self._owners[_row(config)]
        for tablet in removed:
            self._saved.pop(tablet, None)

    def _owned_by(self, tablets: Iterable[TabletId]) -> list[TabletConfig]:
        """The configs of those among them whose rows still speak of them."""
        configs = [self._saved[tablet] for tablet in tablets if tablet in self._saved]
        return [c for c in configs if self._owners.get(_row(c)) == c.tablet]

    def _own(self, config: TabletConfig) -> None:
        self._saved[config.tablet] = config
        self._owners[_row(config)] = config.tablet

    def _write(self, table: TableId, mutations: Sequence[Mutation]) -> None:
        """In blocks that each lie in one tablet, one behind the other; all durable when it returns."""
        if self._shard is None:
            raise InvalidArgument("configs are saved before there is a shard")
        shard, commits = self._shard, []
        for row_mutations in _by_row(mutations):
            state = shard.state_at(table, row_mutations[0].row)
            block = SmallBlock(META_SCHEMA.version, tuple(row_mutations))
            commits.append(shard.apply(state.tablet, block, urgent=True))
        shard.drain()
        for commit in commits:
            commit.durable.result()


def _row(config: TabletConfig) -> Row:
    return meta_row(config.table, config.rows)


def _by_row(mutations: Sequence[Mutation]) -> Iterator[list[Mutation]]:
    """What is said of one row is one block: a config is saved whole or not at all."""
    rows: dict[Row, list[Mutation]] = {}
    for mutation in mutations:
        rows.setdefault(mutation.row, []).append(mutation)
    yield from rows.values()


def read_configs(states: Iterable[TabletState], fragments: Fragments) -> list[TabletConfig]:
    """All configs in tablets of a META table."""
    found: list[TabletConfig] = []
    for state in states:
        asking = Asking(at=TXN_MAX, floor=state.floor_at(TXN_MAX), read_us=_ANY_TIME)
        rows = _few_rows(state)
        found += _scan(state, fragments, asking) if rows is None else _get(state, fragments, asking, rows)
    return found


def _few_rows(state: TabletState) -> list[Row] | None:
    """Those that a tablet may have, in order; None if they are many, or some are in files."""
    found: set[Row] = set()
    for _, refs in state.groups:
        for ref in refs:
            rows = ref.source.rows_between(state.rows) if isinstance(ref.source, MemoryOfCells) else None
            if rows is None or len(rows) > _FEW:
                return None
            found.update(rows)
    return sorted(found)


def _get(state: TabletState, fragments: Fragments, asking: Asking, rows: Iterable[Row]) -> Iterator[TabletConfig]:
    """Row by row, without the vectors that scans work with: to import those takes longer than to open a small store."""
    reader = RowReader(state, fragments, ALL_COLUMNS)
    for row in rows:
        cells = reader.newest(row, asking)
        if cells is not None:
            yield from_cells(row, cells)


def _scan(state: TabletState, fragments: Fragments, asking: Asking) -> Iterator[TabletConfig]:
    request = ScanRequest(RangeSet.of([state.rows]), ALL_COLUMNS, asking)
    for batch in RowScan(state, fragments, request).batches():
        families = [(field.name, batch.batch.column(field.name).to_pylist()) for field in batch.batch.schema][1:]
        for at, row in enumerate(batch.rows.to_pylist()):
            cells = {
                f"{family}:{qualifier}": value for family, column in families for qualifier, value in column[at] or ()
            }
            yield from_cells(row, cells)
