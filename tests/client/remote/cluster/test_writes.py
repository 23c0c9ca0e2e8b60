"""Writes of several shards' rows: parts that were refused are sent again, and what is told in the end is true."""

from __future__ import annotations

import asyncio
import gc
import traceback
from collections.abc import Callable, Iterator, Sequence
from threading import Event
from types import FrameType, FunctionType, ModuleType, TracebackType
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.client.calls.aio_session import AsyncSession
from stelae.client.calls.retries import Patience
from stelae.client.calls.rows import Rows
from stelae.client.calls.session import Session
from stelae.client.calls.steps import Steps
from stelae.client.calls.views import KnownTable
from stelae.client.remote.cluster.routes import TableRoutes
from stelae.client.remote.cluster.seen import SeenTime
from stelae.client.remote.cluster.writes import newest_written
from stelae.model.errors import (
    InvalidArgument,
    Overloaded,
    PartialWrite,
    StaleSchema,
    StelaeError,
    TabletAway,
    Unavailable,
    UnknownOutcome,
)
from stelae.model.ids import Row, TableId, Txn
from stelae.ports.executor import Executor
from stelae.service.backend import Backend
from stelae.service.blocks import OrderedBlock, blocks_behind
from stelae.sim.clock import SimClock
from stelae.sim.rng import SimRng
from tests.client.remote.cluster.test_routes import block_of, rows_of

ROUTES = TableRoutes((b"", b"b", b"c", b"d"), ("n1/0", "n1/1", "n2/0", "n1/0"))
BLOCKS = [block_of([Row(b"a1"), Row(b"b1"), Row(b"c1"), Row(b"d1")]), block_of([Row(b"a2"), Row(b"b2")])]


class Cluster:
    """A store, and the only table that it has: shards do with each part that they are sent what the script says next,
    and then take all of it. An outcome is an error, or how many records are let in before the shard is full. `made`:
    how often blocks were made; whoever asks is told each time that the schema is another by now."""

    is_local = False
    quick = None
    place = "a test"
    id = TableId(16)

    def __init__(self, script: dict[str, list[StelaeError | int]], seconds: float = 1e6) -> None:
        self.clock = SimClock()
        self.script = script
        self.seen = SeenTime()
        self.unknown_places: list[StelaeError] = []
        self.written: dict[str, list[bytes]] = {}
        self.txn = 0
        self.sent = 0
        self.made = 0
        self._session = Session(cast(Backend, self), Patience(self.clock, SimRng(1), seconds), pause=self._pause)
        self._steps = Rows(cast(KnownTable, self)).write

    def _pause(self, _: Event, seconds: float) -> bool:
        self.clock.advance(seconds)
        return False

    def put(self) -> Txn:
        return self._session.run(self._steps(lambda _: BLOCKS))

    async def put_on_loop(self) -> Txn:
        return await AsyncSession(self._session, cast(Executor, None)).run(self._steps(lambda _: BLOCKS))

    def put_in_one_way(self, *, on_loop: bool) -> Txn:
        return asyncio.run(_without_rest(self)) if on_loop else self.put()

    def prepared(self, make: Callable[[Any], Any], **_: bool) -> Steps[Any]:
        self.made += 1
        yield from ()
        return make(None)

    def refresh(self) -> Steps[bool]:
        yield from ()
        return True

    def write(self, _: TableId, blocks: Sequence[OrderedBlock], *__: object, **___: object) -> Txn:
        assert all(block.once is not None for block in blocks)
        if self.sent and self.unknown_places:
            raise self.unknown_places.pop()
        self.sent += 1
        parts = ROUTES.cut_blocks(blocks)
        return newest_written(parts, {shard: self._send_part(shard, part) for shard, part in parts.items()}, self.seen)

    def submit(self, *given: Any, **named: Any) -> asyncio.Future[Txn]:
        done = asyncio.get_running_loop().create_future()
        try:
            done.set_result(self.write(*given, **named))
        except StelaeError as error:
            done.set_exception(error)
        return done

    def _send_part(self, shard: str, part: Sequence[OrderedBlock]) -> Txn | StelaeError:
        script = self.script.get(shard)
        outcome = script.pop(0) if script else sum(block.count for block in part)
        if isinstance(outcome, StelaeError):
            return outcome
        rows = [row for block in part for row in rows_of(block)]
        if not outcome:
            return FULL
        self.written.setdefault(shard, []).extend(rows[:outcome])
        if outcome < len(rows):
            return PartialWrite(f"{outcome} rows are durable, the rest is not: it is full", outcome, "it is full")
        self.txn += 1
        return Txn(self.txn)


