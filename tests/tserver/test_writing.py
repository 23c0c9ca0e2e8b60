"""Large writes into a small store, on a real directory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from stelae.adapters.ownership import Ownership
from stelae.assembly.world import StoreSettings
from stelae.client.intake.mutations import blocks_of, key_of
from stelae.launch.local import LocalStore, shard_settings
from stelae.model.declare import columns, declare
from stelae.model.errors import Overloaded, PartialWrite
from stelae.model.predicate.selectors import ALL_COLUMNS
from stelae.service.tables import CreateAsk

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
