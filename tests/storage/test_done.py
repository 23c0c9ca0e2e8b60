"""The table of done writes against a model that forgets nothing: what comes again is known, or refused as unknown."""

from __future__ import annotations

from random import Random
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.model.errors import InvalidArgument, UnknownOutcome
from stelae.model.hybrid import pack
from stelae.model.ids import ClientId, Txn
from stelae.model.ids import Sequence as Number
from stelae.model.once import PLACES_MAX, WINDOW_MS, Once, block_of, call_of, place_of, sequence_of
from stelae.storage.log import done as module
from stelae.storage.log.done import KEPT_MS, DoneInPart, DoneWrites, SavedDone, done_of

NOW_MS = 1_700_000_000_000
LANE = ClientId(7)


def _once(call: int, block: int = 0, place: int = 0, age_ms: int = 0, client: int = LANE) -> Once:
    return Once(ClientId(client), Number(sequence_of(call, block) + place), age_ms)


def _note(done: DoneWrites, once: Once, count: int, txn: int) -> None:
    done.note(once.client, once.sequence, count, Txn(txn))


def _at(ms: int) -> Txn:
    return pack(NOW_MS + ms)


def _runs(done: DoneWrites) -> int:
    return sum(len(lane.runs) for lane in done.saved().lanes)


def test_a_number_says_call_block_and_place() -> None:
    sequence = _once(5, 3, 11).sequence
    assert (call_of(sequence), block_of(sequence), place_of(sequence)) == (5, 3, 11)
    assert _once(5, 3).behind(11).sequence == sequence
    assert sequence_of(2**23 - 1, 2**16 - 1) + PLACES_MAX - 1 == 2**63 - 1


def test_what_was_done_is_answered_with_its_txn_and_what_was_not_is_let_in() -> None:
    done = DoneWrites()
    assert done.find(_once(1), 1, NOW_MS) == ()
    _note(done, _once(1), 1, _at(0))
    assert done.find(_once(1, age_ms=5), 1, NOW_MS) == (_at(0),)
    assert done.find(_once(2), 1, NOW_MS) == ()
    assert done.find(_once(1, client=8), 1, NOW_MS) == ()


def test_what_comes_after_a_later_call_of_its_lane_is_over() -> None:
    done = DoneWrites()
    _note(done, _once(1), 1, _at(0))
    _note(done, _once(2), 1, _at(1))
    with pytest.raises(UnknownOutcome, match="over"):
        done.find(_once(1, age_ms=5), 1, NOW_MS)
    assert _runs(done) == 1


def test_a_block_of_which_a_part_is_done_is_cut_there() -> None:
    """Rows a to m were written on one side of a split, and those after it were not when both were joined again."""
    done = DoneWrites()
    _note(done, _once(1, 0, 0), 12, _at(0))
    with pytest.raises(DoneInPart) as found:
        done.find(_once(1), 26, NOW_MS)
    assert found.value.places == 12
    assert done.find(_once(1, 0, 12, age_ms=1), 14, NOW_MS) == ()
    _note(done, _once(1, 0, 12), 14, _at(9))
    assert done.find(_once(1), 26, NOW_MS) == (_at(0), _at(9))
    assert done.find(_once(1, 0, 5), 3, NOW_MS) == (_at(0),)


def test_the_end_of_a_block_may_be_done_before_its_beginning() -> None:
    done = DoneWrites()
    _note(done, _once(1, 0, 12), 14, _at(0))
    with pytest.raises(DoneInPart) as found:
        done.find(_once(1), 26, NOW_MS)
    assert found.value.places == 12


def test_what_has_failed_was_never_done() -> None:
    done = DoneWrites()
    _note(done, _once(1), 3, _at(0))
    done.take_back(LANE, _once(1).sequence, _at(0))
    assert done.find(_once(1, age_ms=3), 3, NOW_MS) == ()
    assert _runs(done) == 0
    done.take_back(ClientId(9), _once(1).sequence, _at(0))


def test_a_write_that_is_older_than_the_window_is_refused() -> None:
    done = DoneWrites()
    _note(done, _once(1), 1, _at(0))
    with pytest.raises(UnknownOutcome, match="first sent"):
        done.find(_once(1, age_ms=WINDOW_MS + 1), 1, NOW_MS)


