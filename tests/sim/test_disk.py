"""What a crash of the simulated disk may do, and over many seeds does, against a model that only knows promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.model.errors import Closed, DiskFailed, DiskFull, InvalidArgument, NotFound
from stelae.sim.disk import SimDisk, SimLogFile
from stelae.sim.effects import Effect, Effects, SimCrash
from stelae.sim.rng import SimRng

PAGE = 8
SEEDS = range(300)

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "append", "sync", "truncate", "delete", "kill"]),
        st.sampled_from("ab"),
        st.integers(0, 3 * PAGE),
    ),
    max_size=25,
)


@dataclass
class Model:
    """One file by its promises: a synced beginning that stays, and a rest that may turn to zeros or go. Zeros may
    follow: room that was taken ahead."""

    data: bytearray = field(default_factory=bytearray)
    synced: int = 0
    name_synced: bool = False

    def allows(self, found: bytes) -> bool:
        return (
            self.synced <= len(found)
            and not any(found[len(self.data) :])
            and found[: self.synced] == self.data[: self.synced]
            and all(new in (old, 0) for new, old in zip(found, self.data, strict=False))
        )


class Play:
    """Runs steps on a disk and on the model side by side. No byte is zero, so what is lost can be told."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.handles: dict[str, SimLogFile] = {}
        self.models: dict[str, Model] = {}
        self._bytes = (number % 255 + 1 for number in count())

    def step(self, kind: str, name: str, size: int) -> None:
        if kind == "kill":
            self.handles.clear()
            self.disk.kill()
        elif kind == "delete":
            self.handles.pop(name, None)
            self.models.pop(name, None)
            self.disk.delete(name)
        elif name not in self.models:
            self.handles[name] = self.disk.create(name)
            self.models[name] = Model()
        elif kind == "truncate":
            self._truncate(name, self.models[name], size)
        elif name in self.handles:
            self._write(kind, self.handles[name], self.models[name], size)

    def until_crash(self, steps: list[tuple[str, str, int]]) -> tuple[dict[str, Model], str, bool]:
        """The promises that held before the step in which the process died, its file, and whether it was a delete."""
        for kind, name, size in steps:
            before = deepcopy(self.models)
            try:
                self.step(kind, name, size)
            except SimCrash:
                return before, name, kind == "delete"
        raise AssertionError("no effect had the number of the crash")

    def _truncate(self, name: str, model: Model, size: int) -> None:
        if name in self.handles:
            self.handles.pop(name).close()
        del model.data[size:]
        model.synced = min(model.synced, size)
        self.disk.truncate(name, len(model.data))
        model.synced, model.name_synced = len(model.data), True

    def _write(self, kind: str, file: SimLogFile, model: Model, size: int) -> None:
        if kind == "append":
            data = bytes(next(self._bytes) for _ in range(size))
            model.data += data
            assert file.append(data) == len(model.data) - size
        else:
            file.sync()
            model.synced, model.name_synced = len(model.data), True


def contents(disk: SimDisk) -> dict[str, bytes]:
    return {info.name: disk.read(info.name) for info in disk.list()}


def roomless(disk: SimDisk, size_bytes: int) -> bytes:
    """Of a log to which so much was appended, without the zeros behind that."""
    found = disk.read("log")
    assert not any(found[size_bytes:])
    return found[:size_bytes]


@given(st.integers(0, 2**32), STEPS)
def test_crash_keeps_every_promise_and_invents_nothing(seed: int, steps: list[tuple[str, str, int]]) -> None:
    disk = SimDisk(SimRng(seed), page_bytes=PAGE)
    play = Play(disk)
    for step in steps:
        play.step(*step)
    now = {name: data.rstrip(b"\0") for name, data in contents(disk).items()}
    assert now == {name: bytes(model.data) for name, model in play.models.items()}
    disk.crash()
    found = contents(disk)
    assert found.keys() <= play.models.keys()
    for name, model in play.models.items():
        if name in found:
            assert model.allows(found[name])
        else:
            assert not model.name_synced
    disk.crash()
    assert contents(disk) == found


@given(st.integers(0, 2**32), STEPS)
def test_same_seed_and_calls_leave_the_same_bytes(seed: int, steps: list[tuple[str, str, int]]) -> None:
    def run() -> dict[str, bytes]:
        play = Play(SimDisk(SimRng(seed), page_bytes=PAGE))
        for step in steps:
            play.step(*step)
        play.disk.crash()
        return contents(play.disk)

    assert run() == run()


