"""Where a master is asked by threads: `TableService`, each call carried out on the master's loop and waited for.

What is known of tables is answered from the newest catalog at once.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from stelae.catalog.commands.tables import CreateTable, TableName
from stelae.catalog.objects import TableProperties
from stelae.catalog.value import Catalog
from stelae.master.master import Master
from stelae.master.tables.patience import wait_for_change
from stelae.model.errors import InvalidArgument
from stelae.model.ids import Row, TableId, TabletId
from stelae.ports.loop import Loop
from stelae.registry.known_tables import KnownTables
from stelae.registry.spaces import spaces_of
from stelae.registry.tablet_records import TabletRecord
from stelae.service.deadlines import Deadline
from stelae.service.spaces import AlterZoneAsk, SpacesAsk, SpacesInfo
from stelae.service.tables import AlterAsk, CreateAsk, TableInfo

T = TypeVar("T")

ChooseSplit = Callable[[TableId, Row | None, int | None, Deadline | None], tuple[TabletId, Row]]
"""Which tablet of a table to split, and where: the server that has the data knows."""


class Gate(Protocol):
    """Who is let in. Closing waits for those who are inside."""

    def check(self) -> None:
        """Raise Closed if nobody is let in any more."""
        ...

    def visit(self, table: TableId | None = None) -> AbstractContextManager[None]:
        """For calls that closing waits for; what is said of a table's tablets is explained by what became of it."""
        ...


class TableDesk:
    """A `TableService`. Safe for threads.

    A change waits for its turn, and for servers, until the deadline. What is under way is recorded step by step, and
    whoever stops waiting for it has not stopped it."""

    def __init__(
        self,
        leading: Callable[[], Master],
        tables: KnownTables,
        loop: Loop,
        gate: Gate,
        choose_split: ChooseSplit,
        look_at_sizes: Callable[[], None],
        *,
        is_alone: bool = True,
    ) -> None:
        """`leading` raises if no master is there to be asked. `look_at_sizes`: have the server see whether its tablets
        are of the size they should be. `is_alone`: no other process has a part in changes; otherwise whoever asks for
        one waits for it until the deadline, and not for what others do with it."""
        self._is_alone = is_alone
        self._look_at_sizes = look_at_sizes
        self._leading = leading
        self._tables = tables
        self._run = loop.run
        self._gate = gate
        self._choose_split = choose_split

    # -- what is known of tables

    def find(self, name: str, *, deadline: Deadline | None = None) -> TableInfo:  # noqa: ARG002 - it never waits
        self._gate.check()
        return self._tables.find(name)

    def info(self, table: TableId, *, deadline: Deadline | None = None) -> TableInfo:  # noqa: ARG002 - it never waits
        self._gate.check()
        return self._tables.info(table)

    def names(self, *, deadline: Deadline | None = None) -> tuple[str, ...]:  # noqa: ARG002 - it never waits
        self._gate.check()
        return self._tables.names()

    def spaces(self, *, deadline: Deadline | None = None) -> SpacesInfo:  # noqa: ARG002 - it never waits
        self._gate.check()
        return spaces_of(self._tables.catalog)

    # -- changes

    def change_spaces(self, ask: SpacesAsk, *, deadline: Deadline | None = None) -> SpacesInfo:
        with self._gate.visit():
            changed = self._leading().change_spaces(ask, deadline=deadline)
            found = spaces_of(self._wait(changed, "the change of namespaces and zones", deadline))
        if isinstance(ask, AlterZoneAsk):  # tablets may be too large now, or too small
            self._look_at_sizes()
        return found

    def create(self, ask: CreateAsk, *, deadline: Deadline | None = None) -> TableInfo:
        properties = TableProperties() if ask.properties is None else ask.properties
        command = CreateTable(TableName.parse(ask.name), ask.schema, ask.zone, properties, ask.if_not_exists)
        with self._gate.visit():
            made = self._leading().create(command, ask.cuts, deadline=deadline)
            return self._tables.info_of(self._wait(made, f"the creation of table {ask.name!r}", deadline))

    def alter(self, name: str, ask: AlterAsk, *, deadline: Deadline | None = None) -> TableInfo:
        with self._gate.visit():
            altered = self._leading().alter(TableName.parse(name), ask, deadline=deadline)
            return self._tables.info_of(self._wait(altered, f"the alteration of table {name!r}", deadline))

    def drop(self, name: str, *, if_exists: bool = False, deadline: Deadline | None = None) -> None:
        with self._gate.visit():
            dropped = self._leading().drop(TableName.parse(name), if_exists=if_exists, deadline=deadline)
            self._wait(dropped, f"the drop of table {name!r}", deadline)

    def recall(self, name: str, new_name: str | None = None, *, deadline: Deadline | None = None) -> TableInfo:
        with self._gate.visit():
            recalled = self._leading().recall(TableName.parse(name), new_name, deadline=deadline)
            return self._tables.info_of(self._wait(recalled, f"the recall of table {name!r}", deadline))

    def split(
        self,
        table: TableId,
        at: Row | None = None,
        tablet: int | None = None,
        *,
        deadline: Deadline | None = None,
    ) -> None:
        with self._gate.visit(table):
            name = self.info(table).name
            chosen, row = self._choose_split(table, at, tablet, deadline)
            split = self._leading().split(chosen, row, is_asked=True, deadline=deadline)
            self._wait(split, f"the split of a tablet of table {name!r}", deadline)

    def join(self, table: TableId, at: Row, *, deadline: Deadline | None = None) -> None:
        with self._gate.visit(table):
            info = self.info(table)
            pair = [each.tablet for each in self._recorded(table) if at and at in (each.rows.start, each.rows.stop)]
            if len(pair) < 2:
                raise InvalidArgument(f"table {info.name!r}: no tablet begins at row {at!r}")
            joined = self._leading().join(pair[0], pair[1], is_asked=True, deadline=deadline)
            self._wait(joined, f"the join of tablets of table {info.name!r}", deadline)

    def _wait(self, change: Coroutine[Any, Any, T], what: str, deadline: Deadline | None) -> T:
        return self._run(change if self._is_alone else wait_for_change(change, what, deadline))

    # -- for the server, and for whoever runs the master

    def tables_at_rest(self, look: Callable[[Catalog, Callable[[TableId], tuple[TabletRecord, ...]]], None]) -> None:
        """Let somebody look at the catalog and at the tablets of its tables while none is being changed."""
        self._run(self._leading().look_undisturbed(lambda: look(self._tables.catalog, self._recorded)))

    def tend(self) -> None:
        """Do what time alone makes due, if there is anything."""
        master = self._leading()
        if master.has_work:
            self._run(master.tend())

    def _recorded(self, table: TableId) -> tuple[TabletRecord, ...]:
        return self._leading().maps.of_table(table)
