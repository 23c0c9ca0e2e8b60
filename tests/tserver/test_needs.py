"""What a shard says it needs of the catalog: never less than its log, its replicas and its configs name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace
from rpds import HashTrieMap

from stelae.catalog.value import Catalog, CatalogVersion, empty_catalog
from stelae.format.block import SmallBlock, encode_block
from stelae.format.log.copies import ReplicaKept, copy_record
from stelae.model.errors import Unavailable
from stelae.model.ids import Row, SchemaVersion, TabletId
from stelae.model.mutation import Put
from stelae.registry.catalog.settings import HistoryKept
from stelae.registry.replication.appending import AppendAnswer, AppendPart
from stelae.registry.schema_versions import SchemaVersions
from stelae.sim.clock import SimClock
from stelae.storage.replicas.naming import schemas_logged
from stelae.storage.replicas.replica import NOWHERE
from stelae.tserver.flushing import Flushing
from stelae.tserver.needs import SchemaNeeds
from stelae.tserver.replication.following import Following
from tests.storage import engine as world
from tests.storage.replicas.records import SCHEMA, TABLET, block, config_bytes

T = TypeVar("T")
FIRST = SCHEMA.version
KEPT = HistoryKept(versions_max=2, look_s=10.0, settle_s=5.0)


class Word:
    """A `NeededVersion` without a metastore."""

    def __init__(self) -> None:
        self.version = CatalogVersion(0)
        self.lowered: list[int] = []
        self.refuses = False

    async def read(self) -> None:
        """There is nothing that another process has said."""

    async def raise_to(self, upto: Callable[[], CatalogVersion]) -> None:
        self.version = max(self.version, upto())

    async def lower_to(self, version: CatalogVersion) -> None:
        if self.refuses:
            raise Unavailable("a compaction may be about to pass it")
        self.lowered.append(version)
        self.version = min(self.version, version)


class LoopNow:
    """A `Loop` of nobody but the caller."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(work)


class Shard:
    """A shard that has one tablet of a table, and may follow another, while the table is altered."""

    def __init__(self) -> None:
        self.engine = world.Engine(SCHEMA)
        self.clock = SimClock()
        self.word = Word()
        self.schemas = SchemaVersions()
        self.latest = self._catalog(FIRST)
        shard = self.engine.shard
        self.flushing = Flushing(shard, self.engine.upkeep)
        self.following = Following(shard)
        self.needs = SchemaNeeds(
            shard,
            self.engine.upkeep,
            self.flushing,
            self.engine.disk,
            lambda: self.latest,
            lambda: self.schemas,
            self.word,  # type: ignore[arg-type]
            self.clock,
            LoopNow(),  # type: ignore[arg-type]
            KEPT,
        )
        self.needs.begin()
        self.following.needs = self.needs

    def _catalog(self, version: int) -> Catalog:
        table: Any = SimpleNamespace(id=world.TABLE, schema=replace(SCHEMA, version=SchemaVersion(version)))
        self.schemas.add(table)
        return replace(empty_catalog(), version=CatalogVersion(version), tables=HashTrieMap({world.TABLE: table}))

    def alter(self, version: int, *, follows: bool = True) -> None:
        """`follows`: the shard's own tablet is asked to be of the new schema."""
        self.latest = self._catalog(version)
        if follows:
            self.engine.alter(self.latest.tables[world.TABLE].schema)

    def put(self) -> None:
        self.engine.write([Put(Row(b"a"), ())])

    def tend(self) -> int:
        """Until it has had the time to say what it needs."""
        for _ in range(2):
            self.needs.tend()
            self.clock.advance(KEPT.look_s)
        return self.word.version

    def host(self, *versions: int) -> AppendAnswer:
        """A replica of another tablet, whose records are of these schemas."""
        records = tuple(copy_record(_block(number, version)) for number, version in enumerate(versions, 1))
        kept = ReplicaKept(NOWHERE.epoch, NOWHERE, NOWHERE.index, config_bytes(), records)
        return self.following.host(world.TABLE, TABLET, 1, kept)

    def append(self, index: int, version: int) -> AppendAnswer:
        part = AppendPart(TABLET, world.TABLE, 1, (1 if index > 1 else 0, index - 1), 0)
        (answer,) = self.following.append([part], [[copy_record(_block(index, version))]])
        return answer

    def named(self) -> set[int]:
        shard = self.engine.shard
        logged = schemas_logged(self.engine.disk, [segment.name for segment in shard.segments()])
        return {version for _, version in logged}


