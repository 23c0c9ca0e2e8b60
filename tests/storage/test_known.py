"""Files that are read again: their footers are not, and what is read of them is the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from stelae.model.declare import columns, declare
from stelae.model.errors import Corruption
from stelae.model.ids import Row, TabletId, Txn
from stelae.model.mutation import Put
from stelae.model.predicate.selectors import ALL_COLUMNS
from stelae.model.ranges import EVERYTHING
from stelae.storage.files.handles import MissingFile
from stelae.storage.offline.known import KnownFiles, KnownFragments
from stelae.storage.offline.scans import scan_part
from stelae.storage.offline.tablets import HeldTablet
from tests.storage.engine import Engine

SCHEMA = declare({"k": "string"}, [columns("g", {"v": "int64"})])
(V,) = SCHEMA.groups[0].columns  # type: ignore[union-attr]
TABLET = TabletId(1)
ROWS = 40


@pytest.fixture
def engine() -> Engine:
    """A file of some rows, and one of every third of them."""
    made = Engine(SCHEMA)
    for step in (1, 3):
        made.write([Put(Row(f"{number:03}".encode()), ((V.id, number * step),)) for number in range(0, ROWS, step)])
        made.flush(TABLET)
    return made


class Counted:
    """The store, and how often each file was opened."""

    def __init__(self, engine: Engine) -> None:
        self._blobs = engine.blobs
        self.opened: Counter[str] = Counter()

    def open(self, name: str) -> Any:
        self.opened[name] += 1
        return self._blobs.open(name)


def _held(engine: Engine) -> HeldTablet:
    engine.upkeep.save()
    return HeldTablet.decode(engine.configs.saved[TABLET], SCHEMA, "a ticket")


def _shown(known: KnownFiles, blobs: Any, tablet: HeldTablet, root: str = "a") -> dict[str, int]:
    txn = Txn(max(file.txn_max for file in tablet.files().values()))
    with closing(KnownFragments(known, root, blobs)) as fragments:
        batches = scan_part(tablet, fragments, EVERYTHING, ALL_COLUMNS, txn)
        return {each["k"]: each["v"] for batch in batches for each in batch.batch.to_pylist()}


def _footers(known: KnownFiles, blobs: Any, tablet: HeldTablet) -> Iterator[int]:
    with closing(KnownFragments(known, "a", blobs)) as fragments:
        for file in tablet.files().values():
            yield fragments.of(file).reader.block_count


def test_what_is_known_is_not_opened_until_a_block_is_read(engine: Engine) -> None:
    known, blobs, tablet = KnownFiles(), Counted(engine), _held(engine)
    first = list(_footers(known, blobs, tablet))
    assert blobs.opened.total() == len(tablet.files()) == 2
    assert list(_footers(known, blobs, tablet)) == first
    assert blobs.opened.total() == 2
    shown = {f"{number:03}": number * (1 if number % 3 else 3) for number in range(ROWS)}
    assert _shown(known, blobs, tablet) == _shown(known, blobs, tablet) == shown
    assert blobs.opened.total() == 6


def test_another_store_may_have_a_file_of_that_name(engine: Engine) -> None:
    """Or the same place another file."""
    known, tablet = KnownFiles(), _held(engine)
    _shown(known, engine.blobs, tablet)
    (name, file), _ = sorted(tablet.files().items())
    assert known.find("a", file) is not None
    assert known.find("b", file) is None
    other = Engine(SCHEMA)
    other.write([Put(Row(b"x"), ((V.id, 1),))])
    other.flush(TABLET)
    (strange,) = _held(other).renamed(dict.fromkeys(_held(other).files(), name)).files().values()
    assert strange.name == name
    assert known.find("a", strange) is None


def test_blocks_are_checked_as_ever(engine: Engine) -> None:
    """A file that was damaged, or is gone, since it was looked at."""
    known, tablet = KnownFiles(), _held(engine)
    list(_footers(known, engine.blobs, tablet))
    name = next(iter(tablet.files()))
    with closing(engine.blobs.open(name)) as blob:
        data = bytearray(blob.read(0, blob.size_bytes))
    data[8] ^= 1
    engine.blobs.delete(name)
    with pytest.raises(MissingFile):
        _shown(known, engine.blobs, tablet)
    writer = engine.blobs.create(name)
    writer.write(bytes(data))
    writer.commit()
    with pytest.raises(Corruption):
        _shown(known, engine.blobs, tablet)


def test_no_more_is_kept_than_there_is_room_for(engine: Engine) -> None:
    tablet = _held(engine)
    one, two = tablet.files().values()
    room = KnownFiles(bytes_max=1)
    _shown(room, engine.blobs, tablet)
    kept = [each for each in (one, two) if room.find("a", each) is not None]
    assert len(kept) == 1
    assert room.size_bytes == kept[0].seal.size_bytes - kept[0].seal.footer_start
