"""Files that were put aside: how long they stay, and how much of them."""

from __future__ import annotations

import pytest

from stelae.model.errors import DiskFailed, NotFound, Unavailable
from stelae.model.ids import TableId, Txn
from stelae.sim.blobs import SimBlobStore
from stelae.sim.rng import SimRng
from stelae.storage.files.names import file_name
from stelae.storage.files.trash import TRASH, Trash, name_in_trash

KEPT_MS = 1000


class World:
    def __init__(self) -> None:
        self.blobs = SimBlobStore(SimRng(1))
        self.now_ms = 5_000
        self.trash = self.open()

    def open(self) -> Trash:
        return Trash(self.blobs, lambda: self.now_ms, KEPT_MS)

    def put_aside(self, number: int, data: bytes) -> str:
        """A new file; the name it has in the trash."""
        name = file_name(TableId(16), Txn(number), f"{number:012x}")
        writer = self.blobs.create(name)
        writer.write(data)
        writer.commit()
        self.trash.put(name, len(data))
        return name_in_trash(name, self.now_ms)

    def names(self) -> list[str]:
        return [info.name for info in self.blobs.list()]


def test_a_file_is_put_aside_as_it_is_and_goes_when_its_time_is_over() -> None:
    world = World()
    first = world.put_aside(1, b"bytes")
    assert first == "trash/000000001388.00000010.0000000000000001-000000000001.parquet"
    assert world.names() == [first]
    assert world.blobs.open(first).read(0, 5) == b"bytes"
    world.now_ms += KEPT_MS // 2
    second = world.put_aside(2, b"more")
    assert world.trash.tidy(100) == 0
    world.now_ms += KEPT_MS // 2
    assert world.trash.tidy(100) == 5
    assert world.names() == [second]


def test_the_oldest_go_when_there_is_too_much() -> None:
    world = World()
    for number in range(4):
        world.now_ms += 1
        world.put_aside(number + 1, b"0123456789")
    assert world.trash.tidy(25) == 20
    assert world.trash.tidy(25) == 0
    assert [name.split(".")[0] for name in world.names()] == ["trash/00000000138b", "trash/00000000138c"]
    assert world.trash.tidy(0) == 20
    assert world.names() == []


def test_what_an_earlier_process_put_aside_is_found_and_others_files_are_left() -> None:
    world = World()
    world.put_aside(1, b"bytes")
    writer = world.blobs.create(f"{TRASH}mine.parquet")
    writer.commit()
    world.now_ms += KEPT_MS
    assert world.open().tidy(100) == 5
    assert world.names() == [f"{TRASH}mine.parquet"]


def test_all_of_it_goes_at_once_if_room_is_needed() -> None:
    world = World()
    world.put_aside(1, b"bytes")
    world.put_aside(2, b"bytes")
    assert world.trash.empty() == 10
    assert world.names() == []
    assert world.trash.empty() == 0


@pytest.mark.parametrize("error", [DiskFailed, Unavailable])
def test_what_could_not_be_moved_or_deleted_is_tried_again(error: type[Unavailable]) -> None:
    world = World()
    name = file_name(TableId(16), Txn(1), "a" * 12)
    world.blobs.create(name).commit()
    world.blobs.fail("delete", error)
    with pytest.raises(error):
        world.trash.put(name, 1)
    if name in world.names():
        world.trash.put(name, 1)
    with pytest.raises(NotFound):
        world.trash.put(name, 1)
    world.blobs.fail("delete", error)
    with pytest.raises(error):
        world.open().empty()
    world.open().empty()
    assert world.names() == []
