from __future__ import annotations

from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random
from threading import Barrier

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stelae.model.errors import AlreadyExists, Closed, InvalidArgument, NotFound
from stelae.ports.blobs import Blob, BlobInfo, BlobStore

BAD_NAMES = [
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "a/../b",
    "./a",
    ".tmp/x",
    "a/.b",
    "a b",
    "a\n",
    "a\\b",
    "a%2Fb",
    "ä",
    "x" * 201,
    "/".join(["x" * 100] * 9),
]


def put(blobs: BlobStore, name: str, data: bytes = b"") -> None:
    writer = blobs.create(name)
    writer.write(data)
    writer.commit()


def contents(blob: Blob) -> bytes:
    return bytes(memoryview(blob.read(0, blob.size_bytes)))


def get(blobs: BlobStore, name: str) -> bytes:
    blob = blobs.open(name)
    try:
        return contents(blob)
    finally:
        blob.close()


def names(blobs: BlobStore, prefix: str = "") -> list[str]:
    return [info.name for info in blobs.list(prefix)]


def test_object_is_the_bytes_written(blobs: BlobStore) -> None:
    writer = blobs.create("table/fragment-1.parquet")
    writer.write(b"one")
    writer.write(b"")
    writer.write(bytearray(b"two"))
    writer.write(memoryview(b"-three-")[1:6])
    writer.write(array("H", [0x2121]))
    writer.commit()
    blob = blobs.open("table/fragment-1.parquet")
    assert blob.name == "table/fragment-1.parquet"
    assert blob.size_bytes == 13
    assert contents(blob) == b"onetwothree!!"
    blob.close()


def test_empty_object_exists(blobs: BlobStore) -> None:
    writer = blobs.create("empty")
    writer.commit()
    assert list(blobs.list()) == [BlobInfo("empty", 0)]
    assert get(blobs, "empty") == b""


def test_invisible_until_commit(blobs: BlobStore, open_blobs: Callable[[], BlobStore]) -> None:
    other = open_blobs()
    writer = blobs.create("a/b")
    writer.write(b"bytes")
    assert names(other) == []
    with pytest.raises(NotFound):
        other.open("a/b")
    writer.commit()
    assert list(other.list()) == [BlobInfo("a/b", 5)]
    assert get(other, "a/b") == b"bytes"


def test_taken_name_is_refused_and_its_bytes_stay(blobs: BlobStore) -> None:
    put(blobs, "a/b", b"first")
    writer = blobs.create("a/b")
    writer.write(b"second")
    with pytest.raises(AlreadyExists):
        writer.commit()
    assert get(blobs, "a/b") == b"first"
    assert list(blobs.list()) == [BlobInfo("a/b", 5)]


def test_equal_bytes_do_not_make_a_second_winner(blobs: BlobStore) -> None:
    put(blobs, "lock", b"same")
    writer = blobs.create("lock")
    writer.write(b"same")
    with pytest.raises(AlreadyExists):
        writer.commit()


def test_of_concurrent_writers_exactly_one_wins(blobs: BlobStore, open_blobs: Callable[[], BlobStore]) -> None:
    writers = 8
    stores = [blobs, *(open_blobs() for _ in range(writers - 1))]
    barrier = Barrier(writers)

    def race(number: int, name: str) -> bool:
        writer = stores[number].create(name)
        writer.write(b"%d" % number)
        barrier.wait()
        try:
            writer.commit()
        except AlreadyExists:
            return False
        return True

    with ThreadPoolExecutor(writers) as pool:
        for round_number in range(5):
            name = f"round/{round_number}"
            won = list(pool.map(race, range(writers), [name] * writers))
            assert won.count(True) == 1
            assert get(blobs, name) == b"%d" % won.index(True)


def test_concurrent_writers_of_other_names_all_win(blobs: BlobStore) -> None:
    def write(number: int) -> None:
        put(blobs, f"new/{number % 3}/{number}", b"%d" % number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(24)))
    assert names(blobs) == sorted(f"new/{number % 3}/{number}" for number in range(24))


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names_are_refused_by_every_call(blobs: BlobStore, name: str) -> None:
    with pytest.raises(InvalidArgument):
        blobs.create(name)
    with pytest.raises(InvalidArgument):
        blobs.open(name)
    with pytest.raises(InvalidArgument):
        blobs.delete(name)
    assert names(blobs) == []


