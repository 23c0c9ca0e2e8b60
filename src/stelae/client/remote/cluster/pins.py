"""Snapshots of several shards: held only if every one of them holds its part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock

from stelae.client.remote.cluster.routing import Routing, all_of
from stelae.client.remote.pins import RemotePin
from stelae.model.errors import SnapshotTooOld, StelaeError
from stelae.model.ids import TableId, Txn
from stelae.service.deadlines import Deadline


class ClusterPin:
    """A snapshot that some shards keep readable while the connections to them live. Safe for threads. `table`: the one
    that is read at it, of which other shards may have the rows by now; None: all, and all shards hold it."""

    def __init__(self, txn: Txn, pins: Mapping[str, RemotePin], routing: Routing, table: TableId | None) -> None:
        self.txn = txn
        self._pins: dict[str, RemotePin] = dict(pins)
        self._routing = routing
        self._table = table
        self._lock = Lock()
        self._is_open = True

    @property
    def is_held(self) -> bool:
        """Not if a shard of it was started again, or the connection to it broke: it does not know of it any more. Nor
        if other shards have rows of the table, as far as is known here."""
        routes = None if self._table is None else self._routing.locations.known(self._table)
        if routes is not None and not self._pins.keys() >= set(routes.shards):
            return False
        return all(pin.is_held for pin in list(self._pins.values()))

    def look_again(self, looked: set[TableId], deadline: Deadline | None) -> None:
        """Ask where the table's rows are now, unless that was `looked` at: whoever led a tablet may have handed it
        over, and says nothing of it while the connection to it lives."""
        if self._table is not None and self._table not in looked:
            looked.add(self._table)
            self._routing.locations.ask_again(self._table, self._routing.until(deadline))

    def hold_again(self, deadline: Deadline | None) -> None:
        """At the shards that do not hold it: one that is away does not keep it from the others. Those that have lost it
        and have no rows of the table any more need not."""
        until = self._routing.until(deadline)
        table, shards = self._table, list(self._pins)
        if table is not None:
            shards = list(self._routing.find_shards(table, until))
        failed: StelaeError | None = None
        with self._routing.doubting(table):
            for shard in shards:
                pin = self._pins.get(shard)
                if self._is_open and (pin is None or not pin.is_held):
                    try:
                        self._replace(shard, self._routing.shards.get(shard).pin(self.txn, deadline=until))
                    except StelaeError as error:
                        failed = failed or error
            if failed is not None:
                raise failed
        with self._lock:
            for shard in [shard for shard, pin in self._pins.items() if shard not in shards and not pin.is_held]:
                self._pins.pop(shard).close()

    def _replace(self, shard: str, pin: RemotePin) -> None:
        with self._lock:
            is_wanted = self._is_open
            if is_wanted:
                self._pins[shard] = pin
        if not is_wanted:
            pin.close()

    def close(self) -> None:
        with self._lock:
            was_open, self._is_open = self._is_open, False
            pins = list(self._pins.values())
        if was_open:
            for pin in pins:
                pin.close()


class ClusterPins:
    """Pins snapshots at the shards that `routing` finds. Safe for threads."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing

    def pin(self, at: Txn | None, table: TableId | None, deadline: Deadline) -> ClusterPin:
        """At every shard concerned. Without a snapshot, what each calls the newest is pinned there first, so that
        nothing of the largest of these can go before that is pinned everywhere."""
        shards = self._routing.find_shards(table, deadline)
        with self._routing.doubting(table):
            return self._pin_these(shards, at, table, deadline)

    def _pin_these(
        self, shards: Sequence[str], at: Txn | None, table: TableId | None, deadline: Deadline
    ) -> ClusterPin:
        if at is not None:
            pins = self._pin_at_each(shards, at, deadline, may_lack=table is None)
            return ClusterPin(at, pins, self._routing, table)
        low = self._pin_at_each(shards, None, deadline)
        newest = self._routing.seen.note(max(pin.txn for pin in low.values()))
        behind = [shard for shard, pin in low.items() if pin.txn < newest]
        try:
            pins = self._pin_at_each(behind, newest, deadline) if behind else {}
        except BaseException:
            behind = list(low)
            raise
        finally:
            for shard in behind:
                low[shard].close()
        return ClusterPin(newest, {**low, **pins}, self._routing, table)

    def _pin_at(self, shard: str, at: Txn | None, deadline: Deadline | None) -> RemotePin:
        return self._routing.shards.get(shard).pin(at, deadline=deadline)

    def _pin_at_each(
        self, shards: Sequence[str], at: Txn | None, deadline: Deadline, *, may_lack: bool = False
    ) -> dict[str, RemotePin]:
        """`may_lack`: not at those that have the history of no table, if others have it."""
        outcomes = self._routing.shards.ask_each(shards, lambda shard: self._pin_at(shard, at, deadline))
        if may_lack:
            having = {shard: each for shard, each in outcomes.items() if not isinstance(each, SnapshotTooOld)}
            outcomes = having or outcomes
        try:
            return all_of(outcomes)
        except StelaeError:
            for each in outcomes.values():
                if isinstance(each, RemotePin):
                    each.close()
            raise
