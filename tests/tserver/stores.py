"""A small store on a simulated machine, with one table that has rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from stelae.assembly.embedded import EmbeddedStore
from stelae.assembly.world import StoreSettings
from stelae.client.intake.mutations import blocks_of, key_of
from stelae.model.declare import columns, declare
from stelae.model.events import Listener
from stelae.model.ids import Row, TableId, Txn
from stelae.model.predicate.plan import ScanPredicate
from stelae.model.predicate.selectors import ALL_COLUMNS
from stelae.registry.tablet_records import take_tablet_ids
from stelae.service.blocks import OrderedBlock
from stelae.service.scans import ScanAsk
from stelae.service.tables import CreateAsk, TableInfo
from stelae.sim.effects import Effect
from stelae.tserver.server import TabletServer
from tests.assembly.worlds import SETTINGS, Machine

SCHEMA = declare({"id": "int64"}, [columns("data", {"a": "int32"}, purge="max-history=1")])


def row(key: int) -> Row:
    return key_of(SCHEMA, key)


class Place:
    """A machine, and the store that is open on it."""

    def __init__(self, seed: int = 1, settings: StoreSettings = SETTINGS, listener: Listener | None = None) -> None:
        self.machine = Machine(seed)
        self.machine.listener = listener
        self._settings = settings
        self.store: EmbeddedStore = self.machine.open(settings)

    @property
    def server(self) -> TabletServer:
        return self.store.server

    def create(self, name: str = "t", *cuts: int) -> TableInfo:
        return self.store.create(CreateAsk(name, SCHEMA, tuple(row(cut) for cut in cuts)))

    def give_out_ids(self, below: int) -> None:
        """Tablets may have all ids below this one, as if the master had given them out."""
        self.store.world.loop.run(take_tablet_ids(self.store.world.metastore, below))

    def blocks(self, table: TableId, *keys: int, a: int = 0) -> list[OrderedBlock]:
        return blocks_of(self.store.info(table).schema, [{"id": key, "a": a or key} for key in keys])

    def put(self, table: TableId, *keys: int, a: int = 0) -> Txn:
        return self.store.write(table, self.blocks(table, *keys, a=a))

    def get(self, table: TableId, key: int, at: Txn | None = None) -> Any:
        _, found = self.store.newest(table, row(key), ALL_COLUMNS, at)
        return None if found is None else found["a"]

    def keys(self, table: TableId) -> list[int]:
        batches = self.store.scan(table, ScanAsk(ScanPredicate(), self.store.now()))
        return [key for batch in batches for key in batch.column("id").to_pylist()]

    def reopen(self, how: str = "kill") -> None:
        if how == "closed":
            self.store.close()
        self.machine.end(how)
        self.store = self.machine.open(self._settings)

    @contextmanager
    def at_effect(self, kind: str, act: Callable[[], None]) -> Iterator[None]:
        """Once, in the middle of the first effect of a kind."""
        waiting = [act]

        def on_effect(effect: Effect) -> None:
            if effect.kind == kind and waiting:
                waiting.pop()()

        before, self.machine.effects._on_effect = self.machine.effects._on_effect, on_effect
        try:
            yield
        finally:
            self.machine.effects._on_effect = before
        assert not waiting, f"no effect of kind {kind}"

    def count(self, kind: str, act: Callable[[], object]) -> int:
        """How many effects of a kind something has."""
        seen: list[str] = []
        before, self.machine.effects._on_effect = self.machine.effects._on_effect, lambda e: seen.append(e.kind)
        act()
        self.machine.effects._on_effect = before
        return seen.count(kind)

    def close(self) -> None:
        self.store.close()
        self.machine.end("closed")
