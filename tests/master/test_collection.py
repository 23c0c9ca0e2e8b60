"""Files that nobody needs go, whoever made them; what any server may need stays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from stelae.adapters.blobs.local import LocalBlobStore
from stelae.master.garbage.collection import Collection, Needs, put_together
from stelae.model.errors import Corruption, Unavailable
from stelae.model.events import Collected
from stelae.model.hybrid import HybridClock, pack
from stelae.model.ids import TableId, Txn
from stelae.ports.metastore import DeleteKey
from stelae.registry.changes.sessions import ChangeKind, ChangeSession, change_key, put_session
from stelae.registry.control_operations import FilesNeeded
from stelae.service.deadlines import Deadline
from stelae.sim.effects import Effects
from stelae.sim.metastore_state import MetastoreState
from stelae.storage.files.names import file_name, fragment_names
from stelae.storage.files.trash import TRASH
from tests.machines import PlainMetastore

NOW_MS = 1_700_000_000_000
TABLE = TableId(16)


def name(ago_ms: int, token: str = "aa", table: TableId = TABLE) -> str:
    return file_name(table, pack(NOW_MS - ago_ms), token)


class _Loop:
    def run(self, job: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(job)


class _Servers:
    def __init__(self, *answers: FilesNeeded | Exception) -> None:
        self.answers = answers
        self.on_ask: Callable[[], None] = lambda: None

    async def files_needed(self, deadline: Deadline | None = None) -> Sequence[FilesNeeded]:
        self.on_ask()
        for each in self.answers:
            if isinstance(each, Exception):
                raise each
        return [each for each in self.answers if isinstance(each, FilesNeeded)]


class _Place:
    def __init__(self, root: Path) -> None:
        self.blobs = LocalBlobStore(root)
        self.told: list[object] = []
        self.metastore = PlainMetastore(MetastoreState(), Effects())
        self.collection = self.another()

    def another(self) -> Collection:
        """A master's, on the same files."""
        return Collection(
            self.metastore,
            self.blobs,
            _Loop(),  # type: ignore[arg-type]
            HybridClock(lambda: NOW_MS),
            lambda: NOW_MS,
            3600.0,
            lambda table: table == TABLE,
            self.told.append,
        )

    def write(self, *names: str) -> None:
        for each in names:
            writer = self.blobs.create(each)
            writer.write(b"x" * 10)
            writer.commit()


@pytest.fixture
def place(tmp_path: Path) -> _Place:
    return _Place(tmp_path)


def needed(
    *names: str, since_ago_ms: int = 0, prefixes: tuple[str, ...] = (), holds: tuple[str, ...] = ()
) -> FilesNeeded:
    return FilesNeeded(pack(NOW_MS - since_ago_ms) + 1, names, prefixes, holds)


def test_what_no_server_needs_goes_aside(place: _Place) -> None:
    mine, theirs, garbage, job = name(50), name(40), name(30), name(20, "bb00")
    place.write(mine, theirs, garbage, job)
    servers = _Servers(needed(mine), needed(theirs, prefixes=(job.removesuffix("00.parquet"),)))
    assert place.collection.collect(servers) == (1, 10)
    assert sorted(fragment_names(place.blobs)) == sorted([mine, theirs, job])
    assert [info.name for info in place.blobs.list(TRASH)]
    assert place.told == [Collected(1, 10)]


def test_what_is_younger_than_any_answer_stays(place: _Place) -> None:
    """A server may have begun it after it said what it needs: the slowest clock decides."""
    place.write(name(1_000), name(10))
    assert place.collection.collect(_Servers(needed(), needed(since_ago_ms=500))) == (1, 10)
    assert fragment_names(place.blobs) == [name(10)]


def test_what_is_begun_while_servers_are_asked_stays(place: _Place) -> None:
    servers = _Servers(needed(since_ago_ms=-10_000))  # its clock is far ahead
    servers.on_ask = lambda: place.write(file_name(TABLE, Txn(pack(NOW_MS) + 5_000), "aa"))
    assert place.collection.collect(servers) == (0, 0)
    assert len(fragment_names(place.blobs)) == 1


