"""One byte of a store is another, or a file is gone: the right answers, or Corruption and nothing changed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import stelae
from stelae.launch.checking import check_store
from tests.launch.damage import cut, files_of, flip, lose, make_store, places, verdict

PLACES = 50_000 if os.environ.get("STELAE_PROFILE") == "soak" else 5
"""How many bytes of each file are flipped, one after the other. In a soak these are all but of the metastore's log, of
which `tests/adapters/test_sqlite_damage.py` flips all."""


@pytest.fixture(scope="module", params=["closed", "killed"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param) / "data"
    make_store(path, request.param)
    return path


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("killed") / "data"
    make_store(path, "killed")
    return path


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_every_file_with_a_byte_flipped(whole: Path, tmp_path: Path) -> None:
    assert verdict(whole, tmp_path / "copy", lambda _: None) == "right"
    wrong, corrupt = [], 0
    for name, data in files_of(whole).items():
        for at in places(data, PLACES):
            said = verdict(whole, tmp_path / "copy", flip(name, at, 1 << at % 8))
            corrupt += said == "Corruption"
            if said not in ("right", "Corruption"):
                wrong.append(f"{name}, byte {at}: {said}")
    assert not wrong, "\n".join(wrong)
    assert corrupt


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lose("metastore.db-wal"), "it is at revision 1, and had come to revision"),
        (lose("metastore.db-wal", "metastore.db-shm"), "it is at revision 1, and had come to revision"),
        (cut("metastore.db-wal", 100_000), r"it is at revision \d+, and had come to revision"),
        (lose("metastore.db"), "is missing, and the log"),
        (lose("metastore.db", "metastore.mark"), "is missing, and the log"),
        (cut("metastore.db", 0), "is missing or empty, and had come to revision"),
    ],
)
def test_a_killed_store_without_the_log_of_its_metastore(
    killed: Path, tmp_path: Path, damage: Callable[[Path], None], words: str
) -> None:
    """The newest tables are in that log alone."""
    copy = tmp_path / "copy"
    assert verdict(killed, copy, damage) == "Corruption"
    with pytest.raises(stelae.Corruption, match=words):
        stelae.open(copy)
    before = files_of(copy)
    if (copy / "metastore.db").exists():
        (problem,) = check_store(copy).problems
        assert problem.what == "store"
    assert files_of(copy) == before


def test_the_last_write_of_a_killed_store_is_no_torn_end_if_it_is_damaged(killed: Path, tmp_path: Path) -> None:
    """It was synced and acknowledged, though nothing was written behind it that says so: the mark does."""
    (log,) = (killed / "log").iterdir()
    end = len(log.read_bytes().rstrip(b"\0"))
    copy = tmp_path / "copy"
    assert verdict(killed, copy, flip(f"log/{log.name}", end - 3)) == "Corruption"
    with pytest.raises(stelae.Corruption, match="rows that were acknowledged are lost"):
        stelae.open(copy)
    (copy / "log.mark").unlink()  # whoever can do without them says so by this
    with stelae.open(copy) as db:
        assert db.table("old").get(5001) is None
        assert db.table("old").get(5000) is not None


def test_an_older_metastore_in_the_place_of_the_newest(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with stelae.open(path) as db:
        db.create_table("old", key={"id": "int64"}, groups=[stelae.columns("g", {"v": "int64"})]).put({"id": 1, "v": 1})
    older = (path / "metastore.db").read_bytes()
    with stelae.open(path) as db:
        table = db.create_table("new", key={"id": "int64"}, groups=[stelae.columns("g", {"v": "int64"})])
        table.put({"id": 1, "v": 1})
        table.flush()
    newest = (path / "metastore.db").read_bytes()
    (path / "metastore.db").write_bytes(older)
    fragments = sorted(path.rglob("*.parquet"))
    with pytest.raises(stelae.Corruption, match="an older file was put in its place"):
        stelae.open(path)
    (path / "metastore.mark").unlink()
    with pytest.raises(stelae.Corruption, match=r"of which it knows nothing|was closed at byte|no config"):
        stelae.open(path)
    assert sorted(path.rglob("*.parquet")) == fragments
    (path / "metastore.db").write_bytes(newest)
    with stelae.open(path) as db:
        assert list(db.tables()) == ["new", "old"]
        assert db.check().problems == ()


def test_data_that_has_lost_its_metastore_and_all_marks_is_not_taken_for_a_new_store(
    whole: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    for lost in (["log"], ["fragments"], []):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(whole, copy)
        for name in [file.name for file in copy.iterdir() if file.is_file()]:
            (copy / name).unlink()
        for name in lost:
            shutil.rmtree(copy / name)
        before = sorted(copy.rglob("*"))
        for create in (True, False):
            with pytest.raises(stelae.Corruption, match=r"metastore.db.*is missing, and the (log|fragment) "):
                stelae.open(copy, create=create)
        with pytest.raises(stelae.Corruption, match="is missing, and the"):
            stelae.open(copy, read_only=True)
        (problem,) = check_store(copy).problems
        assert problem.what == "store"
        assert sorted(copy.rglob("*")) == before


def test_every_file_gone(whole: Path, tmp_path: Path) -> None:
    wrong = []
    for name in files_of(whole):
        said = verdict(whole, tmp_path / "copy", lose(name))
        if said not in ("right", "Corruption"):
            wrong.append(f"{name}: {said}")
        assert (said == "right") == name.endswith(".mark"), f"{name}: {said}"
    assert not wrong, "\n".join(wrong)


def test_the_oldest_segment_of_the_log_is_missed(tmp_path: Path) -> None:
    """Its rows are in no file, and nothing else speaks of them: the next segment may well be the first."""
    path = tmp_path / "data"
    with stelae.open(path) as db:
        table = db.create_table("t", key={"id": "int64"}, groups=[stelae.columns("g", {"v": "int64"})])
        table.put({"id": 1, "v": 1})
        table.flush()
        server = db._session.backend.server  # type: ignore[attr-defined]
        server.flushing.flush_down_to(0)
        server.upkeep.collect_log()
        for key in (2, 3):
            table.put({"id": key, "v": key})
            server.shard.wal.roll()
        shutil.copytree(path, tmp_path / "copy", ignore=shutil.ignore_patterns("socket*"))
    copy = tmp_path / "copy"
    (oldest, *others) = sorted((copy / "log").iterdir())
    assert others
    oldest.rename(tmp_path / oldest.name)
    before = files_of(copy)
    with pytest.raises(stelae.Corruption, match=f"{oldest.name}: is missing, and was needed"):
        stelae.open(copy)
    assert {**files_of(copy), "metastore.db": b"", "metastore.db-wal": b"", "metastore.mark": b""} == {
        **before,
        "metastore.db": b"",
        "metastore.db-wal": b"",
        "metastore.mark": b"",
    }
    (tmp_path / oldest.name).rename(oldest)
    with stelae.open(copy) as db:
        assert db.table("t").count() == 3
