"""Delta and Iceberg in the TPC-H bench: the same changes by `MERGE`, the same queries, on the Spark that they run on.

The processes are those of the Spark bench. If that Spark is an older one, it reads plain Parquet too, which is the
Parquet that was written here: by that a peer's ratio can be compared with ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow.dataset as ds
from processor_time import Took
from spark_peers import Peer
from tpch_data import COMPACTED, TABLES, changed_tables, changes_of, merge_sql
from tpch_queries import Answer
from tpch_world import World


@dataclass(slots=True)
class PeerTables:
    """A contender. What fails raises `PeerFailed`."""

    peer: Peer
    world: World
    _made: set[str] = field(default_factory=set)

    def open(self, state: str) -> None:
        """Its frames are what queries find from now on."""
        if self.peer.kind == "parquet":
            # A path from the root is taken as it is: the files are those of our session.
            tables = {table: str(self.world.parquet_path(state, table)) for table in TABLES}
        else:
            self._prepare(state)
            tables = {table: self.world.name_of(state, table) for table in TABLES}
        self.peer.ask("show", tables=tables)

    def ask(self, sql: str) -> tuple[Took, Answer]:
        said = self.peer.ask("query", sql=sql)
        return Took(said["wall_s"], said["processor_s"]), said["rows"]

    def _prepare(self, state: str) -> None:
        if state in self._made:
            return
        for table, shape in TABLES.items():
            name = self.world.name_of(state, table)
            if name not in self._made:
                source = str(self.world.truth.generated(table))
                self.peer.ask("store", table=name, source=source, key=list(shape.key), parts=shape.tablets)
                self._made.add(name)
        for change in changes_of(state):
            file = self.world.truth.change_file(change)
            columns = ds.dataset(file).schema.names
            sql = merge_sql("{target}", "changes", TABLES[change.table], columns, erases=change.erases)
            self.peer.ask("change", table=self.world.name_of(state, change.table), source=str(file), sql=sql)
        if state == COMPACTED:
            for table in changed_tables(state):
                self.peer.ask("compact", table=self.world.name_of(state, table))
        self._made.add(state)