@settings(max_examples=50)
@given(st.integers(0, 2**32), STEPS)
def test_crash_at_every_effect_keeps_every_promise(seed: int, steps: list[tuple[str, str, int]]) -> None:
    effects = Effects()
    play = Play(SimDisk(SimRng(seed), page_bytes=PAGE, effects=effects))
    for step in steps:
        play.step(*step)
    for number in range(1, effects.count + 1):
        play = Play(SimDisk(SimRng(seed), page_bytes=PAGE, effects=Effects(crash_at=number)))
        before, hit, deleting = play.until_crash(steps)
        with pytest.raises(SimCrash):
            play.disk.list()
        play.disk.crash()
        found = contents(play.disk)
        for name, model in before.items():
            if name not in found:
                assert not model.name_synced or (name == hit and deleting)
            elif name == hit and name in play.models:
                assert model.allows(found[name]) or play.models[name].allows(found[name])
            else:
                assert model.allows(found[name])


def outcomes(run: Callable[[SimDisk], str], seeds: range = SEEDS) -> Counter[str]:
    return Counter(run(SimDisk(SimRng(seed), page_bytes=PAGE)) for seed in seeds)


def test_every_fate_of_a_never_synced_file_occurs() -> None:
    data = bytes(range(1, 4 * PAGE + 1))

    def fate(disk: SimDisk) -> str:
        disk.create("log").append(data)
        disk.crash()
        if not disk.list():
            return "gone"
        found = roomless(disk, len(data))
        if found == data:
            return "whole"
        if not found:
            return "empty"
        if len(found) < len(data):
            return "short"
        pages = [found[at : at + PAGE] for at in range(0, len(found), PAGE)]
        kept = [page == data[at : at + PAGE] for at, page in zip(range(0, len(data), PAGE), pages, strict=True)]
        if any(0 in page and any(page) for page in pages):
            return "torn"
        return "later page without an earlier one" if kept != sorted(kept, reverse=True) else "zeros"

    seen = outcomes(fate, range(3000))
    assert seen.keys() == {"gone", "whole", "empty", "short", "torn", "later page without an earlier one", "zeros"}


def test_any_subset_of_pages_survives() -> None:
    def kept(disk: SimDisk) -> str:
        file = disk.create("log")
        file.sync()
        file.append(b"A" * PAGE + b"B" * PAGE + b"C" * PAGE)
        disk.crash()
        found = disk.read("log")
        return "".join(page for page in "ABC" if page.encode() * PAGE in found)

    assert outcomes(kept, range(2000)).keys() == {"", "A", "B", "C", "AB", "AC", "BC", "ABC"}


def test_a_page_is_torn_either_way_around_its_synced_bytes() -> None:
    def tear(disk: SimDisk) -> str:
        file = disk.create("log")
        file.append(b"syn")
        file.sync()
        file.append(b"12345")
        disk.crash()
        found = disk.read("log")
        assert found[:3] == b"syn"
        return found[3:8].replace(b"\0", b".").decode()

    seen = outcomes(tear, range(2000))
    assert {"", "12345", ".....", "123..", "..345", "12"} <= seen.keys()


@pytest.mark.parametrize(
    "end, is_closed, cut, fates",
    [
        (SimDisk.crash, False, False, {"exact", "zeros"}),
        (SimDisk.crash, True, False, {"exact", "zeros"}),
        (SimDisk.crash, True, True, {"exact"}),
        (SimDisk.kill, False, False, {"exact", "zeros"}),
        (SimDisk.kill, True, False, {"exact"}),
    ],
)
def test_room_ahead_is_found_as_zeros_until_it_is_cut_off(
    end: Callable[[SimDisk], None], is_closed: bool, cut: bool, fates: set[str]
) -> None:
    def fate(disk: SimDisk) -> str:
        file = disk.create("log")
        file.append(b"bytes")
        file.sync()
        assert disk.read("log") == b"bytes"
        if is_closed:
            file.close()
        if cut:
            disk.truncate("log", 5)
        end(disk)
        assert roomless(disk, 5) == b"bytes"
        return "exact" if disk.read("log") == b"bytes" else "zeros"

    assert outcomes(fate).keys() == fates


def test_name_is_durable_from_the_first_sync_on() -> None:
    def fate(disk: SimDisk) -> str:
        disk.create("synced").sync()
        disk.create("not-synced")
        disk.crash()
        return " ".join(contents(disk))

    assert outcomes(fate).keys() == {"synced", "not-synced synced"}


