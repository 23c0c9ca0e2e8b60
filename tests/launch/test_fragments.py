"""Stores whose fragments lie elsewhere: on S3, or in another directory. The log and the metastore stay at home."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import stelae
import stelae.aio
from stelae.client.api.database import Database
from stelae.launch.checking import check_store
from stelae.launch.fragments import fragments_url
from stelae.launch.metastores import InDirectory, open_metastore
from stelae.registry.store_mark import STORE_KEY
from stelae.storage.files.claims import CLAIM
from stelae.storage.files.trash import TRASH
from tests.s3 import BUCKET, bucket_client, names_in

# Opens a store, writes what is asked for, says so, and waits until it is told to end, or killed.
OWNER = """
import sys
import stelae
path, store, first, last = sys.argv[1], sys.argv[2] or None, int(sys.argv[3]), int(sys.argv[4])
db = stelae.open(path, store=store)
db.create_table("t", key={"id": "int64"}, groups=[stelae.columns("a", {"n": "int64"})], if_not_exists=True)
half = (first + last) // 2
db.table("t").put_many([{"id": number, "n": number} for number in range(first, half)])
db.table("t").flush()
for number in range(half, last):
    db.table("t").put({"id": number, "n": number})
print("ready", flush=True)
sys.stdin.read()
db.close()
"""


@contextmanager
def owner(path: Path, store: str, first: int, last: int) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(path), store, str(first), str(last)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def make(db: Database, rows: int = 100) -> stelae.Table:
    table = db.create_table("t", key={"id": "int64"}, groups=[stelae.columns("a", {"n": "int64"})])
    table.put_many([{"id": number, "n": number} for number in range(rows)])
    table.flush()
    return table


def numbers(db: Database) -> list[int]:
    return [row["id"] for row in db.table("t").scan()]


def local_files(path: Path) -> set[str]:
    return {file.name for file in path.rglob("*") if file.is_file()}


def test_a_store_on_s3_from_its_making_to_its_second_opening(tmp_path: Path, s3_url: str, s3_endpoint: str) -> None:
    data = tmp_path / "data"
    with stelae.open(data, store=s3_url) as db:
        table = make(db)
        table.put({"id": 7, "n": -7})
        table.erase(8)
        table.flush()
        assert table.get(7) == {"id": 7, "n": -7}
        before = names_in(s3_endpoint, s3_url)
        table.compact()
        assert (table.get(8), table.count()) == (None, 99)
    after = names_in(s3_endpoint, s3_url)
    fragments = [name for name in after if name.startswith("fragments/")]
    aside = [name for name in after if name.startswith(TRASH)]
    assert {name.split(".", 1)[1] for name in aside} == {
        name.removeprefix("fragments/").replace("/", ".") for name in before if name not in after
    }
    assert sorted({*after} - {*fragments} - {*aside}) == [CLAIM]
    assert fragments
    assert {*before} - {*after}  # what was merged is collected
    assert not any(name.endswith(".parquet") for name in local_files(data))
    with stelae.open(data) as db:
        assert (db.table("t").get(7), db.table("t").count()) == ({"id": 7, "n": -7}, 99)
        db.table("t").put({"id": 1_000, "n": 0})
    with stelae.open(data, store=f"{s3_url}/") as db:
        assert db.table("t").count() == 100


def test_an_owner_that_is_killed_loses_nothing_on_s3(tmp_path: Path, s3_url: str) -> None:
    data = tmp_path / "data"
    for number, store in enumerate((s3_url, "", "")):
        with owner(data, store, 100 * number, 100 * number + 60) as process:
            process.send_signal(signal.SIGKILL)
            process.wait()
    with stelae.open(data) as db:
        assert numbers(db) == [100 * number + at for number in range(3) for at in range(60)]
        assert db.check().problems == ()


def test_a_second_process_attaches_and_takes_over(tmp_path: Path, s3_url: str) -> None:
    data = tmp_path / "data"
    with owner(data, s3_url, 0, 50) as process:
        with pytest.raises(stelae.InvalidArgument, match="keeps its fragments in s3://"):
            stelae.open(data, store=f"{s3_url}-other")
        with pytest.raises(stelae.InvalidArgument, match="keeps its fragments in s3://"):
            stelae.open(data, store=f"{s3_url}-other", read_only=True)
        with stelae.open(data, store=s3_url) as db:
            assert numbers(db) == list(range(50))
            db.table("t").put({"id": 50, "n": 50})
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert numbers(db) == list(range(51))
            db.table("t").put({"id": 51, "n": 51})
            db.table("t").flush()
            with pytest.raises(stelae.InvalidArgument, match="keeps its fragments in s3://"):
                stelae.open(data, store=tmp_path / "other")
    with stelae.open(data, read_only=True) as db:
        assert numbers(db) == list(range(52))


def test_a_check_reads_what_lies_on_s3(tmp_path: Path, s3_url: str, s3_endpoint: str) -> None:
    data = tmp_path / "data"
    with stelae.open(data, store=s3_url) as db:
        make(db)
    assert check_store(data).problems == ()
    name = max(name for name in names_in(s3_endpoint, s3_url) if name.startswith("fragments/00000010/"))
    with closing(bucket_client(s3_endpoint)) as client:
        client.delete_object(Bucket=BUCKET, Key=f"{s3_url.removeprefix(f's3://{BUCKET}/')}/{name}")
    (problem,) = check_store(data).problems
    assert (problem.what, problem.words) == ("fragment", "is missing")
    assert name in problem.where


def test_an_event_loop_opens_it_too(tmp_path: Path, s3_url: str) -> None:
    async def count() -> int:
        async with stelae.aio.open(tmp_path / "data", store=s3_url) as db:
            await db.create_table("t", key={"id": "int64"}, groups=[stelae.columns("a", {"n": "int64"})])
            table = await db.table("t")
            await table.put({"id": 1, "n": 1})
            return await table.count()

    assert asyncio.run(count()) == 1
    assert fragments_url(tmp_path / "data") == s3_url


@pytest.mark.parametrize("how", ["path", "relative path", "url"])
def test_fragments_in_another_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "large disk"
    stores: dict[str, str | Path] = {"path": place, "relative path": "large disk", "url": place.as_uri()}
    with stelae.open("data", store=stores[how]) as db:
        make(db)
    assert not any(name.endswith(".parquet") for name in local_files(tmp_path / "data"))
    assert any(place.rglob("*.parquet"))
    monkeypatch.chdir("/")
    with stelae.open(tmp_path / "data") as db:
        assert db.table("t").count() == 100
        assert check_store(tmp_path / "data").problems == ()
    assert fragments_url(tmp_path / "data") == place.as_uri()


def test_a_relative_place_stays_where_it_was_while_a_process_moves_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with owner(tmp_path / "data", "place", 0, 10) as process, stelae.open("data", store="place") as db:
        monkeypatch.chdir("/")
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert numbers(db) == list(range(10))


def test_a_store_in_its_own_directory_may_be_moved(tmp_path: Path) -> None:
    with stelae.open(tmp_path / "data", store=tmp_path / "data") as db:
        make(db)
    shutil.move(tmp_path / "data", tmp_path / "moved")
    with stelae.open(tmp_path / "moved", store=tmp_path / "moved") as db:
        assert db.table("t").count() == 100
    with pytest.raises(stelae.InvalidArgument, match=r"keeps its fragments in that directory itself, not in .*other"):
        stelae.open(tmp_path / "moved", store=tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_the_mark_of_a_store_in_its_own_directory_is_what_it_always_was(tmp_path: Path) -> None:
    """So stores that were made before fragments could lie elsewhere are read as they were."""
    with stelae.open(tmp_path / "data") as db:
        make(db)

    async def mark() -> dict[str, object]:
        async with open_metastore(InDirectory(tmp_path / "data"), read_only=True) as metastore:
            entry = await metastore.get(STORE_KEY)
            assert entry is not None
            return dict(json.loads(entry.value))

    assert sorted(asyncio.run(mark())) == ["format", "token"]


@pytest.mark.parametrize(
    "store, error, words",
    [
        (
            "gs://bucket/a",
            stelae.InvalidArgument,
            "nothing is served under gs: here; say file:///DIR, s3://BUCKET/PREFIX",
        ),
        ("s3://no-such-bucket/a", stelae.NotFound, "s3://no-such-bucket/a: there is no bucket 'no-such-bucket'"),
        (7, stelae.InvalidArgument, "7 is no place for blobs"),
    ],
)
def test_a_place_that_cannot_be_is_refused_before_anything_is_made(
    tmp_path: Path, s3_url: str, store: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        stelae.open(tmp_path / "data", store=store)
    assert not (tmp_path / "data").exists()
    with stelae.open(tmp_path / "data", store=s3_url) as db:
        make(db)


def test_without_obstore_it_is_said_what_to_install(
    tmp_path: Path, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stelae.open(tmp_path / "data", store=s3_url) as db:
        make(db)
    monkeypatch.setitem(sys.modules, "obstore", None)
    for path, store in ((tmp_path / "data", None), (tmp_path / "new", s3_url)):
        with pytest.raises(stelae.InvalidArgument, match=r"pip install '.\[s3\]'"):
            stelae.open(path, store=store)


def test_two_stores_never_share_a_place(tmp_path: Path, s3_url: str) -> None:
    """Each would take the other's fragments for garbage."""
    with stelae.open(tmp_path / "one", store=s3_url):
        pass
    with stelae.open(tmp_path / "plain"):
        pass
    for path, store, words in (
        ("two", s3_url, "holds the fragments of another store"),
        ("two", tmp_path / "plain", "holds a store already"),
    ):
        with pytest.raises(stelae.InvalidArgument, match=words):
            stelae.open(tmp_path / path, store=store)
        assert not (tmp_path / path).exists()
    with stelae.open(tmp_path / "three", store=tmp_path / "claimed"):
        pass
    with pytest.raises(stelae.InvalidArgument, match="holds the fragments of another store"):
        stelae.open(tmp_path / "claimed")


