"""Log files whose changes wait: until they are settled nothing on the disk changes, and all looks as if it had."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.adapters.logfiles.deferred import DeferredLogFiles
from stelae.model.errors import DiskFailed, InvalidArgument, NotFound, StelaeError
from stelae.ports.logfiles import LogFileInfo, LogFiles
from stelae.sim.disk import DiskCall, SimDisk
from stelae.sim.rng import SimRng
from tests.effort import examples

NAMES = ("a", "b", "c")


def disk() -> SimDisk:
    """Three files of ten bytes."""
    files = SimDisk(SimRng(1))
    for name in NAMES:
        file = files.create(name)
        file.append(b"0123456789")
        file.sync()
        file.close()
    return files


def seen(files: LogFiles) -> list[tuple[LogFileInfo, bytes]]:
    return [(info, files.read(info.name)) for info in files.list()]


_names = st.sampled_from((*NAMES, "none"))
_sizes = st.integers(-1, 11)
_steps = st.one_of(
    st.tuples(st.just("truncate"), _names, _sizes),
    st.tuples(st.just("delete"), _names),
    st.tuples(st.just("read"), _names, st.integers(-1, 12), st.none() | _sizes),
)


@given(st.lists(_steps, max_size=12))
@settings(max_examples=examples(200))
def test_it_looks_done_and_is_done_when_settled(steps: list[tuple[str, *tuple[object, ...]]]) -> None:
    """Beside files where every change is made at once."""
    plain, below = disk(), disk()
    deferred = DeferredLogFiles(below)
    untouched = seen(below)
    for name, *arguments in steps:
        assert _outcome(getattr(deferred, name), *arguments) == _outcome(getattr(plain, name), *arguments)
        assert seen(deferred) == seen(plain)
        assert seen(below) == untouched
    deferred.settle()
    assert seen(below) == seen(deferred) == seen(plain)
    for info in deferred.list():
        deferred.truncate(info.name, 0)
        assert below.read(info.name) == b""
        deferred.delete(info.name)
    assert below.list() == []


def _outcome(call: Callable[..., object], *arguments: object) -> object:
    try:
        return call(*arguments)
    except StelaeError as error:
        return type(error)


def test_a_new_file_settles() -> None:
    below = disk()
    deferred = DeferredLogFiles(below)
    deferred.truncate("a", 4)
    deferred.delete("b")
    deferred.create("b").close()
    assert [info.size_bytes for info in below.list()] == [4, 0, 10]


@pytest.mark.parametrize("call", ["truncate", "delete"])
def test_what_could_not_be_settled_is_settled_the_next_time(call: DiskCall) -> None:
    below = disk()
    deferred = DeferredLogFiles(below)
    deferred.truncate("a", 4)
    deferred.delete("b")
    deferred.delete("c")
    below.fail(call, DiskFailed)
    with pytest.raises(DiskFailed):
        deferred.settle()
    assert deferred.list() == [LogFileInfo("a", 4)]
    deferred.settle()
    assert below.list() == [LogFileInfo("a", 4)]


def test_bad_names_are_refused_although_nothing_is_done_yet() -> None:
    deferred = DeferredLogFiles(disk())
    with pytest.raises(InvalidArgument):
        deferred.truncate("a/b", 0)
    with pytest.raises(InvalidArgument):
        deferred.delete("a/b")
    with pytest.raises(NotFound):
        deferred.truncate("none", 0)
    deferred.settle()
