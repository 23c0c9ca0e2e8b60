"""Which shard has which rows: what is cut by routes is whole, in order, and at the shard that has it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.client.remote.cluster.routes import TableRoutes, routes_of
from stelae.format.block import SmallBlock
from stelae.model.errors import Unavailable
from stelae.model.ids import Row, SchemaVersion, TableId
from stelae.model.mutation import Put
from stelae.model.ranges import RangeSet, RowRange
from stelae.registry.control_operations import TableLocation
from stelae.service.blocks import OrderedBlock

SHARDS = ("n1/0", "n1/1", "n2/0")
TABLE = TableId(16)

rows = st.binary(max_size=2).map(Row)
locations = st.builds(
    lambda starts, servers: TableLocation(TABLE, tuple(zip([Row(b""), *sorted(starts)], servers, strict=False)), ()),
    st.sets(rows.filter(bool), max_size=12),
    st.lists(st.sampled_from(SHARDS), min_size=13, max_size=13),
)
range_sets = st.lists(st.tuples(rows, rows | st.none()), max_size=4).map(
    lambda pairs: RangeSet.of([RowRange(start, stop) for start, stop in pairs])
)


def block_of(given_rows: Sequence[Row]) -> OrderedBlock:
    return OrderedBlock(SmallBlock(SchemaVersion(1), tuple(Put(row, ()) for row in given_rows)))


def rows_of(block: OrderedBlock) -> list[bytes]:
    assert isinstance(block.block, SmallBlock)
    return [mutation.row for mutation in block.block.mutations]


def server_of(location: TableLocation, row: bytes) -> str:
    """As the tablets say, one by one."""
    return [server for start, server in location.tablets if start <= row][-1]


@given(locations, st.lists(rows, max_size=20))
def test_each_row_is_asked_of_the_shard_that_has_it(location: TableLocation, asked: list[Row]) -> None:
    routes = routes_of(location)
    cut = routes.cut_rows(asked)
    assert sorted(place for places in cut.values() for place in places) == list(range(len(asked)))
    assert all(server_of(location, asked[place]) == shard for shard, places in cut.items() for place in places)
    assert {server for _, server in location.tablets} == set(routes.shards)
    assert all(a != b for a, b in zip(routes.servers, routes.servers[1:], strict=False)), "neighbours are one route"


@given(locations, st.lists(st.lists(rows, min_size=1, max_size=8, unique=True).map(sorted), max_size=5))
def test_blocks_are_cut_where_another_shard_begins(location: TableLocation, blocks: list[list[Row]]) -> None:
    cut = routes_of(location).cut_blocks([block_of(block) for block in blocks])
    for shard, parts in cut.items():
        expected = [row for block in blocks for row in block if server_of(location, row) == shard]
        assert [row for part in parts for row in rows_of(part)] == expected, "each shard's, in the order they came in"
    assert sum(part.count for parts in cut.values() for part in parts) == sum(map(len, blocks))


@given(locations, range_sets, st.booleans())
def test_ranges_are_cut_in_the_order_of_the_scan(location: TableLocation, asked: RangeSet, reverse: bool) -> None:
    routes = routes_of(location)
    cut = list(routes.cut_ranges(asked, reverse=reverse))
    assert RangeSet.of([each for _, part in cut for each in part]) == asked
    starts = [part.ranges[0].start for _, part in cut]
    assert starts == sorted(starts, reverse=reverse)
    for shard, part in cut:
        for each in part:
            assert server_of(location, each.start) == shard
            first = routes.shard_of(each.start)
            inside = [start for start, _ in location.tablets if start in each]
            assert all(server_of(location, start) == first for start in inside)


def test_of_one_shard_nothing_is_cut() -> None:
    routes = TableRoutes((b"",), ("n1/0",))
    block = block_of([Row(b"a"), Row(b"z")])
    assert routes.cut_blocks([block]) == {"n1/0": [block]}
    assert routes.cut_blocks([block])["n1/0"][0] is block


@pytest.mark.parametrize(
    "starts", [[], [b"a"], [b"", b"b", b"a"], [b"", b"a", b"a"]], ids=["none", "gap", "disorder", "twice"]
)
def test_what_makes_no_sense_is_asked_again(starts: list[bytes]) -> None:
    tablets = tuple((Row(start), SHARDS[place % 3]) for place, start in enumerate(starts))
    with pytest.raises(Unavailable, match="does not know where all of its rows are"):
        routes_of(TableLocation(TABLE, tablets, ()))