def test_a_claim_that_a_crash_came_before_is_made_later(tmp_path: Path, s3_url: str, s3_endpoint: str) -> None:
    with stelae.open(tmp_path / "data", store=s3_url) as db:
        make(db)
    key = f"{s3_url.removeprefix(f's3://{BUCKET}/')}/{CLAIM}"
    with closing(bucket_client(s3_endpoint)) as client:
        client.delete_object(Bucket=BUCKET, Key=key)
    with stelae.open(tmp_path / "data", read_only=True):
        assert CLAIM not in names_in(s3_endpoint, s3_url)
    with stelae.open(tmp_path / "data"):
        assert CLAIM in names_in(s3_endpoint, s3_url)


def test_what_s3_does_not_take_stays_in_the_log_until_it_does(
    tmp_path: Path, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from moto.s3.responses import S3Response

    with stelae.open(tmp_path / "data", store=s3_url, timeout_s=0.1) as db:
        table = make(db)
        with monkeypatch.context() as patch:
            patch.setattr(S3Response, "put_object", lambda _: (503, {}, ""))
            table.put({"id": 1_000, "n": 1})
            with pytest.raises(stelae.Unavailable):
                table.flush()
            table.put({"id": 1_001, "n": 2})
            assert table.count() == 102
        table.flush()
        assert table.count() == 102
    with stelae.open(tmp_path / "data") as db:
        assert numbers(db) == [*range(100), 1_000, 1_001]
        assert db.check().problems == ()
