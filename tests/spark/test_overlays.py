"""Overlays as files: made once, whole or not at all, and gone when nobody holds them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stelae
from stelae.adapters.blobs.local import LocalBlobStore
from stelae.client.api.database import Database
from stelae.model.errors import DiskFailed, DiskFull, PermissionDenied
from stelae.service.tickets import HeldTable, overlay_directory
from stelae.spark.reading import overlays as module
from stelae.spark.reading.overlays import StoreOverlays
from stelae.spark.stores import backend_of
from tests.spark.emulation import hold, planned

SCHEMA = pa.schema([("id", pa.string()), ("n", pa.int64())])


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with stelae.open(tmp_path / "db") as opened:
        table = opened.create_table("t", key={"id": "string"}, groups=[stelae.columns("g", {"n": "int64"})])
        table.put_many([{"id": str(number), "n": number} for number in range(100)])
        table.flush()
        table.erase("7")
        table.put({"id": "8", "n": None})
        yield opened


def _files(db: Database) -> list[Path]:
    return [path for path in (Path(str(db.path)) / "overlays").rglob("*") if path.is_file()]


def _left(db: Database) -> list[Path]:
    """Anything of overlays that is there, and what dead writers left."""
    root = Path(str(db.path))
    return [*(root / "overlays").glob("*"), *(path for path in (root / ".tmp").glob("*"))]


def _batches(count: int = 3) -> Iterator[pa.RecordBatch]:
    for number in range(count):
        yield pa.record_batch([pa.array([str(number)]), pa.array([number])], schema=SCHEMA)


def test_released_with_the_hold(db: Database) -> None:
    held = hold(db)
    planned(held, overlaid=True)
    (file,) = _files(db)
    assert pq.read_table(file).column("id").to_pylist() == ["8"]
    backend: Any = backend_of(db)
    backend.release(held.ticket)
    assert not _left(db)


def test_what_is_erased_leaves_no_file(db: Database) -> None:
    held = hold(db)
    assert StoreOverlays(held.root, held.ticket).file("k", SCHEMA, lambda: iter(())) is None
    assert not _files(db)


def test_made_once_while_the_hold_lasts(db: Database) -> None:
    held, other = hold(db), hold(db)
    made = StoreOverlays(held.root, held.ticket).file("key", SCHEMA, _batches)
    assert made is not None

    def never() -> Iterator[pa.RecordBatch]:
        raise AssertionError("it is there")

    assert StoreOverlays(held.root, held.ticket).file("key", SCHEMA, never) == made
    # Nobody in this process renews the first hold: another one makes its own.
    again = StoreOverlays(other.root, other.ticket).file("key", SCHEMA, _batches)
    assert again is not None
    assert again[0] != made[0]
    assert again[1:] == made[1:]


def _held(db: Database) -> tuple[HeldTable, StoreOverlays]:
    held = hold(db)
    return held, StoreOverlays(held.root, held.ticket)


class _Full(LocalBlobStore):
    """Which has no room."""

    def create(self, name: str) -> Any:
        writer = super().create(name)

        def write(data: object) -> None:
            writer.abort()
            raise DiskFull(f"{name}: no room")

        writer.write = write  # type: ignore[method-assign]
        return writer


def test_a_full_disk_is_told_and_leaves_nothing(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    held, overlays = _held(db)
    with monkeypatch.context() as patch:
        patch.setattr(module, "blobs_of", lambda root, writing: _Full(str(db.path)))
        with pytest.raises(DiskFull, match="make room, or compact the table"):
            overlays.file("key", SCHEMA, _batches)
    assert not _left(db)
    assert overlays.file("key", SCHEMA, _batches) is not None
    assert len(_files(db)) == 1
    assert overlay_directory(held.ticket) in str(_files(db)[0])


def test_an_interrupt_leaves_nothing(db: Database) -> None:
    _, overlays = _held(db)

    def interrupted() -> Iterator[pa.RecordBatch]:
        yield from _batches(1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        overlays.file("key", SCHEMA, interrupted)
    assert not _left(db)
    assert overlays.file("key", SCHEMA, _batches) is not None


@pytest.mark.parametrize("error", [DiskFailed, PermissionDenied])
def test_where_files_have_no_second_names(
    db: Database, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    _, overlays = _held(db)
    name = next(iter(LocalBlobStore(str(db.path), read_only=True).list("fragments/"))).name
    linked = overlays.link({name: 5}, "_start")
    assert linked is not None
    assert (Path(str(db.path)) / linked[name]).samefile(Path(str(db.path)) / name)
    assert "/_start=5/" in linked[name]
    assert overlays.link({name: 5}, "_start") == linked

    def refuse(self: LocalBlobStore, name: str, to: str) -> None:
        raise error("no links here")

    monkeypatch.setattr(LocalBlobStore, "link", refuse)
    assert overlays.link({name: 6}, "_start") is None