def test_lanes_that_are_silent_go_and_who_may_be_among_them_is_refused() -> None:
    done = DoneWrites()
    _note(done, _once(1), 1, _at(0))
    _note(done, _once(1, client=8), 1, _at(KEPT_MS - 1))
    assert done.find(_once(1, age_ms=1), 1, NOW_MS + KEPT_MS) == (_at(0),)
    _note(done, _once(1, client=9), 1, _at(KEPT_MS + 1))
    assert done.forgotten == _at(0)
    assert done.find(_once(2, age_ms=1), 1, NOW_MS + KEPT_MS + 1) == ()
    with pytest.raises(UnknownOutcome, match="too much"):
        done.find(_once(1, age_ms=WINDOW_MS), 1, NOW_MS + KEPT_MS - 1)


def test_too_many_lanes_push_out_the_oldest_and_nothing_is_done_twice() -> None:
    done = DoneWrites()
    with mock.patch.object(module, "LANES_MAX", 4):
        for client in range(1, 10):
            _note(done, _once(1, client=client), 1, _at(client))
    assert done.forgotten == _at(5)
    assert done.find(_once(1, age_ms=2, client=9), 1, NOW_MS + 10) == (_at(9),)
    for client in range(1, 6):
        with pytest.raises(UnknownOutcome):
            done.find(_once(1, age_ms=10, client=client), 1, NOW_MS + 10)
    assert done.find(_once(1, client=100), 1, NOW_MS + 10) == (), "a write that comes for the first time is let in"


def test_too_many_blocks_of_a_call_push_out_its_first() -> None:
    done = DoneWrites()
    with mock.patch.object(module, "RUNS_MAX", 3):
        for block in range(6):
            _note(done, _once(1, block), 2, _at(block))
    for block in range(3):
        with pytest.raises(UnknownOutcome, match="blocks"):
            done.find(_once(1, block, age_ms=1), 2, NOW_MS)
    for block in range(3, 6):
        assert done.find(_once(1, block, age_ms=1), 2, NOW_MS) == (_at(block),)
    assert done_of(done.saved()).saved() == done.saved()


def test_a_block_of_which_the_log_does_not_know_the_places_is_unknown_after_a_restart() -> None:
    done = DoneWrites()
    done.note(LANE, Number(_once(1, 2).sequence | (PLACES_MAX - 1)), 1, _at(0))
    with pytest.raises(UnknownOutcome):
        done.find(_once(1, 2, age_ms=1), 3, NOW_MS)
    assert done.find(_once(1, 3, age_ms=1), 3, NOW_MS) == ()


def test_a_number_out_of_bounds_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="places"):
        DoneWrites().find(_once(1, 0, PLACES_MAX - 2), 2, NOW_MS)


def test_a_config_leaves_out_what_is_not_decided() -> None:
    done = DoneWrites()
    _note(done, _once(1, 0), 1, _at(0))
    _note(done, _once(1, 1), 1, _at(1))
    saved = done.saved({_at(1)})
    again = done_of(saved)
    assert again.find(_once(1, 0, age_ms=1), 1, NOW_MS) == (_at(0),)
    assert again.find(_once(1, 1, age_ms=1), 1, NOW_MS) == ()
    assert msgspec.json.decode(msgspec.json.encode(saved), type=SavedDone) == saved


