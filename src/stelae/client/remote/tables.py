"""Tables as a whole, of a store that other processes have: whoever has them is asked over connections."""

from __future__ import annotations

from typing import ParamSpec, TypeVar

from stelae.client.remote.asking import Asker
from stelae.client.remote.changes import ChangesUnderWay
from stelae.model.ids import Row, TableId
from stelae.service import operations as ops
from stelae.service.deadlines import Deadline
from stelae.service.operations import Operation
from stelae.service.spaces import SpacesAsk, SpacesInfo
from stelae.service.tables import AlterAsk, CreateAsk, TableInfo

P = ParamSpec("P")
R = TypeVar("R")


class RemoteTables:
    """A `TableService`, but for `info`, which those are asked that have the rows. `tables`: asks whoever has the
    tables. `changes`: knows whether the store may still be used here."""

    def __init__(self, tables: Asker, changes: ChangesUnderWay) -> None:
        self._tables = tables
        self._changes = changes

    def find(self, name: str, *, deadline: Deadline | None = None) -> TableInfo:
        return self._ask_tables(ops.FIND, deadline, name)

    def names(self, *, deadline: Deadline | None = None) -> tuple[str, ...]:
        return self._ask_tables(ops.NAMES, deadline)

    def spaces(self, *, deadline: Deadline | None = None) -> SpacesInfo:
        return self._ask_tables(ops.SPACES, deadline)

    def change_spaces(self, ask: SpacesAsk, *, deadline: Deadline | None = None) -> SpacesInfo:
        return self._ask_tables(ops.CHANGE_SPACES, deadline, ask)

    def create(self, ask: CreateAsk, *, deadline: Deadline | None = None) -> TableInfo:
        return self._ask_tables(ops.CREATE, deadline, ask)

    def alter(self, name: str, ask: AlterAsk, *, deadline: Deadline | None = None) -> TableInfo:
        return self._ask_tables(ops.ALTER, deadline, name, ask)

    def drop(self, name: str, *, if_exists: bool = False, deadline: Deadline | None = None) -> None:
        self._ask_tables(ops.DROP, deadline, name, if_exists)

    def recall(self, name: str, new_name: str | None = None, *, deadline: Deadline | None = None) -> TableInfo:
        return self._ask_tables(ops.RECALL, deadline, name, new_name)

    def split(
        self, table: TableId, at: Row | None = None, tablet: int | None = None, *, deadline: Deadline | None = None
    ) -> None:
        self._ask_tables(ops.SPLIT, deadline, table, at, tablet)

    def join(self, table: TableId, at: Row, *, deadline: Deadline | None = None) -> None:
        self._ask_tables(ops.JOIN, deadline, table, at)

    def _ask_tables(
        self, operation: Operation[P, R], deadline: Deadline | None, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        if operation.changes:
            with self._changes.counted():
                return self._tables.ask(operation, deadline, *args, **kwargs)
        self._changes.check()
        return self._tables.ask(operation, deadline, *args, **kwargs)