def test_longest_name_is_taken(blobs: BlobStore) -> None:
    name = "/".join(["x" * 200] * 4) + "/" + "y" * 95
    assert len(name) == 899
    put(blobs, name, b"1")
    assert get(blobs, name) == b"1"
    assert list(blobs.list("x")) == [BlobInfo(name, 1)]


def test_missing_object_is_not_found(blobs: BlobStore) -> None:
    put(blobs, "a/b")
    for name in ("b", "a", "a/b/c", "a/c"):
        with pytest.raises(NotFound):
            blobs.open(name)


@pytest.mark.parametrize("offset, length", [(0, 0), (0, 10), (3, 4), (9, 1), (10, 0)])
def test_ranged_read_is_exact(blobs: BlobStore, offset: int, length: int) -> None:
    put(blobs, "a", b"0123456789")
    blob = blobs.open("a")
    assert bytes(memoryview(blob.read(offset, length))) == b"0123456789"[offset : offset + length]
    blob.close()


@pytest.mark.parametrize("offset, length", [(-1, 1), (0, -1), (0, 11), (9, 2), (10, 1), (11, 0), (1 << 40, 1)])
def test_range_outside_is_refused(blobs: BlobStore, offset: int, length: int) -> None:
    put(blobs, "a", b"0123456789")
    blob = blobs.open("a")
    with pytest.raises(InvalidArgument):
        blob.read(offset, length)
    assert contents(blob) == b"0123456789"
    blob.close()


def test_threads_share_one_blob(blobs: BlobStore) -> None:
    data = Random(1).randbytes(200_000)
    put(blobs, "a", data)
    blob = blobs.open("a")

    def read(seed: int) -> bool:
        random = Random(seed)
        offset = random.randrange(len(data))
        length = random.randrange(len(data) - offset)
        return bytes(memoryview(blob.read(offset, length))) == data[offset : offset + length]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(64)))
    blob.close()


def test_closed_blob_reads_nothing_and_closes_again(blobs: BlobStore) -> None:
    put(blobs, "a", b"0123456789")
    blob = blobs.open("a")
    blob.close()
    blob.close()
    with pytest.raises(Closed):
        blob.read(0, 1)


def test_big_object_comes_back_whole(blobs: BlobStore) -> None:
    random = Random(2)
    parts = [random.randbytes(1_000_003) for _ in range(12)]
    writer = blobs.create("big")
    for part in parts:
        writer.write(part)
    writer.commit()
    data = b"".join(parts)
    blob = blobs.open("big")
    assert blob.size_bytes == len(data)
    assert bytes(memoryview(blob.read(8_388_600, 1_000_000))) == data[8_388_600:9_388_600]
    assert contents(blob) == data
    blob.close()
    again = blobs.create("big")
    for part in parts:
        again.write(part)
    with pytest.raises(AlreadyExists):
        again.commit()


def test_aborted_object_never_appears(blobs: BlobStore) -> None:
    writer = blobs.create("a")
    writer.write(b"bytes")
    writer.abort()
    assert names(blobs) == []
    with pytest.raises(NotFound):
        blobs.open("a")
    put(blobs, "a", b"other")
    assert get(blobs, "a") == b"other"


@pytest.mark.parametrize("end", ["commit", "abort", "refused"])
def test_ended_writer_raises_closed_but_aborts(blobs: BlobStore, end: str) -> None:
    writer = blobs.create("a")
    writer.write(b"bytes")
    match end:
        case "commit":
            writer.commit()
        case "abort":
            writer.abort()
        case _:
            put(blobs, "a", b"bytes")
            with pytest.raises(AlreadyExists):
                writer.commit()
    writer.abort()
    writer.abort()
    with pytest.raises(Closed):
        writer.write(b"more")
    with pytest.raises(Closed):
        writer.commit()
    assert names(blobs) == ([] if end == "abort" else ["a"])


def test_delete_frees_the_name_and_repeats(blobs: BlobStore) -> None:
    put(blobs, "a/b", b"old")
    put(blobs, "a/c", b"stays")
    blobs.delete("a/b")
    blobs.delete("a/b")
    blobs.delete("never/was")
    with pytest.raises(NotFound):
        blobs.open("a/b")
    assert names(blobs) == ["a/c"]
    put(blobs, "a/b", b"new")
    assert get(blobs, "a/b") == b"new"


def test_delete_of_a_directory_is_of_no_object(blobs: BlobStore) -> None:
    put(blobs, "a/b", b"stays")
    blobs.delete("a")
    blobs.delete("a/b/c")
    assert names(blobs) == ["a/b"]