FULL = Overloaded("it is full")
ALL = {"n1/0": [b"a1", b"d1", b"a2"], "n1/1": [b"b1", b"b2"], "n2/0": [b"c1"]}

refusals: st.SearchStrategy[StelaeError | int] = st.sampled_from(
    [FULL, TabletAway("not here"), Unavailable("no lease"), StaleSchema("altered"), 1, 0]
)
scripts = st.dictionaries(st.sampled_from(sorted(ALL)), st.lists(refusals, max_size=4))


@given(scripts)
def test_what_is_refused_is_sent_again_until_all_is_durable_once_and_in_order(
    script: dict[str, list[StelaeError | int]],
) -> None:
    """Also where all blocks are made anew because the table was altered, and some of them are durable by then."""
    cluster = Cluster(script)
    assert cluster.put() == cluster.txn == cluster.seen.last
    assert cluster.written == ALL


@given(scripts)
def test_an_event_loop_does_the_same(script: dict[str, list[StelaeError | int]]) -> None:
    one = Cluster({shard: list(outcomes) for shard, outcomes in script.items()})
    other = Cluster({shard: list(outcomes) for shard, outcomes in script.items()})
    results = [_outcome(one.put), _outcome(lambda: asyncio.run(_without_rest(other)))]
    assert results[0] == results[1]
    assert one.written == other.written


async def _without_rest(cluster: Cluster) -> Txn:
    async def rest(seconds: float) -> None:
        cluster.clock.advance(seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "sleep", rest)
        return await cluster.put_on_loop()


def _outcome(write: Callable[[], Txn]) -> object:
    try:
        return write()
    except StelaeError as error:
        return type(error), str(error)


def test_of_what_nothing_is_durable_all_is_sent_again() -> None:
    cluster = Cluster({shard: [FULL] for shard in ALL})
    cluster.put()
    assert (cluster.sent, cluster.made, cluster.written) == (2, 1, ALL)


def test_if_the_time_is_up_it_is_said_how_much_is_durable() -> None:
    cluster = Cluster({"n1/1": [Unavailable("no lease")] * 1_000}, seconds=2.0)
    with pytest.raises(PartialWrite, match=r"^4 of 6 rows are durable; then: no lease$") as told:
        cluster.put()
    assert told.value.durable == 4
    assert cluster.written == {shard: rows for shard, rows in ALL.items() if shard != "n1/1"}
    assert cluster.clock.monotonic_s() > 1.89, "less than a try may take was left"


def test_what_is_refused_for_good_ends_the_write() -> None:
    cluster = Cluster({"n1/1": [InvalidArgument("too wide")]})
    with pytest.raises(PartialWrite, match=r"^4 of 6 rows are durable; then: too wide$"):
        cluster.put()
    assert cluster.sent == 1


def test_of_two_counts_that_of_all_rows_is_told() -> None:
    """The shard has counted those of its own part that it has let in."""
    cluster = Cluster({"n1/0": [1]}, seconds=0.0)
    with pytest.raises(PartialWrite, match=r"^4 of 6 rows are durable; then: it is full$") as told:
        cluster.put()
    assert (told.value.durable, told.value.why) == (4, "it is full")


