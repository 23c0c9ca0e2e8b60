"""Overlays as files: made once, whole or not at all, and gone when nobody holds them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stelae
from stelae.adapters.blobs.local import LocalBlobStore
from stelae.client.api.database import Database
from stelae.model.errors import DiskFailed, DiskFull, PermissionDenied
from stelae.service.tickets import HeldTable, overlay_directory
from stelae.spark.reading import holding
from stelae.spark.reading import overlays as module
from stelae.spark.reading.holding import Hold
from stelae.spark.reading.overlaid import OverlaysFull
from stelae.spark.reading.overlays import StoreOverlays
from stelae.spark.reading.referents import Referents
from stelae.spark.source import parts
from stelae.spark.stores import backend_of
from tests.spark.emulation import SMALL, carried_out, hold, planned

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


def never() -> Iterator[pa.RecordBatch]:
    raise AssertionError("it is there")


def test_made_once_for_all_holds(db: Database) -> None:
    backend: Any = backend_of(db)
    first, second, third = hold(db), hold(db), hold(db)
    made = StoreOverlays(first.root, first.ticket).file("key", SCHEMA, _batches)
    assert made is not None
    assert StoreOverlays(first.root, first.ticket).file("key", SCHEMA, never) == made
    again = StoreOverlays(second.root, second.ticket).file("key", SCHEMA, never)
    assert again is not None
    assert overlay_directory(second.ticket) in again[0]
    assert again[1:] == made[1:]
    # How long one hold lives is nothing to the other.
    backend.release(first.ticket)
    assert [str(path).endswith(again[0]) for path in _files(db)] == [True]
    assert pq.read_table(_files(db)[0]).column("id").to_pylist() == ["0", "1", "2"]
    backend.release(second.ticket)
    assert not _left(db)
    assert StoreOverlays(third.root, third.ticket).file("key", SCHEMA, _batches) is not None


def test_planned_by_tasks_if_it_would_be_large(db: Database) -> None:
    """About as many bytes as the rows take in files."""
    held = hold(db)
    for bytes_max, is_overlaid in ((1 << 20, True), (10, False)):
        limits = replace(SMALL, overlay_bytes_max=bytes_max)
        question, plan = planned(held, limits, overlaid=True)
        assert bool(_files(db)) == is_overlaid
        assert bool(plan.merged) != is_overlaid
        found = carried_out(question, held, plan).sort_by("id").to_pylist()
        assert found == sorted(db.table("t").scan().to_arrow().to_pylist(), key=lambda row: str(row["id"]))
        backend: Any = backend_of(db)
        backend.release(held.ticket)
        held = hold(db)


class _Elsewhere:
    """Blobs whose files have no second names."""

    def __init__(self, blobs: LocalBlobStore) -> None:
        self._blobs = blobs

    def __getattr__(self, name: str) -> Any:
        assert name != "link"
        return getattr(self._blobs, name)


def test_copied_where_files_have_no_second_names(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    backend: Any = backend_of(db)
    first, second = hold(db), hold(db)
    monkeypatch.setattr(module, "blobs_of", lambda root, writing: _Elsewhere(LocalBlobStore(str(db.path))))
    made = StoreOverlays(first.root, first.ticket).file("copied", SCHEMA, _batches)
    again = StoreOverlays(second.root, second.ticket).file("copied", SCHEMA, never)
    assert made is not None
    assert again is not None
    backend.release(first.ticket)
    assert pq.read_table(Path(str(db.path)) / again[0]).num_rows == 3
    backend.release(second.ticket)
    assert not _left(db)


def test_bounded_in_bytes(db: Database) -> None:
    held = hold(db)
    with pytest.raises(OverlaysFull):
        StoreOverlays(held.root, held.ticket, bytes_max=100).file("key", SCHEMA, _batches)
    assert not _left(db)
    made = StoreOverlays(held.root, held.ticket).file("key", SCHEMA, _batches)
    assert made is not None
    with keeping(db, held.ticket):
        # All that is kept counts; what is there already takes no more room.
        with pytest.raises(OverlaysFull):
            StoreOverlays(held.root, held.ticket, bytes_max=made[1] + 100).file("other", SCHEMA, _batches)
        assert StoreOverlays(held.root, held.ticket, bytes_max=0).file("key", SCHEMA, never) == made
    assert StoreOverlays(held.root, held.ticket, bytes_max=made[1] + 100).file("other", SCHEMA, _batches) is not None


@contextmanager
def keeping(db: Database, ticket: str) -> Iterator[None]:
    """Kept by this process, as if a frame was read."""
    kept = Hold(ticket, "a table", db, SimpleNamespace(_jsc=object()), Referents(None))
    holding._holder.keep(kept)
    yield
    kept.context._jsc = None
    holding._holder.look()


def test_row_groups_are_bounded_in_bytes(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "BATCH_BYTES", 1000)

    def wide() -> Iterator[pa.RecordBatch]:
        for number in range(10):
            yield pa.record_batch([pa.array([str(number) * 400]), pa.array([number])], schema=SCHEMA)

    _, overlays = _held(db)
    found = overlays.file("wide", SCHEMA, wide)
    assert found is not None
    written = pq.ParquetFile(Path(str(db.path)) / found[0])
    assert [written.metadata.row_group(at).num_rows for at in range(written.num_row_groups)] == [3, 3, 3, 1]


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


@pytest.mark.parametrize("error", [DiskFailed, DiskFull, PermissionDenied])
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