def test_failed_sync_leaves_bytes_in_doubt_whatever_later_syncs_say() -> None:
    def fate(disk: SimDisk) -> str:
        file = disk.create("log")
        file.append(b"A" * PAGE)
        file.sync()
        file.append(b"B" * PAGE)
        disk.fail("sync", DiskFailed)
        with pytest.raises(DiskFailed):
            file.sync()
        file.append(b"C" * PAGE)
        file.sync()
        assert disk.read("log") == b"A" * PAGE + b"B" * PAGE + b"C" * PAGE
        disk.crash()
        found = roomless(disk, 3 * PAGE)
        assert found[:PAGE] == b"A" * PAGE
        assert found[2 * PAGE :] == b"C" * PAGE
        doubted = found[PAGE : 2 * PAGE]
        return "kept" if doubted == b"B" * PAGE else "torn" if any(doubted) else "lost"

    assert outcomes(fate).keys() == {"kept", "torn", "lost"}


def test_failed_sync_is_in_doubt_also_after_truncate_and_kill() -> None:
    def fate(disk: SimDisk) -> str:
        file = disk.create("log")
        file.append(b"B" * PAGE)
        disk.fail("sync", DiskFailed)
        with pytest.raises(DiskFailed):
            file.sync()
        disk.kill()
        disk.truncate("log", PAGE)
        disk.crash()
        return "kept" if disk.read("log") == b"B" * PAGE else "lost"

    assert outcomes(fate).keys() == {"kept", "lost"}


def test_killed_process_leaves_its_bytes_unsynced_until_a_truncate() -> None:
    def unsynced(disk: SimDisk) -> SimDisk:
        disk.create("log").append(b"A" * PAGE)
        disk.kill()
        assert roomless(disk, PAGE) == b"A" * PAGE
        return disk

    def trusting(disk: SimDisk) -> str:
        unsynced(disk).crash()
        return str(contents(disk))

    def careful(disk: SimDisk) -> str:
        unsynced(disk).truncate("log", PAGE)
        disk.crash()
        return str(contents(disk))

    assert len(outcomes(trusting)) > 2
    assert outcomes(careful).keys() == {str({"log": b"A" * PAGE})}


@pytest.mark.parametrize("error", [DiskFull, DiskFailed])
def test_failed_append_leaves_nothing_a_part_or_all(error: type[DiskFull | DiskFailed]) -> None:
    def left(disk: SimDisk) -> str:
        file = disk.create("log")
        file.append(b"before ")
        disk.fail("append", error, nth=2)
        file.append(b"first ")
        with pytest.raises(error):
            file.append(b"second")
        found = disk.read("log")
        assert found.startswith(b"before first ")
        assert b"before first second".startswith(found)
        assert file.size_bytes == len(found)
        assert file.append(b"!") == len(found)
        file.close()
        disk.truncate("log", 13)
        assert disk.read("log") == b"before first "
        return found.decode()

    seen = outcomes(left)
    assert {"before first ", "before first sec", "before first second"} <= seen.keys()


def test_failed_truncate_may_be_found_done_undone_or_undone_later() -> None:
    def fate(disk: SimDisk) -> str:
        file = disk.create("log")
        file.append(b"0123456789")
        file.sync()
        file.close()
        disk.fail("truncate", DiskFailed)
        with pytest.raises(DiskFailed):
            disk.truncate("log", 4)
        before = len(disk.read("log"))
        disk.crash()
        found = disk.read("log").rstrip(b"\0")
        assert b"0123456789".startswith(found)
        return f"{before} {len(found)}"

    assert outcomes(fate).keys() == {"10 10", "4 10", "4 4"}


def test_truncate_that_returned_is_never_undone() -> None:
    def fate(disk: SimDisk) -> str:
        disk.create("log").append(b"0123456789")
        disk.kill()
        disk.fail("truncate", DiskFailed)
        with pytest.raises(DiskFailed):
            disk.truncate("log", 0)
        if disk.read("log") == b"":
            disk.truncate("log", 0)
        else:
            disk.truncate("log", 4)
        size_bytes = len(disk.read("log"))
        disk.crash()
        return f"{size_bytes} {len(disk.read('log'))}"

    assert outcomes(fate).keys() == {"0 0", "4 4"}