def _kept_by(error: BaseException) -> Iterator[object]:
    """All that lives as long as the error does, but for what the frames of its tracebacks have."""
    seen: set[int] = set()
    waiting: list[object] = [error]
    while waiting:
        found = [each for each in waiting if id(each) not in seen and not isinstance(each, _NOT_FOLLOWED)]
        seen.update(map(id, found))
        yield from found
        waiting = gc.get_referents(*found)


_NOT_FOLLOWED = (TracebackType, FrameType, FunctionType, ModuleType, type)


@pytest.mark.parametrize("on_loop", [False, True], ids=["plain", "on a loop"])
@pytest.mark.parametrize(
    "refusal", [InvalidArgument("too wide"), Unavailable("no lease")], ids=["refused for good", "until the time is up"]
)
def test_who_keeps_the_error_of_a_write_does_not_keep_what_was_not_written(
    refusal: StelaeError, *, on_loop: bool
) -> None:
    cluster = Cluster({"n1/1": [refusal] * 1_000}, seconds=2.0)
    with pytest.raises(PartialWrite) as told:
        cluster.put_in_one_way(on_loop=on_loop)
    error = told.value
    assert error.__cause__ is not None
    kept = [type(each).__name__ for each in _kept_by(error)]
    assert not {"OrderedBlock", "PartsLeft", "RecordBatch"}.intersection(kept)
    assert "PartsLeft" not in "".join(traceback.format_exception(error))


def test_what_is_unknown_of_one_part_is_asked_of_all_again() -> None:
    """They have numbers: shards that have done their part say so."""
    cluster = Cluster({"n1/1": [UnknownOutcome("lost")]}, seconds=2.0)
    cluster.put()
    assert cluster.sent == 2
    cluster = Cluster({"n1/1": [UnknownOutcome("lost")] * 1_000}, seconds=2.0)
    with pytest.raises(UnknownOutcome, match=r"^lost"):
        cluster.put()


def test_the_worst_of_several_errors_is_told() -> None:
    outcomes: dict[str, Txn | StelaeError]
    parts = ROUTES.cut_blocks(BLOCKS)
    outcomes = {"n1/0": InvalidArgument("a"), "n1/1": UnknownOutcome("b"), "n2/0": FULL}
    with pytest.raises(UnknownOutcome, match=r"^b$"):
        newest_written(parts, outcomes, SeenTime())
    outcomes = {"n1/0": InvalidArgument("a"), "n1/1": StaleSchema("b"), "n2/0": FULL}
    with pytest.raises(InvalidArgument, match=r"^a$"):
        newest_written(parts, outcomes, SeenTime())
    outcomes = {"n1/0": FULL, "n1/1": StaleSchema("b"), "n2/0": FULL}
    with pytest.raises(StaleSchema, match=r"^b$"):
        newest_written(parts, outcomes, SeenTime())


def test_of_an_old_schema_what_is_left_is_made_anew() -> None:
    cluster = Cluster({"n1/1": [StaleSchema("altered")], "n1/0": [FULL], "n2/0": [FULL]})
    cluster.put()
    assert (cluster.sent, cluster.made, cluster.written) == (2, 2, ALL)
    cluster = Cluster({"n1/1": [StaleSchema("altered")]})
    cluster.put()
    assert (cluster.sent, cluster.made, cluster.written) == (2, 2, ALL)


def test_a_full_shard_that_lets_nothing_in_is_no_part_of_a_write() -> None:
    cluster = Cluster({"n2/0": [PartialWrite("odd", 0)]})
    with pytest.raises(PartialWrite, match="5 of 6"):
        cluster.put()


def test_where_rows_are_may_not_be_known_for_a_while() -> None:
    """In the middle of a write, of which some is durable."""
    cluster = Cluster({"n1/1": [TabletAway("moved")]})
    cluster.unknown_places = [Unavailable("no master"), Unavailable("no master")]
    cluster.put()
    assert (cluster.written, cluster.unknown_places) == (ALL, [])


def test_the_rest_behind_a_part_is_cut_by_records() -> None:
    assert [rows_of(block) for block in blocks_behind(BLOCKS, 5)] == [[b"b2"]]