def test_moved_object_has_its_bytes_under_the_other_name_alone(blobs: BlobStore) -> None:
    put(blobs, "a/b", b"bytes")
    put(blobs, "a/c", b"stays")
    blobs.move("a/b", "trash/b")
    assert names(blobs) == ["a/c", "trash/b"]
    assert get(blobs, "trash/b") == b"bytes"
    for missing in ("a/b", "never/was", "a"):
        with pytest.raises(NotFound):
            blobs.move(missing, "trash/other")
    for bad in (".hidden", "a/../b", ""):
        with pytest.raises(InvalidArgument):
            blobs.move("a/c", bad)
        with pytest.raises(InvalidArgument):
            blobs.move(bad, "trash/other")
    put(blobs, "a/b", b"new")
    assert get(blobs, "a/b") == b"new"
    assert names(blobs) == ["a/b", "a/c", "trash/b"]


@pytest.mark.parametrize("renewed", [False, True])
def test_open_blob_never_reads_other_bytes(blobs: BlobStore, renewed: bool) -> None:
    for number in range(8):
        name = f"a/{number}"
        put(blobs, name, b"old bytes")
        blob = blobs.open(name)
        blobs.delete(name)
        if renewed:
            put(blobs, name, b"new bytes")
        with suppress(NotFound):
            assert contents(blob) == b"old bytes"
        blob.close()


ORDER = ["0", "0a", "A", "_", "a", "a-b/c", "a.b", "a0/x", "a_b", "ab/c", "ab/d/e", "ab/d0", "ab0", "b/0", "b/00"]


def test_list_is_by_whole_name(blobs: BlobStore) -> None:
    for name in reversed(ORDER):
        put(blobs, name, name.encode())
    assert list(blobs.list()) == [BlobInfo(name, len(name)) for name in sorted(ORDER)]


PREFIXES = ["", "0", "a", "a-", "a0", "ab/", "ab/d", "ab/d/", "ab/d/e", "ab/d/e/", "ab0", "b/0", "b/"]
PREFIXES_OF_NOTHING = ["zz", "a//", "/", "..", "../", ".", "~", "-", "ä", "a b", "a\n", "a" * 2000]


def test_list_takes_any_prefix(blobs: BlobStore) -> None:
    for name in ORDER:
        put(blobs, name)
    for prefix in PREFIXES + PREFIXES_OF_NOTHING:
        assert names(blobs, prefix) == sorted(name for name in ORDER if name.startswith(prefix)), prefix


PART = st.text("-._019Aaz", min_size=1, max_size=2).filter(lambda part: not part.startswith("."))


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(PART, min_size=3, max_size=3).map("/".join), max_size=6, unique=True), st.randoms())
def test_list_agrees_with_a_plain_model(open_blobs: Callable[[], BlobStore], wanted: list[str], random: Random) -> None:
    blobs = open_blobs()
    for name in wanted:
        put(blobs, name)
    for name in wanted:
        prefix = name[: random.randrange(len(name) + 1)]
        assert names(blobs, prefix) == sorted(other for other in wanted if other.startswith(prefix))
    for name in wanted:
        blobs.delete(name)


def test_list_over_many_objects_pages(blobs: BlobStore) -> None:
    wanted = [f"many/{number:04}" for number in range(1100)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: put(blobs, name), wanted))
    assert names(blobs, "many/") == wanted
    assert names(blobs, "many/10") == [name for name in wanted if name.startswith("many/10")]


def test_list_may_be_left_early_and_objects_deleted_meanwhile(blobs: BlobStore) -> None:
    for number in range(10):
        put(blobs, f"a/{number}")
    for info in blobs.list():
        blobs.delete(info.name)
        if info.name == "a/4":
            break
    assert names(blobs) == [f"a/{number}" for number in range(5, 10)]


def test_all_below_a_directory_is_deleted_at_once(blobs: BlobStore) -> None:
    for name in ("a/b", "a/c/d", "a/c/x=1/e", "ab/c", "b"):
        put(blobs, name, b"1")
    blobs.delete_below("a")
    assert names(blobs) == ["ab/c", "b"]
    blobs.delete_below("a")
    blobs.delete_below("never")
    put(blobs, "a/c/d", b"again")
    assert get(blobs, "a/c/d") == b"again"
    with pytest.raises(InvalidArgument):
        blobs.delete_below("a/../b")
