"""Writes of several shards' rows: parts that were refused are sent again, and what is told in the end is true."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.client.calls.retries import Attempts
from stelae.client.remote.cluster.routes import TableRoutes
from stelae.client.remote.cluster.writes import Outcomes, Parts, write_parts, write_parts_on_loop
from stelae.model.errors import (
    InvalidArgument,
    Overloaded,
    PartialWrite,
    Retryable,
    StaleSchema,
    StelaeError,
    TabletAway,
    Unavailable,
    UnknownOutcome,
)
from stelae.model.ids import Row, Txn
from stelae.service.blocks import OrderedBlock, blocks_behind
from stelae.service.deadlines import Deadline
from stelae.sim.clock import SimClock
from stelae.sim.rng import SimRng
from tests.client.remote.cluster.test_routes import block_of, rows_of

ROUTES = TableRoutes((b"", b"b", b"c", b"d"), ("n1/0", "n1/1", "n2/0", "n1/0"))
BLOCKS = [block_of([Row(b"a1"), Row(b"b1"), Row(b"c1"), Row(b"d1")]), block_of([Row(b"a1"), Row(b"b2")])]


class Cluster:
    """Shards that do with each part that they are sent what the script says next, and then take all of it. An outcome
    is an error, or how many records are let in before the shard is full."""

    def __init__(self, script: dict[str, list[StelaeError | int]], seconds: float = 1e6) -> None:
        self.clock = SimClock()
        self.script = script
        self.deadline = Deadline(self.clock, seconds)
        self.attempts = Attempts(self.deadline, SimRng(1))
        self.written: dict[str, list[bytes]] = {}
        self.txn = 0
        self.sent = 0

    def write(self) -> Txn:
        return write_parts(BLOCKS, self.cut, self.send, self.attempts, self.clock.advance)

    async def write_on_loop(self) -> Txn:
        async def cut(left: Sequence[OrderedBlock]) -> Parts:
            return self.cut(left)

        async def send(parts: Parts) -> Outcomes:
            self.clock.advance(1.0)
            return self.send(parts)

        return await write_parts_on_loop(BLOCKS, cut, send, self.attempts)

    def cut(self, left: Sequence[OrderedBlock]) -> Parts:
        return ROUTES.cut_blocks(left)

    def send(self, parts: Parts) -> Outcomes:
        self.sent += 1
        return {shard: self._send_part(shard, part) for shard, part in parts.items()}

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
            return PartialWrite(f"the first {outcome} are durable; then: it is full", outcome)
        self.txn += 1
        return Txn(self.txn)


FULL = Overloaded("it is full")
ALL = {"n1/0": [b"a1", b"d1", b"a1"], "n1/1": [b"b1", b"b2"], "n2/0": [b"c1"]}

refusals: st.SearchStrategy[StelaeError | int] = st.sampled_from(
    [FULL, TabletAway("not here"), Unavailable("no lease"), 1, 0]
)
scripts = st.dictionaries(st.sampled_from(sorted(ALL)), st.lists(refusals, max_size=4))


@given(scripts)
def test_what_is_refused_is_sent_again_until_all_is_durable_once_and_in_order(
    script: dict[str, list[StelaeError | int]],
) -> None:
    cluster = Cluster(script)
    for _ in range(5):
        try:
            assert cluster.write() == cluster.txn
        except Retryable:
            assert cluster.written == {}, "only while nothing is durable the caller may begin again"
        else:
            break
    assert cluster.written == ALL


@given(scripts)
def test_an_event_loop_does_the_same(script: dict[str, list[StelaeError | int]]) -> None:
    one = Cluster({shard: list(outcomes) for shard, outcomes in script.items()})
    other = Cluster({shard: list(outcomes) for shard, outcomes in script.items()})
    results = [_outcome(one.write), _outcome(lambda: asyncio.run(_without_rest(other)))]
    assert results[0] == results[1]
    assert one.written == other.written


async def _without_rest(cluster: Cluster) -> Txn:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "sleep", _no_rest)
        return await cluster.write_on_loop()


async def _no_rest(_: float) -> None:
    return


def _outcome(write: Callable[[], Txn]) -> object:
    try:
        return write()
    except StelaeError as error:
        return type(error), str(error)


def test_while_nothing_is_durable_the_caller_tries_again() -> None:
    cluster = Cluster({shard: [FULL] for shard in ALL})
    with pytest.raises(Overloaded):
        cluster.write()
    assert cluster.sent == 1


def test_if_the_time_is_up_it_is_said_how_much_is_durable() -> None:
    cluster = Cluster({"n1/1": [Unavailable("no lease")] * 1_000}, seconds=2.0)
    with pytest.raises(UnknownOutcome, match="4 of 6 records are durable, nothing happened of the others: no lease"):
        cluster.write()
    assert cluster.written == {shard: rows for shard, rows in ALL.items() if shard != "n1/1"}
    assert cluster.deadline.left_s < 0.11, "less than a try may take"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (UnknownOutcome("lost"), r"^4 of 6 records are durable, the others may be: lost$"),
        (InvalidArgument("too wide"), r"^4 of 6 records are durable, nothing happened of the others: too wide$"),
    ],
)
def test_what_cannot_be_repeated_ends_the_write(error: StelaeError, told: str) -> None:
    cluster = Cluster({"n1/1": [error]})
    with pytest.raises(UnknownOutcome, match=told):
        cluster.write()


def test_the_worst_of_several_errors_is_told() -> None:
    cluster = Cluster({"n1/0": [InvalidArgument("a")], "n1/1": [UnknownOutcome("b")], "n2/0": [FULL]})
    with pytest.raises(UnknownOutcome, match=r"^b$"):
        cluster.write()
    cluster = Cluster({"n1/0": [InvalidArgument("a")], "n1/1": [StaleSchema("b")], "n2/0": [FULL]})
    with pytest.raises(InvalidArgument, match=r"^a$"):
        cluster.write()


def test_of_an_old_schema_all_is_made_anew_unless_some_is_durable() -> None:
    with pytest.raises(StaleSchema, match="altered"):
        Cluster({"n1/1": [StaleSchema("altered")], "n1/0": [FULL], "n2/0": [FULL]}).write()
    with pytest.raises(UnknownOutcome, match="4 of 6 records are durable, nothing happened of the others: altered"):
        Cluster({"n1/1": [StaleSchema("altered")]}).write()


def test_a_full_shard_that_lets_nothing_in_is_no_part_of_a_write() -> None:
    cluster = Cluster({"n2/0": [PartialWrite("odd", 0)]})
    with pytest.raises(UnknownOutcome, match="5 of 6"):
        cluster.write()


def test_where_rows_are_may_not_be_known_for_a_while() -> None:
    """In the middle of a write, of which some is durable."""
    cluster = Cluster({"n1/1": [TabletAway("moved")]})
    failures = [Unavailable("no master"), Unavailable("no master")]

    def cut(left: Sequence[OrderedBlock]) -> Parts:
        if cluster.sent and failures:
            raise failures.pop()
        return ROUTES.cut_blocks(left)

    write_parts(BLOCKS, cut, cluster.send, cluster.attempts, cluster.clock.advance)
    assert (cluster.written, failures) == (ALL, [])


def test_the_rest_behind_a_part_is_cut_by_records() -> None:
    assert [rows_of(block) for block in blocks_behind(BLOCKS, 5)] == [[b"b2"]]
