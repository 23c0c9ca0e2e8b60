"""What compactions have dropped, a tablet's state and config say: whoever opens it refuses older snapshots, though it
knows of no horizon."""

from __future__ import annotations

import pytest

from stelae.model.declare import columns, declare
from stelae.model.errors import Conflict, SnapshotTooOld
from stelae.model.hybrid import TXN_MIN
from stelae.model.ids import Row, TabletId, Txn
from stelae.model.mutation import Erase, Put, WholeRow
from stelae.storage.tablet.changes import Emptied
from stelae.storage.tablet.state import joined, split
from tests.storage import engine as world

SCHEMA = declare({"id": "binary"}, [columns("data", {"a": "int32"})])
COLUMN = SCHEMA.groups[0].columns[0].id  # type: ignore[union-attr]
FIRST = TabletId(1)


def put(engine: world.Engine, row: bytes, value: int) -> Txn:
    ((txn, _),) = engine.write([Put(Row(row), ((COLUMN, value),))])
    return txn


@pytest.fixture
def engine() -> world.Engine:
    return world.Engine(SCHEMA)


def compact(engine: world.Engine) -> None:
    for state in engine.tablets():
        engine.flush(state.tablet)
        engine.upkeep.drop_hidden(state.tablet)
        engine.compact_all(state.tablet)


def forget_horizons(engine: world.Engine) -> None:
    """Opened by somebody who has the configs, the files and the log, and nothing else."""
    engine.upkeep.save()
    engine.horizon = TXN_MIN
    engine.restart("kill")
    assert engine.shard.horizon(world.TABLE) == TXN_MIN


def purged_of(engine: world.Engine) -> list[Txn]:
    return [state.purged_below for state in engine.tablets()]


def test_a_compaction_that_may_drop_says_up_to_where(engine: world.Engine) -> None:
    old = put(engine, b"r", 1)
    new = put(engine, b"r", 2)
    compact(engine)
    assert purged_of(engine) == [TXN_MIN]
    engine.advance_horizon(new)
    put(engine, b"s", 3)
    compact(engine)
    (below,) = purged_of(engine)
    assert old < below <= new
    forget_horizons(engine)
    assert purged_of(engine) == [below]
    assert engine.shard.visible >= below
    (state,) = engine.tablets()
    engine.shard.check_readable(state, new)
    with pytest.raises(SnapshotTooOld):
        engine.shard.check_readable(state, old)
    with pytest.raises(SnapshotTooOld):
        engine.scan(at=old)
    with pytest.raises(Conflict):
        engine.apply(FIRST, [Put(Row(b"r"), ((COLUMN, 4),))], max_txn=old)


def test_what_is_hidden_by_a_truncation_and_gone_is_not_read(engine: world.Engine) -> None:
    old = put(engine, b"r", 1)
    compact(engine)
    floor = engine.change(Emptied())
    engine.advance_horizon(floor)
    engine.upkeep.drop_hidden(FIRST)
    assert purged_of(engine) == [floor]
    forget_horizons(engine)
    with pytest.raises(SnapshotTooOld):
        engine.scan(at=old)


def test_both_sides_of_a_split_know_and_a_join_knows_the_most(engine: world.Engine) -> None:
    put(engine, b"b", 1)
    put(engine, b"n", 1)
    engine.write([Erase(Row(b"b"), WholeRow())])
    engine.advance_horizon(put(engine, b"n", 2))
    compact(engine)
    (below,) = purged_of(engine)
    assert below > TXN_MIN
    engine.split(FIRST, Row(b"m"))
    assert purged_of(engine) == [below, below]
    put(engine, b"n", 3)
    engine.advance_horizon(put(engine, b"n", 4))
    left, right = engine.tablets()
    engine.flush(right.tablet)
    engine.compact_all(right.tablet)
    left, right = engine.tablets()
    assert left.purged_below == below < right.purged_below
    assert joined(left, right, TabletId(9), 3).purged_below == right.purged_below
    assert joined(*split(right, Row(b"p"), TabletId(7), TabletId(8), 2), TabletId(9), 3).purged_below > below