def test_what_a_load_writes_stays_that_begins_while_servers_are_asked(place: _Place) -> None:
    """Its files' names were thought of before, and the record of it came after changes under way were looked at."""
    loaded = name(1_000, "bb00")
    session = ChangeSession("load-a", TABLE, ChangeKind.LOAD, NOW_MS, prefix=loaded.removesuffix("00.parquet"))
    servers = _Servers(needed())
    begun: list[None] = []

    def begin() -> None:
        begun.append(None)
        place.metastore._state.txn([], [put_session(session)])
        place.write(loaded)

    servers.on_ask = begin
    assert place.collection.collect(servers) == (0, 0)
    assert begun
    assert fragment_names(place.blobs) == [loaded]


def test_what_no_server_needs_is_counted_and_left(place: _Place) -> None:
    place.write(name(50), name(40))
    servers = _Servers(needed(name(50)))
    assert place.collection.unneeded(servers) == (1, 10)
    assert len(fragment_names(place.blobs)) == 2
    with pytest.raises(Unavailable):
        place.collection.unneeded(_Servers(needed(), Unavailable("away")))


def test_what_a_load_has_written_stays_until_it_is_given_up(place: _Place) -> None:
    loaded = name(1_000, "bb00")
    place.write(loaded)
    session = ChangeSession("load-a", TABLE, ChangeKind.LOAD, NOW_MS, prefix=loaded.removesuffix("00.parquet"))
    asyncio.run(place.metastore.txn([], [put_session(session)]))
    assert place.collection.collect(_Servers(needed())) == (0, 0)
    asyncio.run(place.metastore.txn([], [DeleteKey(change_key(TABLE, "load-a"))]))
    assert place.collection.collect(_Servers(needed())) == (1, 10)


def test_nothing_goes_while_a_server_is_away(place: _Place) -> None:
    place.write(name(1_000))
    with pytest.raises(Unavailable, match="gone"):
        place.collection.collect(_Servers(needed(), Unavailable("shard b is gone")))
    assert fragment_names(place.blobs) == [name(1_000)]


def test_for_good_is_in_no_place_any_more(place: _Place) -> None:
    place.write(name(1_000), name(900))
    place.collection.collect(_Servers(needed(name(900))))
    assert place.collection.collect(_Servers(needed()), for_good=True) == (1, 10)
    assert [info.name for info in place.blobs.list("")] == []


def test_for_good_is_also_what_another_master_had_put_aside(place: _Place) -> None:
    """It has led in between, and its process goes on, or has ended."""
    nothing, between = _Servers(needed()), place.another()
    place.write(name(50))
    assert place.collection.collect(nothing) == (1, 10)
    place.write(name(40))
    assert between.collect(nothing) == (1, 10)
    assert len(list(place.blobs.list(TRASH))) == 2
    place.collection.collect(nothing, for_good=True)
    assert not list(place.blobs.list(TRASH))


def test_files_of_tables_that_there_never_were_keep_all_others(place: _Place) -> None:
    place.write(name(1_000), name(900, table=TableId(99)))
    assert place.collection.collect(_Servers(needed())) == (0, 0)
    assert len(fragment_names(place.blobs)) == 2
    with pytest.raises(Corruption, match="does not know"):
        place.collection.collect(_Servers(needed()), for_good=True)


def test_overlays_go_with_their_holds(place: _Place) -> None:
    place.write("overlays/hold-a/x.parquet", "overlays/hold-b/x.parquet")
    servers = _Servers(needed(holds=("hold-a",)))
    servers.on_ask = lambda: place.write("overlays/hold-c/x.parquet")  # held after the servers have answered
    place.collection.collect(servers)
    assert sorted(info.name for info in place.blobs.list("overlays/")) == [
        "overlays/hold-a/x.parquet",
        "overlays/hold-c/x.parquet",
    ]


def test_needs_are_those_of_all() -> None:
    needs = put_together(Txn(50), [FilesNeeded(70, ("a",), ("p",), ("h",)), FilesNeeded(60, ("b",), (), ())])
    assert needs == Needs(Txn(50), frozenset({"a", "b"}), ("p",), frozenset({"h"}))
    assert put_together(Txn(50), [FilesNeeded(40)]).since == 40