def test_failed_delete_may_be_found_done_undone_or_undone_later() -> None:
    def fate(disk: SimDisk) -> str:
        disk.create("log").sync()
        disk.fail("delete", DiskFailed)
        with pytest.raises(DiskFailed):
            disk.delete("log")
        before = len(disk.list())
        disk.crash()
        return f"{before} {len(disk.list())}"

    assert outcomes(fate).keys() == {"0 0", "0 1", "1 1"}


def test_repeated_delete_makes_a_failed_one_durable() -> None:
    def fate(disk: SimDisk) -> str:
        disk.create("log").sync()
        disk.fail("delete", DiskFailed)
        with pytest.raises(DiskFailed):
            disk.delete("log")
        disk.delete("log")
        disk.crash()
        return str(disk.list())

    assert outcomes(fate).keys() == {"[]"}


def test_failed_create_makes_nothing() -> None:
    disk = SimDisk(SimRng(0))
    disk.fail("create", DiskFull)
    with pytest.raises(DiskFull):
        disk.create("log")
    assert disk.list() == []
    disk.create("log")


def test_faults_come_in_their_turn_and_by_kind() -> None:
    disk = SimDisk(SimRng(0))
    disk.fail("append", DiskFull, nth=3)
    disk.fail("append", DiskFailed, nth=1)
    disk.fail("sync", DiskFull, nth=2)
    file = disk.create("log")
    with pytest.raises(DiskFailed):
        file.append(b"1")
    file.sync()
    file.append(b"2")
    with pytest.raises(DiskFull):
        file.append(b"3")
    with pytest.raises(DiskFull):
        file.sync()
    file.append(b"4")
    file.sync()


@pytest.mark.parametrize("end", [SimDisk.crash, SimDisk.kill])
def test_handles_end_with_their_process(end: Callable[[SimDisk], None]) -> None:
    disk = SimDisk(SimRng(0))
    file = disk.create("log")
    file.append(b"bytes")
    file.sync()
    end(disk)
    with pytest.raises(Closed):
        file.append(b"more")
    with pytest.raises(Closed):
        file.sync()
    file.close()
    assert roomless(disk, 5) == b"bytes"


def test_truncate_under_a_writer_is_refused() -> None:
    disk = SimDisk(SimRng(0))
    file = disk.create("log")
    with pytest.raises(InvalidArgument, match="writer"):
        disk.truncate("log", 0)
    file.close()
    disk.truncate("log", 0)


def test_effects_are_named_and_counted_and_reads_are_none() -> None:
    seen: list[Effect] = []
    effects = Effects(on_effect=seen.append)
    disk = SimDisk(SimRng(0), effects=effects)
    file = disk.create("log")
    file.append(b"bytes")
    file.sync()
    file.close()
    disk.read("log")
    disk.list()
    disk.truncate("log", 3)
    disk.delete("log")
    assert [(effect.number, effect.kind, effect.name) for effect in seen] == [
        (1, "create", "log"),
        (2, "append", "log"),
        (3, "sync", "log"),
        (4, "truncate", "log"),
        (5, "delete", "log"),
    ]
    assert effects.count == 5


def test_dead_process_changes_nothing_in_its_last_breath() -> None:
    effects = Effects(crash_at=2)
    disk = SimDisk(SimRng(1), effects=effects)
    file = disk.create("log")

    def append_and_clean_up() -> None:
        try:
            file.append(b"bytes")
        except Exception:  # noqa: BLE001
            pytest.fail("a handler of errors caught the crash")
        finally:
            for last_breath in (file.sync, lambda: disk.delete("log"), lambda: disk.read("log"), disk.list):
                with pytest.raises(SimCrash):
                    last_breath()

    with pytest.raises(SimCrash):
        append_and_clean_up()
    disk.crash()
    assert effects.count == 2
    disk.create("next").sync()
    assert "next" in contents(disk)


@pytest.mark.parametrize(
    "change, after",
    [(lambda disk: disk.truncate("log", 4), 4), (lambda disk: disk.delete("log"), None)],
    ids=["truncate", "delete"],
)
def test_crash_inside_an_effect_finds_either_state(change: Callable[[SimDisk], None], after: int | None) -> None:
    seen: set[int | None] = set()
    for seed in SEEDS:
        disk = SimDisk(SimRng(seed), effects=Effects(crash_at=4))
        file = disk.create("log")
        file.append(b"0123456789")
        file.sync()
        file.close()
        with pytest.raises(SimCrash):
            change(disk)
        disk.crash()
        try:
            seen.add(len(disk.read("log").rstrip(b"\0")))
        except NotFound:
            seen.add(None)
    assert seen == {10, after}