class _Model:
    """Tablets of one table, each with a table of done writes, beside what really happened to each place. A program
    writes blocks of ten places along three lanes; places below the tablets' bounds lie in one or the other."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now_ms = NOW_MS
        self.tablets: dict[tuple[int, int], DoneWrites] = {(0, 10): DoneWrites()}
        self.written: dict[tuple[int, int, int, int], list[Txn]] = {}
        self.calls = dict.fromkeys((1, 2, 3), 1)
        self.sent: dict[tuple[int, int], int] = {}
        self.txn = pack(NOW_MS)

    def step(self) -> None:
        random = self.random
        self.now_ms += random.choice((1, 1, 1, WINDOW_MS // 3))
        match random.randrange(9):
            case 0:
                self._split()
            case 1:
                self._join()
            case 2:
                client = random.choice(list(self.calls))
                self.calls[client] += 1
            case 3:
                bounds = random.choice(list(self.tablets))
                self.tablets[bounds] = done_of(self.tablets[bounds].saved())
            case _:
                self._send()

    def _split(self) -> None:
        start, stop = self.random.choice(list(self.tablets))
        if stop - start > 1:
            at = self.random.randrange(start + 1, stop)
            done = self.tablets.pop((start, stop))
            self.tablets[start, at], self.tablets[at, stop] = done.copy(), done.copy()

    def _join(self) -> None:
        bounds = sorted(self.tablets)
        if len(bounds) > 1:
            at = self.random.randrange(len(bounds) - 1)
            left, right = bounds[at], bounds[at + 1]
            both = done_of(self.tablets.pop(left).saved(), self.tablets.pop(right).saved())
            self.tablets[left[0], right[1]] = both

    def _send(self) -> None:
        """A block, or again; some of its parts get there."""
        client = self.random.choice(list(self.calls))
        call, block = self.calls[client], self.random.randrange(3)
        first_ms = self.sent.setdefault((client, call), self.now_ms)
        age_ms = self.now_ms - first_ms
        for (start, stop), done in sorted(self.tablets.items()):
            if self.random.randrange(3):
                self._let_in(done, Once(ClientId(client), sequence_of(call, block), age_ms), start, stop)

    def _let_in(self, done: DoneWrites, whole: Once, start: int, stop: int) -> None:
        once = whole.behind(start)
        keys = [
            (whole.client, call_of(whole.sequence), block_of(whole.sequence), place) for place in range(start, stop)
        ]
        try:
            found = done.find(once, stop - start, self.now_ms)
        except DoneInPart as part:
            middle = start + part.places
            assert start < middle < stop
            self._let_in(done, whole, start, middle)
            self._let_in(done, whole, middle, stop)
            return
        except UnknownOutcome:
            return
        if found:
            assert all(self.written.get(key) for key in keys), f"told to be done, and is not: {keys}"
            assert max(found) == max(self.written[key][0] for key in keys)
            return
        self.txn = Txn(max(self.txn + 1, pack(self.now_ms)))
        for key in keys:
            assert key not in self.written, f"done twice: {key}"
            self.written[key] = [self.txn]
        _note(done, once, stop - start, self.txn)


def _run(seed: int, lanes_max: int, runs_max: int) -> None:
    with mock.patch.object(module, "LANES_MAX", lanes_max), mock.patch.object(module, "RUNS_MAX", runs_max):
        model = _Model(Random(seed))
        for _ in range(60):
            model.step()


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([(2, 3), (2_048, 512)]))
def test_no_place_is_written_twice_nor_told_to_be_written_when_it_is_not(seed: int, bounds: tuple[int, int]) -> None:
    _run(seed, *bounds)


def _forget_nothing_of(_: Any, __: Any) -> bool:
    return False


@pytest.mark.parametrize("slip", ["forgotten", "floor", "places", "lanes"])
def test_the_model_finds_tables_that_forget_what_they_forgot(slip: str) -> None:
    planted: Any = {
        "forgotten": mock.patch.object(DoneWrites, "_may_be_forgotten", _forget_nothing_of),
        "floor": mock.patch.object(module._Lane, "trim", _trim_silently),
        "places": mock.patch.object(module, "_covering", _take_a_part_for_all),
        "lanes": mock.patch.object(DoneWrites, "take_lane", return_value=None),
    }[slip]
    with planted, pytest.raises(AssertionError, match=r"done twice|told to be done"):
        _run_many()


def _run_many() -> None:
    for seed in range(300):
        _run(seed, 2, 3)


def _take_a_part_for_all(runs: list[module.Run], _: int, __: int) -> tuple[Txn, ...]:
    """As if what is done were known by the block alone: after a join, rows that nobody wrote count as written."""
    return tuple(run.txn for run in runs)


def _trim_silently(lane: Any, most: int) -> int:
    gone = 0
    while lane.count > most:
        less = len(lane.blocks.pop(min(lane.blocks)))
        lane.count -= less
        gone += less
    return gone


def test_a_lane_that_went_and_came_back_does_not_hide_that_it_went() -> None:
    """A call's first block was noted, its lane made room for others, and its next block made the lane anew."""
    done = DoneWrites()
    _note(done, _once(1), 10, _at(0))
    for client in range(module.LANES_MAX):
        _note(done, _once(1, client=100 + client), 1, _at(1))
    assert done.find(_once(1, 1), 10, NOW_MS + 2_000) == ()
    _note(done, _once(1, 1), 10, _at(2_000))
    with pytest.raises(UnknownOutcome, match="too much"):
        done.find(_once(1, age_ms=5_000), 10, NOW_MS + 3_000)
    assert done.find(_once(1, 1, age_ms=1_000), 10, NOW_MS + 3_000) == (_at(2_000),)
