"""What is asked of all shards of a table, by a program that knew where it was before some of it was led elsewhere:
nothing of it is left out."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import msgspec
import pytest

from stelae.adapters.clock import SystemClock
from stelae.adapters.rng import SystemRng
from stelae.client.remote.changes import ChangesUnderWay
from stelae.client.remote.cluster.jobs import ClusterJobs
from stelae.client.remote.cluster.locations import Locations
from stelae.client.remote.cluster.routing import Routing, Shards
from stelae.model.errors import ConnectionLost, StelaeError, Unavailable
from stelae.model.ids import Row, TabletId, Txn
from stelae.model.ranges import ALL_ROWS, RowRange
from stelae.registry.control_operations import TableLocation
from stelae.service.deadlines import Deadline
from stelae.service.tickets import HeldTable
from stelae.storage.tablet.config import config_of, encode_config
from stelae.storage.tablet.state import new_tablet
from tests.effort import HANG_S
from tests.storage.replicas.records import SCHEMA, TABLE

MIDDLE = Row(b"m")
BEFORE = TableLocation(TABLE, ((Row(b""), "n1/0"),), ())
NOW = TableLocation(TABLE, ((Row(b""), "n1/0"), (MIDDLE, "n2/0")), ())
HALVES = {"n1/0": RowRange(Row(b""), MIDDLE), "n2/0": RowRange(MIDDLE, None)}


class Half:
    """A shard that has one half of the table, and says nothing of the other."""

    def __init__(self, name: str) -> None:
        self.rows = HALVES[name]
        self.let_go: list[str] = []

    def hold(self, table: Any, at: Txn | None, ttl_s: float, ticket: str, *, deadline: Deadline) -> HeldTable:
        config = encode_config(config_of(new_tablet(TabletId(9), TABLE, self.rows, SCHEMA), ""))
        return HeldTable(ticket, at or Txn(1), Txn(1), "t", "", b"", (config,))

    def release(self, ticket: str, *, deadline: Deadline) -> None:
        self.let_go.append(ticket)


class Pins:
    def pin(self, at: Txn | None, *_: object) -> Any:
        return msgspec.defstruct("Pin", [("txn", int)], namespace={"close": lambda _: None})(at or 7)


def _world(*answers: TableLocation | StelaeError) -> tuple[Routing, ClusterJobs]:
    left = list(answers)

    def locate(*_: object) -> TableLocation:
        answer = left.pop(0)
        if isinstance(answer, StelaeError):
            raise answer
        return answer

    def until(deadline: Deadline | None) -> Deadline:
        return deadline or Deadline(SystemClock(), HANG_S)

    shards = Shards(cast(Any, Half), cast(Any, ThreadPoolExecutor(1)))
    routing = Routing(Locations(locate), shards, cast(Any, None), ChangesUnderWay("a cluster"), until, cast(Any, None))
    routing.locations.find(TABLE, until(None))
    return routing, ClusterJobs(routing, cast(Any, None), cast(Any, Pins()), SystemRng())


def test_a_table_is_held_as_a_whole() -> None:
    _, jobs = _world(BEFORE, NOW)
    assert len(jobs.hold(TABLE).configs) == 2


def test_a_part_of_a_table_is_not_taken_for_it_if_no_master_says_where_the_rest_is() -> None:
    routing, jobs = _world(BEFORE, ConnectionLost("nobody answers"))
    with pytest.raises(Unavailable, match="do not make one table"):
        jobs.hold(TABLE, ticket="mine")
    assert cast(Any, routing.shards.get("n1/0")).let_go == ["mine"]


def test_all_shards_of_now_are_asked() -> None:
    routing, _ = _world(BEFORE, NOW)
    found = routing.ask_table_anew(TABLE, routing.until(None), lambda shard: cast(Any, shard).rows)
    assert found == HALVES
    assert found["n1/0"] != ALL_ROWS


def test_without_a_master_those_are_asked_that_are_known() -> None:
    routing, _ = _world(BEFORE, ConnectionLost("nobody answers"))
    assert routing.ask_table_anew(TABLE, routing.until(None), lambda shard: 1) == {"n1/0": 1}
