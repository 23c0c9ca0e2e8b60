"""Numbers of writes: what is sent again has the one it had, and a call that ends in doubt ends as unknown."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from stelae.client.calls.lanes import Lanes, Numbering
from stelae.client.calls.steps import Write
from stelae.format.block import SmallBlock
from stelae.model.errors import (
    Conflict,
    InvalidArgument,
    Overloaded,
    PartialWrite,
    StaleSchema,
    StelaeError,
    UnknownOutcome,
)
from stelae.model.ids import ColumnId, Row, SchemaVersion, TableId
from stelae.model.mutation import Put
from stelae.model.once import CALLS_MAX, Once, block_of, call_of, place_of
from stelae.service.blocks import OrderedBlock, blocks_behind
from stelae.sim.clock import SimClock
from stelae.sim.rng import SimRng

LOST = UnknownOutcome("lost")


def _block(count: int) -> OrderedBlock:
    puts = tuple(Put(Row(bytes([at])), ((ColumnId(1), at),)) for at in range(count))
    return OrderedBlock(SmallBlock(SchemaVersion(1), puts))


def _step(*counts: int) -> Write:
    return Write(TableId(1), [_block(count) for count in counts])


def _numbers(step: Write) -> list[Once]:
    return [block.once for block in step.blocks if block.once is not None]


class _Program:
    def __init__(self) -> None:
        self.clock = SimClock()
        self.lanes = Lanes(SimRng(1))

    def call(self) -> Numbering:
        return Numbering(self.lanes, self.clock)


def test_each_call_has_a_number_and_each_block_its_own() -> None:
    program = _Program()
    numbering, step = program.call(), _step(2, 3)
    numbering.number(step)
    first, second = _numbers(step)
    assert first.client == second.client > 0
    assert [(call_of(each.sequence), block_of(each.sequence), each.age_ms) for each in (first, second)] == [
        (1, 0, 0),
        (1, 1, 0),
    ]
    numbering.note_done()
    numbering.end()
    later, then = program.call(), _step(1)
    later.number(then)
    (third,) = _numbers(then)
    assert (third.client, call_of(third.sequence)) == (first.client, 2), "the lane was free again"


def test_calls_at_once_have_lanes_of_their_own() -> None:
    program, seen = _Program(), set()
    for _ in range(3):
        numbering, step = program.call(), _step(1)
        numbering.number(step)
        seen.add(_numbers(step)[0].client)
    assert len(seen) == 3


def test_what_is_sent_again_has_its_number_and_says_how_old_it_is() -> None:
    program = _Program()
    numbering, step = program.call(), _step(2)
    numbering.number(step)
    (first,) = _numbers(step)
    assert numbering.judge(step, Overloaded("full")).args == ("full",)
    numbering.number(step)
    assert _numbers(step) == [first], "nothing happened so far"
    assert numbering.judge(step, LOST) is LOST
    program.clock.advance(1.5)
    numbering.number(step)
    assert _numbers(step) == [first._replace(age_ms=1_500)]


def test_the_rest_of_a_write_keeps_its_places() -> None:
    program = _Program()
    numbering, step = program.call(), _step(4, 2)
    numbering.number(step)
    with pytest.raises(PartialWrite):
        numbering.judge(step, PartialWrite("half", 3))
    step.blocks = blocks_behind(step.blocks, 3)
    numbering.number(step)
    assert [(block_of(each.sequence), place_of(each.sequence)) for each in _numbers(step)] == [(0, 3), (1, 0)]


def test_blocks_that_are_made_anew_in_doubt_keep_their_numbers_or_are_not_sent() -> None:
    program = _Program()
    numbering, step = program.call(), _step(2, 3)
    numbering.number(step)
    sent = _numbers(step)
    numbering.judge(step, LOST)
    with pytest.raises(StaleSchema):
        numbering.judge(step, StaleSchema("altered"))
    anew = _step(2, 3)
    numbering.number(anew)
    assert [each.sequence for each in _numbers(anew)] == [each.sequence for each in sent]
    with pytest.raises(UnknownOutcome, match="altered"):
        numbering.number(_step(5))


def test_without_doubt_what_is_made_anew_is_another_write() -> None:
    program = _Program()
    numbering, step = program.call(), _step(1)
    numbering.number(step)
    with pytest.raises(StaleSchema):
        numbering.judge(step, StaleSchema("altered"))
    anew = _step(1)
    numbering.number(anew)
    assert [call_of(each.sequence) for each in (*_numbers(step), *_numbers(anew))] == [1, 2]


@pytest.mark.parametrize("error", [Overloaded("full"), InvalidArgument("no"), PartialWrite("half", 1)], ids=repr)
def test_a_call_that_ends_in_doubt_ends_as_unknown(error: StelaeError) -> None:
    program = _Program()
    numbering, step = program.call(), _step(1)
    numbering.number(step)
    assert numbering.told(error) is error
    numbering.judge(step, LOST)
    told = numbering.told(error)
    assert type(told) is UnknownOutcome
    assert str(told).startswith("lost; it was sent again, and then: ")
    numbering.note_done()
    assert numbering.told(error) is error


def test_a_mistake_of_the_far_side_is_not_met_again() -> None:
    numbering, step = _Program().call(), _step(1)
    numbering.number(step)
    fault = UnknownOutcome("a mistake", is_fault=True)
    with pytest.raises(UnknownOutcome) as caught:
        numbering.judge(step, fault)
    assert numbering.told(caught.value) is fault


def test_a_conflict_leaves_no_doubt() -> None:
    numbering, step = _Program().call(), _step(1)
    numbering.number(step)
    numbering.judge(step, LOST)
    with pytest.raises(Conflict):
        numbering.judge(step, Conflict("changed"))
    assert not numbering.is_in_doubt


def test_what_has_no_number_is_not_sent_again() -> None:
    numbering, step = _Program().call(), _step(1)
    with pytest.raises(UnknownOutcome):
        numbering.judge(step, LOST)


def test_a_lane_that_is_used_up_is_not_used_again() -> None:
    program = _Program()
    lane = program.lanes.take()
    lane.calls = CALLS_MAX - 1
    program.lanes.give(lane)
    assert program.lanes.take() is not lane


def test_a_block_keeps_its_number_when_it_is_cut() -> None:
    numbering, step = _Program().call(), _step(4)
    numbering.number(step)
    (rest,) = blocks_behind(step.blocks, 1)
    assert rest.once == replace(step.blocks[0]).once.behind(1)  # type: ignore[union-attr]
