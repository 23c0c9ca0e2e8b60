"""However many files are read, only so many are open."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stelae.adapters.blobs.local import LocalBlobStore
from stelae.model.errors import NotFound, Overloaded
from stelae.ports.blobs import Blob
from stelae.storage.files.handles import Handles, OpenFiles


class Counting(LocalBlobStore):
    """Knows how many of the blobs it gave out are open."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.given: list[Blob] = []

    def open(self, name: str):  # type: ignore[no-untyped-def]
        blob = super().open(name)
        self.given.append(blob)
        return blob

    def count(self) -> int:
        return sum(not blob._closed for blob in self.given)  # type: ignore[attr-defined]


@pytest.fixture
def store(tmp_path: Path) -> Counting:
    blobs = Counting(tmp_path)
    for number in range(20):
        writer = blobs.create(f"b/{number}")
        writer.write(bytes([number]) * 100)
        writer.commit()
    return blobs


def test_only_so_many_are_open_and_all_can_be_read(store: Counting) -> None:
    handles = Handles(store, OpenFiles(3))
    blobs = [handles.blob(f"b/{number}") for number in range(20)]
    for _ in range(2):
        for number, blob in enumerate(blobs):
            assert bytes(blob.read(10, 5)) == bytes([number]) * 5
            assert blob.size_bytes == 100
            assert store.count() <= 3
    handles.close_all()
    assert store.count() == 0
    assert bytes(blobs[4].read(0, 1)) == b"\x04"
    blobs[4].close()
    assert store.count() == 0


def test_a_file_that_is_read_often_stays_open(store: Counting) -> None:
    handles = Handles(store, OpenFiles(2))
    often = handles.blob("b/0")
    for number in range(1, 20):
        handles.blob(f"b/{number}").read(0, 1)
        often.read(0, 1)
    assert sum(blob.name == "b/0" for blob in store.given) == 1
    handles.close_all()


def test_a_file_deleted_while_it_was_closed_is_not_found(store: Counting) -> None:
    handles = Handles(store, OpenFiles(1))
    blob = handles.blob("b/1")
    handles.blob("b/2")
    store.delete("b/1")
    with pytest.raises(NotFound, match="b/1"):
        blob.read(0, 1)
    handles.close_all()


def test_threads_that_push_each_other_out_all_get_their_bytes(store: Counting) -> None:
    handles = Handles(store, OpenFiles(2))

    def read(number: int) -> bool:
        return bytes(handles.blob(f"b/{number % 20}").read(0, 100)) == bytes([number % 20]) * 100

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(read, range(2_000)))
    assert store.count() <= 2
    handles.close_all()


def test_several_stores_share_equally(tmp_path: Path, store: Counting) -> None:
    files = OpenFiles(12)
    first = Handles(store, files)
    blobs = [first.blob(f"b/{number}") for number in range(20)]
    assert store.count() == 12
    second = Handles(store, files)
    assert store.count() == 6
    blobs += [second.blob(f"b/{number}") for number in range(20)]
    assert store.count() == 12
    files.allow(4)
    assert store.count() == 4
    for number, blob in enumerate(blobs):
        assert bytes(blob.read(0, 1)) == bytes([number % 20])
        assert store.count() <= 4
    second.close_all()
    for number in range(20):
        first.blob(f"b/{number}")
    assert store.count() == 4
    files.allow(0)
    assert bytes(blobs[0].read(0, 1)) == b"\0"
    assert store.count() <= 1
    first.close_all()


def test_where_others_took_all_descriptors_half_are_given_back(
    store: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles = Handles(store, OpenFiles(16))
    for number in range(16):
        handles.blob(f"b/{number}")
    plain = store.open

    def refusing(name: str) -> Blob:
        if store.count() > 8:
            raise Overloaded(f"{name}: Too many open files")
        return plain(name)

    monkeypatch.setattr(store, "open", refusing)
    assert bytes(handles.blob("b/19").read(0, 1)) == bytes([19])
    assert store.count() == 9
    handles.close_all()
