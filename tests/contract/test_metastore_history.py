"""Random histories on every metastore, against a model that keeps each revision's whole state in a dict."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stelae.model.errors import InvalidArgument
from stelae.ports.metastore import (
    Change,
    Compacted,
    Compare,
    DeleteKey,
    DeletePrefix,
    Entry,
    IsAbsent,
    KeyDeleted,
    KeyPut,
    LeaseExpired,
    LeaseId,
    Metastore,
    ModRevisionIs,
    PutKey,
    Revision,
    TxnOutcome,
    ValueIs,
    WatchBatch,
)
from stelae.ports.metastore_rules import check_txn_request
from tests.contract.metastores import Backend, World, backend, take

__all__ = ["backend"]

KEYS = ["a", "a/", "a/b", "a/b/c", "b", "ä"]
PREFIXES = ["", "a", "a/", "b", "z"]
VALUES = [b"", b"1", b"22"]

State = dict[str, Entry]


@dataclass
class Model:
    """`states[r]` is the store as of revision r, for every r since the history began."""

    states: dict[Revision, State]
    newest: Revision
    compacted: Revision
    leases: list[LeaseId] = field(default_factory=list)
    alive: set[LeaseId] = field(default_factory=set)

    @property
    def now(self) -> State:
        return self.states[self.newest]

    def holds(self, compare: Compare) -> bool:
        entry = self.now.get(compare.key)
        if isinstance(compare, IsAbsent):
            return entry is None
        if isinstance(compare, ValueIs):
            return entry is not None and entry.value == compare.value
        return entry is not None and entry.mod_revision == compare.revision

    def apply(self, changes: list[Change]) -> Revision:
        revision = Revision(self.newest + 1)
        state = dict(self.now)
        for change in changes:
            match change:
                case PutKey(key, value, lease):
                    new = Entry(key, value, revision, revision, 1, lease)
                    old = state.get(key)
                    state[key] = (
                        new
                        if old is None
                        else replace(new, create_revision=old.create_revision, version=old.version + 1)
                    )
                case DeleteKey(key):
                    state.pop(key, None)
                case DeletePrefix(prefix):
                    state = {key: entry for key, entry in state.items() if not key.startswith(prefix)}
        if state != self.now:
            self.states[revision] = state
            self.newest = revision
        return self.newest

    def batches(self, prefix: str, from_revision: Revision) -> list[WatchBatch]:
        found = []
        for revision in range(from_revision, self.newest + 1):
            before, after = self.states[Revision(revision - 1)], self.states[Revision(revision)]
            keys = sorted(key for key in before | after if key.startswith(prefix) and before.get(key) != after.get(key))
            events = tuple(KeyPut(after[key]) if key in after else KeyDeleted(key) for key in keys)
            if events:
                found.append(WatchBatch(Revision(revision), events))
        return found


compares = st.one_of(
    st.builds(IsAbsent, st.sampled_from(KEYS)),
    st.builds(ValueIs, st.sampled_from(KEYS), st.sampled_from(VALUES)),
    st.tuples(st.sampled_from(KEYS), st.integers(0, 3)),
)
changes = st.one_of(
    st.builds(PutKey, st.sampled_from(KEYS), st.sampled_from(VALUES)),
    st.tuples(st.sampled_from(KEYS), st.sampled_from(VALUES), st.integers(0, 3)),
    st.builds(DeleteKey, st.sampled_from(KEYS)),
    st.builds(DeletePrefix, st.sampled_from(PREFIXES)),
)
ago = st.integers(0, 12)
limits = st.one_of(st.none(), st.integers(1, 4))
starts = st.one_of(st.none(), st.sampled_from(KEYS))
steps = st.one_of(
    st.tuples(st.just("txn"), st.lists(compares, max_size=2), st.lists(changes, max_size=4)),
    st.tuples(st.just("txn"), st.just([]), st.lists(changes, min_size=1, max_size=2)),
    st.tuples(st.just("range"), st.sampled_from(PREFIXES), starts, limits, st.one_of(st.none(), ago)),
    st.tuples(st.just("get"), st.sampled_from(KEYS), st.one_of(st.none(), ago)),
    st.tuples(st.just("watch"), st.sampled_from(PREFIXES), ago),
    st.tuples(st.just("compact"), ago),
    st.tuples(st.just("grant")),
    st.tuples(st.just("revoke"), st.integers(0, 3)),
)


class History:
    """Takes each step on the store and on the model, and compares what they say."""

    def __init__(self, store: Metastore, start: Revision) -> None:
        self.store = store
        self.model = Model({start: {}, Revision(start - 1): {}}, start, Revision(start - 1))
        self.start = start

    async def take(self, step: tuple[Any, ...]) -> None:
        await getattr(self, step[0])(*step[1:])

    def revision(self, ago: int) -> Revision:
        return Revision(max(self.start, self.model.newest - ago))

    async def txn(self, compares: list[Any], changes: list[Any]) -> None:
        model = self.model
        asked = [
            ModRevisionIs(each[0], self.revision(each[1])) if isinstance(each, tuple) else each for each in compares
        ]
        wanted = [self.bound(*each) if isinstance(each, tuple) else each for each in changes]
        try:
            check_txn_request(asked, wanted)
        except InvalidArgument:
            with pytest.raises(InvalidArgument):
                await self.store.txn(asked, wanted)
            return
        if not all(model.holds(compare) for compare in asked):
            assert await self.store.txn(asked, wanted) == TxnOutcome(False, model.newest)
        elif any(isinstance(each, PutKey) and each.lease not in {None, *model.alive} for each in wanted):
            with pytest.raises(LeaseExpired):
                await self.store.txn(asked, wanted)
        else:
            assert await self.store.txn(asked, wanted) == TxnOutcome(True, model.apply(wanted))

    def bound(self, key: str, value: bytes, number: int) -> PutKey:
        leases = self.model.leases
        return PutKey(key, value, leases[number % len(leases)] if leases else None)

    async def range(self, prefix: str, start: str | None, limit: int | None, ago: int | None) -> None:
        revision = None if ago is None else self.revision(ago)
        if revision is not None and revision < self.model.compacted:
            with pytest.raises(Compacted):
                await self.store.range(prefix, start=start, limit=limit, revision=revision)
            return
        at = revision or self.model.newest
        state = self.model.states[at]
        entries = [state[key] for key in sorted(state) if key.startswith(prefix) and key >= (start or "")]
        read = await self.store.range(prefix, start=start, limit=limit, revision=revision)
        assert read.entries == tuple(entries[:limit])
        assert (read.revision, read.more) == (at, limit is not None and len(entries) > limit)

    async def get(self, key: str, ago: int | None) -> None:
        revision = None if ago is None else self.revision(ago)
        if revision is not None and revision < self.model.compacted:
            with pytest.raises(Compacted):
                await self.store.get(key, revision)
            return
        assert await self.store.get(key, revision) == self.model.states[revision or self.model.newest].get(key)

    async def watch(self, prefix: str, ago: int) -> None:
        revision = self.revision(ago)
        if revision <= self.model.compacted:
            with pytest.raises(Compacted):
                await anext(self.store.watch(prefix, revision))
            return
        batches = self.model.batches(prefix, revision)
        assert await take(self.store.watch(prefix, revision), len(batches)) == batches

    async def compact(self, ago: int) -> None:
        await self.store.compact(self.revision(ago))
        self.model.compacted = max(self.model.compacted, self.revision(ago))

    async def grant(self) -> None:
        lease = await self.store.grant(600)
        self.model.leases.append(lease)
        self.model.alive.add(lease)

    async def revoke(self, number: int) -> None:
        if self.model.leases:
            lease = self.model.leases[number % len(self.model.leases)]
            await self.store.revoke(lease)
            self.model.alive.discard(lease)
            self.model.apply([DeleteKey(key) for key, entry in self.model.now.items() if entry.lease == lease])


@settings(max_examples=settings().max_examples // 2)
@given(st.lists(steps, min_size=5, max_size=40))
def test_any_history_is_as_the_model_says(backend: Backend, history: list[tuple[Any, ...]]) -> None:
    async def story(world: World) -> None:
        store = await world.open()
        # Revision numbers of an etcd go on from one story to the next, so each begins with a change of its own.
        await store.txn([], [PutKey("start", b"")])
        start = (await store.txn([], [DeleteKey("start")])).revision
        told = History(store, start)
        for step in history:
            await told.take(step)
        await told.range("", None, None, None)
        for lease in told.model.alive:
            await store.revoke(lease)

    backend.run(story)
