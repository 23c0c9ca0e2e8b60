"""Faults of a simulated disk that last: failing calls, no room, bits that flip, a disk that is replaced."""

from __future__ import annotations

import pytest

from stelae.model.errors import Closed, DiskFailed, DiskFull, NotFound
from stelae.sim.disk import SimDisk
from stelae.sim.rng import SimRng

NAME = "segment"


def disk_with(*groups: bytes, seed: int = 1) -> SimDisk:
    """Each group synced by itself."""
    disk = SimDisk(SimRng(seed))
    file = disk.create(NAME)
    for group in groups:
        file.append(group)
        file.sync()
    file.close()
    return disk


def test_syncs_fail_until_they_are_mended() -> None:
    disk = SimDisk(SimRng(1))
    disk.fail_on("sync", DiskFailed)
    for number in range(3):
        file = disk.create(f"{number}")
        with pytest.raises(DiskFailed):
            file.sync()
        file.close()
    disk.mend()
    file = disk.create("good")
    file.append(b"bytes")
    file.sync()
    disk.crash()
    assert disk.read("good")[:5] == b"bytes"


def test_mending_disarms_what_waits_for_its_turn() -> None:
    disk = SimDisk(SimRng(1))
    disk.fail("create", DiskFailed, nth=2)
    disk.mend()
    for number in range(3):
        disk.create(f"{number}").close()


def test_a_full_disk_refuses_bytes_until_some_are_deleted() -> None:
    disk = disk_with(b"0" * 100)
    disk.fill()
    file = disk.create("next")
    for _ in range(2):
        with pytest.raises(DiskFull):
            file.append(b"1" * 10)
    assert file.size_bytes == 0
    disk.delete(NAME)
    file.append(b"1" * 100)
    with pytest.raises(DiskFull):
        file.append(b"2")
    disk.mend()
    file.append(b"2" * 1000)
    assert disk.used_bytes == 1100


def test_of_what_does_not_fit_any_part_that_does_may_be_there() -> None:
    sizes: set[int] = set()
    for seed in range(40):
        disk = disk_with(b"0" * 100, seed=seed)
        disk.size_bytes_max = 104
        file = disk.create("next")
        with pytest.raises(DiskFull):
            file.append(b"1" * 10)
        sizes.add(file.size_bytes)
        assert disk.read("next") == b"1" * file.size_bytes
    assert {0, 4} < sizes <= {0, 1, 2, 3, 4}


def test_one_bit_flips_in_the_group_that_was_synced_last() -> None:
    places: set[int] = set()
    for seed in range(60):
        disk = disk_with(b"a" * 50, b"b" * 10, seed=seed)
        told = disk.flip_bit()
        data = disk.read(NAME)
        changed = [place for place, byte in enumerate(data) if byte != (b"a" * 50 + b"b" * 10)[place]]
        assert told == f"{NAME} at {changed[0]}"
        assert len(changed) == 1
        assert (data[changed[0]] ^ ord("b")).bit_count() == 1
        places.add(changed[0])
    assert {50, 59} <= places <= set(range(50, 60))


@pytest.mark.parametrize("end", ["kill", "crash"])
def test_a_bit_flips_while_nobody_lives(end: str) -> None:
    for seed in range(10):
        disk = disk_with(b"a" * 50, b"b" * 10, seed=seed)
        disk.kill() if end == "kill" else disk.crash()
        assert disk.flip_bit() is not None
        data = disk.read(NAME)
        assert data[:50] == b"a" * 50
        assert data[50:60] != b"b" * 10


def test_nothing_flips_where_nothing_is_synced() -> None:
    disk = SimDisk(SimRng(1))
    assert disk.flip_bit() is None
    disk.create(NAME).append(b"bytes")
    assert disk.flip_bit() is None
    disk = disk_with(b"bytes")
    disk.delete(NAME)
    assert disk.flip_bit() is None


def test_a_wiped_disk_is_empty_and_usable() -> None:
    disk = disk_with(b"bytes")
    file = disk.create("open")
    disk.wipe()
    assert disk.list() == []
    assert disk.synced() is None
    with pytest.raises(NotFound):
        disk.read(NAME)
    with pytest.raises(Closed):
        file.append(b"more")
    disk.create(NAME).append(b"new")
    assert disk.read(NAME) == b"new"


def test_images_are_alike_where_disks_are() -> None:
    assert disk_with(b"ab", b"c").image() == disk_with(b"a", b"bc").image()
    assert disk_with(b"ab").image() != disk_with(b"ac").image()
    assert SimDisk(SimRng(1)).image() == b""


def test_a_disk_hangs_until_it_is_mended() -> None:
    disk = SimDisk(SimRng(1))
    disk.pace.hang()
    disk.pace.slow_s_max = 1.0
    freed: list[str] = []
    disk.pace.when_free(lambda: freed.append("free"))
    assert disk.pace.hangs
    disk.mend()
    assert (freed, disk.pace.hangs, disk.pace.slow_s_max) == (["free"], False, 0.0)