def _block(index: int, version: int) -> Any:
    return block(1, index, bytes(encode_block(SmallBlock(SchemaVersion(version), (Put(Row(b"a"), ()),)))))


def test_a_short_history_is_left_alone() -> None:
    shard = Shard()
    shard.put()
    assert shard.tend() == 0
    assert shard.named() == {FIRST}


def test_what_is_of_older_schemas_is_written_to_files_and_the_word_is_raised() -> None:
    shard = Shard()
    shard.put()
    shard.alter(FIRST + 3)
    shard.put()
    assert shard.tend() == FIRST + 3
    assert shard.named() == set()
    shard.engine.schemas.pop(FIRST)  # nobody knows it any more
    shard.engine.restart("crash")


def test_a_version_is_given_a_while_before_it_is_called_the_oldest_that_is_needed() -> None:
    shard = Shard()
    shard.alter(FIRST + 3)
    shard.needs.tend()
    shard.alter(FIRST + 4)
    shard.needs.tend()
    assert shard.word.version == 0
    shard.clock.advance(KEPT.settle_s)
    shard.needs.tend()
    assert shard.word.version == FIRST + 3


def test_what_cannot_be_written_to_files_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    shard = Shard()
    shard.put()
    shard.alter(FIRST + 3)
    monkeypatch.setattr(shard.flushing, "flush_down_to", lambda _: None)
    assert shard.tend() == FIRST


def test_what_lies_in_the_log_is_needed_though_files_hold_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads the log again looks at it."""
    shard = Shard()
    shard.put()
    shard.alter(FIRST + 3)
    monkeypatch.setattr("stelae.tserver.needs.collect_all_log", lambda *_: None)
    assert shard.tend() == FIRST


def test_a_tablet_that_has_not_followed_is_needed() -> None:
    shard = Shard()
    shard.alter(FIRST + 3, follows=False)
    assert shard.tend() == FIRST


def test_what_a_replica_has_is_needed() -> None:
    shard = Shard()
    shard.host(FIRST)
    shard.alter(FIRST + 3)
    assert shard.tend() == FIRST


def test_a_replica_that_names_an_older_schema_is_taken_when_that_is_written_down() -> None:
    shard = Shard()
    shard.alter(FIRST + 3)
    assert shard.tend() == FIRST + 3
    shard.word.refuses = True
    with pytest.raises(Unavailable):
        shard.host(FIRST)
    assert TABLET not in shard.engine.shard.replicas
    shard.word.refuses = False
    assert shard.host(FIRST) == AppendAnswer(1)
    assert shard.word.lowered == [FIRST]
    assert shard.named() == {FIRST}


def test_records_that_name_an_older_schema_are_taken_when_that_is_written_down() -> None:
    shard = Shard()
    shard.host()
    shard.alter(FIRST + 3)
    shard.word.version = CatalogVersion(FIRST + 3)
    shard.needs._promised = CatalogVersion(FIRST + 3)
    assert shard.append(1, FIRST + 3) == AppendAnswer(1)
    assert shard.word.lowered == []
    shard.word.refuses = True
    with pytest.raises(Unavailable):
        shard.append(2, FIRST)
    assert shard.engine.shard.replicas[TABLET].last.index == 1
    shard.word.refuses = False
    assert shard.append(2, FIRST) == AppendAnswer(2)
    assert shard.word.lowered == [FIRST]


def test_what_comes_in_while_the_log_is_read_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader sends a record of an older schema when the log was read already, and the word is not raised yet."""
    shard = Shard()
    shard.alter(FIRST + 3)
    find = SchemaNeeds._find_oldest

    def found(self: SchemaNeeds, *args: Any) -> CatalogVersion:
        oldest = find(self, *args)
        assert oldest == FIRST + 3
        assert shard.host(FIRST) == AppendAnswer(1)
        return oldest

    monkeypatch.setattr(SchemaNeeds, "_find_oldest", found)
    assert shard.tend() <= FIRST
    assert shard.named() == {FIRST}


def test_tablets_of_tables_that_are_forgotten_are_not_needed() -> None:
    shard = Shard()
    shard.put()
    shard.alter(FIRST + 3, follows=False)
    shard.latest = replace(shard.latest, tables=HashTrieMap())
    assert shard.tend() == FIRST + 3
    assert TabletId(1) in shard.engine.shard.tablets()
