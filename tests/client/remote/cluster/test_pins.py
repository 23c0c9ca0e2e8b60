"""Snapshots of a table that are held at the shards that have its rows, also if these hand them over to others."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from stelae.adapters.clock import SystemClock
from stelae.client.remote.cluster.locations import Locations
from stelae.client.remote.cluster.pins import ClusterPin
from stelae.client.remote.takeover import KeptPin
from stelae.model.errors import ConnectionLost
from stelae.model.ids import TableId, Txn
from stelae.service.deadlines import Deadline
from tests.client.remote.cluster.test_locations import NEW, OLD, TABLE, Master
from tests.effort import HANG_S


class Held:
    """A pin at a shard, whose connection lives."""

    def __init__(self, shard: str, held: list[str]) -> None:
        self.is_held = True
        self.txn = Txn(7)
        held.append(shard)

    def close(self) -> None:
        return None


class Program:
    def __init__(self, master: Master) -> None:
        self.until = Deadline(SystemClock(), HANG_S)
        self.held: list[str] = []
        self.locations = Locations(master)
        self.locations.find(TABLE, self.until)
        routing: Any = SimpleNamespace(
            locations=self.locations,
            until=lambda deadline: deadline or self.until,
            find_shards=lambda table, until: self.locations.find(table, until).shards,
            doubting=lambda _: nullcontext(),
            shards=SimpleNamespace(get=lambda name: SimpleNamespace(pin=lambda *_, **__: Held(name, self.held))),
        )
        pins: Any = {"n1/0": Held("n1/0", self.held)}
        self.pin = KeptPin(ClusterPin(Txn(7), pins, routing, TABLE))

    def watch(self, looked: set[TableId]) -> None:
        """As a program does now and then that holds a snapshot."""
        self.pin.look_again(looked, None)
        if not self.pin.is_held:
            store: Any = None
            self.pin.pin_again(store, None)


def test_a_snapshot_that_nobody_reads_is_held_where_the_rows_are_handed_over_to() -> None:
    """The shard that has led the tablet lives, and its connections do."""
    program = Program(Master(OLD, OLD, NEW))
    program.watch(set())
    assert program.held == ["n1/0"]
    program.watch(set())
    assert program.held == ["n1/0", "n1/1"]
    assert program.pin.is_held


def test_of_a_table_with_many_snapshots_it_is_asked_once_where_the_rows_are() -> None:
    master = Master(OLD, OLD)
    program, looked = Program(master), set[TableId]()
    program.watch(looked)
    program.watch(looked)
    assert not master.answers


def test_what_is_known_stays_while_no_master_answers() -> None:
    program = Program(Master(OLD, ConnectionLost("nobody is there")))
    known = program.locations.known(TABLE)
    program.watch(set())
    assert program.locations.known(TABLE) is known
    assert program.pin.is_held
