"""What shards have said they need of the catalog holds back its compaction, whether they are there or away."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec
import pytest

from stelae.catalog.commands.columns import AddColumns
from stelae.catalog.commands.tables import TableName
from stelae.catalog.value import CatalogVersion
from stelae.model.declare import ColumnSpec
from stelae.model.errors import Unavailable, UnknownOutcome
from stelae.model.ids import SchemaVersion
from stelae.model.types import parse_type
from stelae.ports.metastore import Change, Compare, DeleteKey, Metastore, PutKey, TxnOutcome
from stelae.registry.catalog import update_log as log
from stelae.registry.catalog.needed import NeededVersion, needed_key
from stelae.registry.catalog.service import CatalogService
from stelae.registry.changes.sessions import ChangeKind, ChangeSession, change_key
from stelae.registry.incarnations import ShardLife, life_key
from tests.catalog.samples import create
from tests.registry.test_service import Cluster, run

KEY = needed_key("n1", 0)
VERSIONS = 6
"""So many the table `users` has had: version 1 made it, each later one added a column."""


async def altered_table(cluster: Cluster) -> CatalogService:
    """The catalog as a process has it that begins to follow it when the table has been altered."""
    catalog = await cluster.service()
    await catalog.execute(create())
    for number in range(2, VERSIONS + 1):
        spec = ColumnSpec(f"c{number}", parse_type("int64"))
        await catalog.execute(AddColumns(TableName.parse("users"), "profile", (spec,)))
    await catalog.close()
    return await cluster.service()


async def register(store: Metastore, node: str = "n1") -> None:
    life = ShardLife(node, node, 0, 1, "log", "here:1")
    await store.txn([], [PutKey(life_key(node, 0), msgspec.json.encode(life))])


async def said(store: Metastore, key: str = KEY) -> int | None:
    entry = await store.get(key)
    return None if entry is None else int(entry.value)


class _Late:
    """A metastore that is asked to change something, and does so when `sent` is called."""

    def __init__(self, store: Metastore) -> None:
        self._store = store
        self.get, self.range = store.get, store.range
        self.is_late = False
        self.sent: list[Callable[[], Awaitable[TxnOutcome]]] = []

    async def txn(self, compares: Sequence[Compare], changes: Sequence[Change]) -> TxnOutcome:
        if self.is_late:
            self.sent.append(lambda: self._store.txn(compares, changes))
            raise UnknownOutcome("the answer was lost")
        return await self._store.txn(compares, changes)


def test_a_shard_that_has_said_nothing_keeps_every_version() -> None:
    async def main(cluster: Cluster) -> None:
        catalog = await altered_table(cluster)
        await register(cluster.store)
        assert await catalog.compact() is None
        await cluster.store.txn([], [DeleteKey(life_key("n1", 0))])  # as if it was taken out of the cluster
        assert await catalog.compact() == VERSIONS

    run(main)


def test_the_oldest_word_counts_and_a_shard_that_is_away_keeps_its_last() -> None:
    async def main(cluster: Cluster) -> None:
        catalog = await altered_table(cluster)
        words = {node: NeededVersion(cluster.store, needed_key(node, 0)) for node in ("n1", "n2")}
        for node in words:
            await register(cluster.store, node)
        await words["n1"].raise_to(lambda: CatalogVersion(5))
        assert await catalog.compact() is None  # the other has said nothing
        await words["n2"].raise_to(lambda: CatalogVersion(3))
        assert await catalog.compact() == 3
        later = await cluster.service()  # what a process finds that starts now
        (table,) = later.latest.tables
        assert [schema.version for schema in later.schemas.of(table)] == [3, 4, 5, 6]
        await words["n2"].raise_to(lambda: CatalogVersion(6))
        assert await catalog.compact() == 5

    run(main)


def test_few_versions_are_not_worth_a_compaction() -> None:
    async def main(cluster: Cluster) -> None:
        catalog = await altered_table(cluster)
        word = NeededVersion(cluster.store, KEY)
        await register(cluster.store)
        await word.raise_to(lambda: CatalogVersion(3))
        assert await catalog.compact(gain_min=4) is None
        assert await catalog.compact(gain_min=3) == 3

    run(main)


def test_a_load_under_way_keeps_the_schema_that_its_files_are_written_for() -> None:
    async def main(cluster: Cluster) -> None:
        catalog = await altered_table(cluster)
        (table,) = catalog.latest.tables
        for version, left in ((4, 4), (VERSIONS, VERSIONS)):
            session = ChangeSession("l", table, ChangeKind.LOAD, 0, schema_version=SchemaVersion(version))
            await cluster.store.txn([], [PutKey(change_key(table, "l"), msgspec.json.encode(session))])
            assert await catalog.compact() == left

    run(main)


def test_a_word_is_lowered_unless_a_compaction_may_pass_it() -> None:
    async def main(cluster: Cluster) -> None:
        await altered_table(cluster)
        await register(cluster.store)
        word = NeededVersion(cluster.store, KEY)
        await word.raise_to(lambda: CatalogVersion(5))
        await word.lower_to(CatalogVersion(4))
        assert (await said(cluster.store), word.version) == (4, 4)
        await cluster.store.txn([], [PutKey(log.COMPACTING_KEY, b"4")])
        await word.lower_to(CatalogVersion(4))
        with pytest.raises(Unavailable, match="may be forgotten just now"):
            await word.lower_to(CatalogVersion(3))
        assert (await said(cluster.store), word.version) == (4, 4)
        await cluster.store.txn([], [DeleteKey(log.COMPACTING_KEY)])
        await word.lower_to(CatalogVersion(3))
        assert await said(cluster.store) == 3

    run(main)


def test_what_was_compacted_cannot_be_needed_again() -> None:
    async def main(cluster: Cluster) -> None:
        catalog = await altered_table(cluster)
        await register(cluster.store)
        word = NeededVersion(cluster.store, KEY)
        await word.raise_to(lambda: CatalogVersion(5))
        assert await catalog.compact() == 5
        with pytest.raises(Unavailable, match="may be forgotten"):
            await word.lower_to(CatalogVersion(4))

    run(main)


def test_a_word_that_was_raised_late_does_not_undo_that_it_was_lowered() -> None:
    """The request to raise it arrives when its sender has given up, and has lowered the word since."""

    async def main(cluster: Cluster) -> None:
        await altered_table(cluster)
        await register(cluster.store)
        store = _Late(cluster.store)
        word = NeededVersion(store, KEY)  # type: ignore[arg-type]
        await word.raise_to(lambda: CatalogVersion(3))
        store.is_late = True
        with pytest.raises(UnknownOutcome):
            await word.raise_to(lambda: CatalogVersion(6))
        store.is_late = False
        assert word.version == 6
        await word.lower_to(CatalogVersion(2))
        assert len(store.sent) == 1
        await store.sent[0]()
        assert await said(cluster.store) == 2

    run(main)


def test_the_next_process_knows_what_was_said() -> None:
    async def main(cluster: Cluster) -> None:
        await altered_table(cluster)
        word, next_ = NeededVersion(cluster.store, KEY), NeededVersion(cluster.store, KEY)
        await next_.read()
        assert next_.version == 0
        await word.raise_to(lambda: CatalogVersion(4))
        await next_.read()
        assert next_.version == 4
        await next_.raise_to(lambda: CatalogVersion(2))  # nothing is lowered this way
        assert await said(cluster.store) == 4

    run(main)
