from __future__ import annotations

from array import array

import pytest

from stelae.model.errors import AlreadyExists, Closed, InvalidArgument, NotFound
from stelae.ports.logfiles import LogFileInfo, LogFiles

BAD_NAMES = ["", ".", "..", ".hidden", "a/b", "/a", "a b", "a\n", "a\0", "ä", "x" * 201]


def write(logfiles: LogFiles, name: str, data: bytes) -> None:
    file = logfiles.create(name)
    file.append(data)
    file.sync()
    file.close()


def test_appended_bytes_are_read_back_in_order(logfiles: LogFiles) -> None:
    file = logfiles.create("log-1")
    assert file.name == "log-1"
    assert file.size_bytes == 0
    assert file.append(b"one") == 0
    assert file.append(b"") == 3
    assert file.append(bytearray(b"two")) == 3
    assert file.append(memoryview(b"-three-")[1:6]) == 6
    assert file.size_bytes == 11
    assert logfiles.read("log-1") == b"onetwothree"
    file.sync()
    file.append(b"!")
    file.sync()
    file.close()
    assert logfiles.read("log-1") == b"onetwothree!"


def test_any_buffer_counts_in_bytes(logfiles: LogFiles) -> None:
    file = logfiles.create("log")
    words = array("I", [1, 2, 3])
    assert file.append(words) == 0
    assert file.size_bytes == 3 * words.itemsize
    file.close()
    assert logfiles.read("log") == words.tobytes()


def test_large_append_is_whole(logfiles: LogFiles) -> None:
    data = bytes(range(256)) * 20_000
    write(logfiles, "log", data)
    assert logfiles.read("log") == data


@pytest.mark.parametrize(
    "offset, length, expected",
    [
        (0, None, b"0123456789"),
        (3, None, b"3456789"),
        (3, 4, b"3456"),
        (8, 100, b"89"),
        (10, None, b""),
        (11, 5, b""),
        (1_000_000, None, b""),
        (0, 0, b""),
    ],
)
def test_ranged_read_gives_what_there_is(logfiles: LogFiles, offset: int, length: int | None, expected: bytes) -> None:
    write(logfiles, "log", b"0123456789")
    assert logfiles.read("log", offset, length) == expected


@pytest.mark.parametrize("offset, length", [(-1, None), (-1, 5), (0, -1)])
def test_negative_range_is_refused(logfiles: LogFiles, offset: int, length: int | None) -> None:
    write(logfiles, "log", b"0123456789")
    with pytest.raises(InvalidArgument):
        logfiles.read("log", offset, length)


def test_the_synced_place_is_remembered_or_nothing_is_said(logfiles: LogFiles) -> None:
    name = f"{7:016x}.log"
    file = logfiles.create(name)
    file.append(b"one")
    file.sync()
    file.append(b"two")
    assert logfiles.synced() in (None, LogFileInfo(name, 3))
    file.close()


def test_taken_name_is_refused_and_its_bytes_stay(logfiles: LogFiles) -> None:
    write(logfiles, "log", b"first")
    with pytest.raises(AlreadyExists):
        logfiles.create("log")
    assert logfiles.read("log") == b"first"


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names_are_refused_by_every_call(logfiles: LogFiles, name: str) -> None:
    with pytest.raises(InvalidArgument):
        logfiles.create(name)
    with pytest.raises(InvalidArgument):
        logfiles.read(name)
    with pytest.raises(InvalidArgument):
        logfiles.truncate(name, 0)
    with pytest.raises(InvalidArgument):
        logfiles.delete(name)
    assert logfiles.list() == []


def test_longest_name_is_taken(logfiles: LogFiles) -> None:
    name = "x" * 200
    write(logfiles, name, b"1")
    assert logfiles.list() == [LogFileInfo(name, 1)]


def test_missing_file_is_not_found(logfiles: LogFiles) -> None:
    with pytest.raises(NotFound):
        logfiles.read("log")
    with pytest.raises(NotFound):
        logfiles.truncate("log", 0)


def test_list_is_by_name_with_sizes_also_of_open_files(logfiles: LogFiles) -> None:
    assert logfiles.list() == []
    write(logfiles, "b", b"22")
    write(logfiles, "a.10", b"1")
    write(logfiles, "B", b"")
    file = logfiles.create("a-2")
    file.append(b"333")
    assert logfiles.list() == [LogFileInfo("B", 0), LogFileInfo("a-2", 3), LogFileInfo("a.10", 1), LogFileInfo("b", 2)]
    file.close()


@pytest.mark.parametrize("size_bytes", [0, 4, 10])
def test_truncate_keeps_the_beginning(logfiles: LogFiles, size_bytes: int) -> None:
    write(logfiles, "log", b"0123456789")
    logfiles.truncate("log", size_bytes)
    assert logfiles.read("log") == b"0123456789"[:size_bytes]
    assert logfiles.list() == [LogFileInfo("log", size_bytes)]


@pytest.mark.parametrize("size_bytes", [-1, 11])
def test_truncate_never_lengthens(logfiles: LogFiles, size_bytes: int) -> None:
    write(logfiles, "log", b"0123456789")
    with pytest.raises(InvalidArgument):
        logfiles.truncate("log", size_bytes)
    assert logfiles.read("log") == b"0123456789"


def test_delete_frees_the_name_and_repeats(logfiles: LogFiles) -> None:
    write(logfiles, "log", b"old")
    write(logfiles, "other", b"stays")
    logfiles.delete("log")
    logfiles.delete("log")
    with pytest.raises(NotFound):
        logfiles.read("log")
    assert logfiles.list() == [LogFileInfo("other", 5)]
    write(logfiles, "log", b"new")
    assert logfiles.read("log") == b"new"


def test_closed_file_takes_nothing_and_closes_again(logfiles: LogFiles) -> None:
    file = logfiles.create("log")
    file.append(b"kept")
    file.close()
    file.close()
    with pytest.raises(Closed):
        file.append(b"lost")
    with pytest.raises(Closed):
        file.sync()
    assert file.size_bytes == 4
    assert logfiles.read("log") == b"kept"


def test_two_files_do_not_mix(logfiles: LogFiles) -> None:
    one, two = logfiles.create("one"), logfiles.create("two")
    for number in range(100):
        one.append(b"%d;" % number)
        two.append(b"%d;" % -number)
    one.sync()
    one.close()
    two.close()
    assert logfiles.read("one") == b"".join(b"%d;" % number for number in range(100))
    assert logfiles.read("two") == b"".join(b"%d;" % -number for number in range(100))
