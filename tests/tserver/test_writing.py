"""Large writes into a small store, on a real directory."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from stelae.adapters.ownership import Ownership
from stelae.assembly.world import StoreSettings
from stelae.client.intake.mutations import blocks_of, key_of
from stelae.launch.local import LocalStore, shard_settings
from stelae.model.declare import columns, declare
from stelae.model.errors import DiskFull, Overloaded, PartialWrite, StelaeError, TabletAway, UnknownOutcome
from stelae.model.ids import Row, TabletId, Txn
from stelae.model.predicate.selectors import ALL_COLUMNS
from stelae.model.ranges import RowRange
from stelae.service.tables import CreateAsk
from stelae.storage.shard import Commit
from stelae.storage.tablet.state import new_tablet
from stelae.tserver.writing import TableWriter
from tests.storage import engine as world

SCHEMA = declare({"id": "int64"}, [columns("data", {"text": "string"})])


def test_one_write_of_more_than_memory_goes_through(tmp_path: Path) -> None:
    """It fills the memory by itself: the store says how far it came, and has room for the rest after a while."""
    ownership = Ownership.take(tmp_path, "")
    assert ownership is not None
    store = LocalStore(tmp_path, ownership, replace(StoreSettings(), shard=shard_settings(16 * 2**20)))
    info = store.create(CreateAsk("t", SCHEMA))
    count = 24
    text = "x" * 2**20
    frame = pa.table({"id": pa.array(range(count), pa.int64()), "text": [f"{number}{text}" for number in range(count)]})
    blocks, refused = blocks_of(info.schema, frame, block_rows_max=1), 0
    while blocks:
        try:
            store.write(info.id, blocks)
            break
        except PartialWrite as error:
            assert isinstance(error.__cause__, Overloaded)
            blocks = blocks[error.durable :]
        except Overloaded:
            refused += 1
        store.wait_for_room(60.0)
    assert refused or len(blocks) < count, "it never met a full memory"
    _, found = store.newest_many(info.id, [key_of(SCHEMA, number) for number in range(count)], ALL_COLUMNS)
    assert [values and str(values["text"])[:3].rstrip("x") for values in found] == [str(n) for n in range(count)]
    store.close()


@pytest.mark.parametrize(
    ("decided", "refusal", "told", "durable"),
    [
        ([None, None], None, None, 0),
        ([None, DiskFull("full")], None, PartialWrite, 3),
        ([DiskFull("full"), None], None, UnknownOutcome, 0),
        ([DiskFull("full"), DiskFull("full")], None, DiskFull, 0),
        ([None, None], Overloaded("no room"), PartialWrite, 8),
        ([UnknownOutcome("deposed"), None], Overloaded("no room"), UnknownOutcome, 0),
        ([UnknownOutcome("deposed")], Overloaded("no room"), UnknownOutcome, 0),
    ],
    ids=str,
)
def test_what_is_told_of_parts_is_true_of_a_beginning(
    decided: list[StelaeError | None], refusal: StelaeError | None, told: type[StelaeError] | None, durable: int
) -> None:
    """Parts of 3 and 5 rows. What was done before, by another try, may be durable behind what has failed."""
    commits: list[tuple[int, Commit]] = []
    for count, failure in zip((3, 5), decided, strict=False):
        future: Future[Txn] = Future()
        if failure is None:
            future.set_result(Txn(7 + count))
        else:
            future.set_exception(failure)
        commits.append((count, Commit(Txn(7 + count), future)))
    shard: Any = SimpleNamespace(visible=Txn(0))
    writer = TableWriter(shard, lambda _: (), lambda *_: None)
    if told is None:
        assert writer._outcome(commits, refusal, None) == 12
        return
    with pytest.raises(told) as raised:
        writer._outcome(commits, refusal, None)
    assert type(raised.value) is told
    assert getattr(raised.value, "durable", 0) == durable
    if isinstance(raised.value, PartialWrite):
        assert raised.value.why == str(raised.value.__cause__)


@pytest.mark.parametrize(("first", "durable"), [(1, 4), (5, 0)])
def test_of_rows_that_another_server_has_by_now_those_before_are_written_and_the_rest_is_refused(
    first: int, durable: int
) -> None:
    """Whoever sent them knows where the tablets were: this server has the first alone, and once had the next."""
    engine = world.Engine(SCHEMA)
    shard, until = engine.shard, key_of(SCHEMA, 5)
    with shard.lock:
        shard.install([new_tablet(TabletId(2), world.TABLE, RowRange(Row(b""), until), SCHEMA)], [TabletId(1)])
    writer = TableWriter(shard, lambda _: [SCHEMA], lambda *_: None)
    numbers = range(first, 10)
    frame = pa.table({"id": pa.array(numbers, pa.int64()), "text": [str(each) for each in numbers]})
    commits, error = writer._let_in(world.TABLE, blocks_of(SCHEMA, frame))
    assert sum(count for count, _ in commits) == durable
    assert isinstance(error, TabletAway)
