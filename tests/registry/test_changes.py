"""The records of changes: what follows what, and what whoever is in doubt learns though answers are lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.model.errors import Conflict, InvalidArgument, NotFound, StelaeError, Unavailable, UnknownOutcome
from stelae.model.hybrid import TXN_MIN
from stelae.model.ids import TableId, Txn
from stelae.registry.changes.decisions import forget_decided, put_decided, read_decided
from stelae.registry.changes.sessions import (
    LOAD,
    TRUNCATION,
    ChangeKind,
    ChangeSession,
    ChangeState,
    aborted,
    announced,
    begin_session,
    change_id,
    committed,
    forget_session,
    learn,
    raised,
    read_session,
    read_sessions,
    renewed,
    step_session,
    table_of_change,
)
from stelae.sim.loop import SimLoop, simulate
from stelae.sim.metastore import MetastoreFaults, SimMetastore, SimMetastoreServer
from stelae.sim.rng import SimRng

TABLE = TableId(7)
OPEN = ChangeSession("load-0000000000000007-ab", TABLE, ChangeKind.LOAD, 1_000, job="j")
txns = st.integers(0, 1_000).map(Txn)

Step = Callable[[ChangeSession], ChangeSession]
steps: st.SearchStrategy[Step] = st.one_of(
    txns.map(lambda floor: lambda session: raised(session, floor)),
    st.integers(0, 9).map(lambda ms: lambda session: renewed(session, ms)),
    st.tuples(st.sampled_from(ChangeKind), st.lists(st.sampled_from("abc")), txns).map(
        lambda given_: lambda session: announced(session, *given_)
    ),
    st.tuples(st.integers(0, 3), st.lists(txns, max_size=3), txns, txns).map(
        lambda given_: lambda session: committed(session, *given_)
    ),
    st.just(aborted),
)


@given(st.lists(steps, max_size=12))
def test_a_floor_never_falls_and_a_decision_is_final_and_above_the_floor(story: list[Step]) -> None:
    session = OPEN
    for step in story:
        before = session
        try:
            session = step(session)
        except StelaeError as error:
            assert isinstance(error, Conflict) is not before.is_open
            continue
        assert before.is_open
        assert session.floor >= before.floor
        assert session.attempt in (before.attempt, before.attempt + 1)
        assert set(before.servers) <= set(session.servers)
        assert (session.txn > session.floor) is (session.state is ChangeState.COMMITTED)


@given(st.lists(txns, max_size=3), txns, txns, txns)
def test_a_change_happens_above_all_that_anybody_was_promised(
    prepared: list[Txn], floor: Txn, last: Txn, now: Txn
) -> None:
    session = announced(OPEN, ChangeKind.OVERWRITE, ["s"], floor)
    done = committed(session, 1, prepared, last, now)
    assert all(done.txn > each for each in (*prepared, floor, last, now))
    with pytest.raises(Unavailable, match="by another call"):
        committed(announced(session, ChangeKind.LOAD, [], floor), 1, prepared, last, now)


def test_the_table_is_part_of_an_id() -> None:
    for word in (LOAD, TRUNCATION):
        assert table_of_change(change_id(word, TABLE, "00ff")) == TABLE
    for wrong in ("", "load-7-ab", "hold-0000000000000007-ab", "load-000000000000000g-ab", "load-0000000000000007-"):
        with pytest.raises(NotFound, match="no ticket is called"):
            table_of_change(wrong)


def _with_store(job: Callable[[SimMetastore, SimMetastoreServer], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    async def main(loop: SimLoop) -> None:
        server = SimMetastoreServer(loop, SimRng(seed))
        await job(server.client("me"), server)

    simulate(main, seed)


def test_an_open_change_is_not_forgotten_and_a_changed_one_is_not_written_over() -> None:
    async def job(store: SimMetastore, _: SimMetastoreServer) -> None:
        assert await begin_session(store, OPEN)
        assert not await begin_session(store, OPEN)
        held = await read_session(store, TABLE, OPEN.id)
        assert held is not None
        with pytest.raises(InvalidArgument, match="it is decided before it is forgotten"):
            await forget_session(store, held)
        later = await step_session(store, held, raised(OPEN, Txn(5)))
        assert later is not None
        assert await step_session(store, held, aborted(OPEN)) is None
        ended = await step_session(store, later, aborted(later.session))
        assert ended is not None
        assert await read_sessions(store) == [ended]
        assert await forget_session(store, ended)
        assert await learn(store, TABLE, OPEN.id, Txn(9), Txn(9)) is None

    _with_store(job)


@pytest.mark.parametrize("seed", range(20))
def test_who_is_in_doubt_learns_a_floor_or_a_decision_though_answers_are_lost(seed: int) -> None:
    """Three at once, each at its own txn, while another decides: T is above every floor that anybody was told."""

    async def job(store: SimMetastore, server: SimMetastoreServer) -> None:
        assert await begin_session(store, announced(OPEN, OPEN.kind, ["s"], Txn(1)))
        server.faults = MetastoreFaults(0.3, 0.1, 0.1, 0.1, 0.1)
        learned: list[tuple[Txn, ChangeSession]] = []

        async def doubt(at: Txn) -> None:
            while True:
                try:
                    session = await learn(store, TABLE, OPEN.id, at, Txn(at + 5))
                except (Unavailable, UnknownOutcome):
                    continue
                assert session is not None
                learned.append((at, session))
                return

        async def decide() -> ChangeSession:
            while True:
                try:
                    held = await read_session(store, TABLE, OPEN.id)
                    assert held is not None
                    if not held.session.is_open:
                        return held.session
                    await asyncio.sleep(0.5)
                    await step_session(store, held, committed(held.session, 1, [Txn(2)], Txn(0), Txn(3)))
                except (Unavailable, UnknownOutcome):
                    continue

        deciding = asyncio.ensure_future(decide())
        await asyncio.gather(*(doubt(Txn(10 * at)) for at in (1, 2, 3)))
        done = await deciding
        for at, session in learned:
            if session.is_open:
                assert at <= session.floor < done.txn
            else:
                assert session == done

    _with_store(job, seed)


def test_what_was_decided_last_is_known_as_long_as_its_table_is_kept() -> None:
    async def job(store: SimMetastore, _: SimMetastoreServer) -> None:
        gone = TableId(8)
        nothing, is_nothing = await read_decided(store, TABLE)
        assert nothing == TXN_MIN
        for table in (TABLE, gone):
            assert (await store.txn([], [put_decided(table, Txn(5))])).succeeded
        assert not (await store.txn([is_nothing], [put_decided(TABLE, Txn(4))])).succeeded
        last, is_last = await read_decided(store, TABLE)
        assert last == 5
        assert await forget_decided(store, lambda table: table == TABLE) == 1
        assert (await read_decided(store, gone))[0] == TXN_MIN
        assert (await store.txn([is_last], [put_decided(TABLE, Txn(6))])).succeeded
        assert not (await store.txn([is_last], [put_decided(TABLE, Txn(7))])).succeeded

    _with_store(job)
