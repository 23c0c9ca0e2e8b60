"""Which numbered writes a tablet has done, so that one that comes again is answered and not done twice.

What is noted are facts about a block that some program sent: *places 0 to 12 of block 3 of call 7 of lane L were
written at txn T*. They are true wherever they are noted, so both sides of a split have those of the tablet, a join has
those of both sides, and noting one twice changes nothing.

A fact is needed until its call is over. A lane begins its next call when the one before has ended, so whatever is noted
of a later call takes the place of all that was noted of earlier ones; those that come late are refused. Lanes that are
silent go after `KEPT_MS`, and before that if there are too many; blocks of one call if those are. What goes before its
time is remembered in sum (`forgotten`, a lane's `floor`): a write that might be among it is refused as unknown. It may
then be done or not, but it is never done twice, and never told to be done when it is not.

Pure but for the tables themselves; under the shard's lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

import msgspec

from stelae.format.block import Block, SmallBlock
from stelae.model.errors import InvalidArgument, UnknownOutcome
from stelae.model.hybrid import TXN_MIN, millis_of
from stelae.model.ids import ClientId, Sequence, Txn
from stelae.model.once import PLACES_MAX, WINDOW_MS, Once, block_of, call_of, place_of

KEPT_MS = 2 * WINDOW_MS
"""Twice as long as a write may come again: for the time it was on its way, and clocks that do not agree."""

LANES_MAX = 2_048
RUNS_MAX = 512
"""Of a lane. A run is a few numbers: a tablet's table takes some 200 KB in its config at the very most."""
ALL_RUNS_MAX = 4_096

_ANY_PLACE = PLACES_MAX - 1
"""In the log, of a block of which not all was left to write when it was let in: which of its places the record stands
for is not known from its payload. After a restart the block counts as forgotten."""


class DoneInPart(UnknownOutcome):
    """The first `places` of a part are done and the next are not, or the other way round: to be cut there."""

    def __init__(self, places: int) -> None:
        super().__init__("a part of the write is done")
        self.places = places


class Run(NamedTuple):
    """Places of a block, from `start` to before `stop`, that were written at a txn."""

    start: int
    stop: int
    txn: Txn


class SavedLane(msgspec.Struct, frozen=True, array_like=True):
    """`runs`: block, start, stop, txn."""

    client: int
    call: int
    floor: int
    last: int
    runs: tuple[tuple[int, int, int, int], ...]


class SavedDone(msgspec.Struct, frozen=True, array_like=True):
    """As it lies in a tablet's config."""

    forgotten: int = 0
    lanes: tuple[SavedLane, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.forgotten or self.lanes)


NOTHING_DONE = SavedDone()


class _Lane:
    """`blocks`: of the call, the runs of each block, in the order of their places. `floor`: what was noted of blocks
    below it may be forgotten. `last`: the greatest txn of all."""

    __slots__ = ("blocks", "call", "count", "floor", "last")

    def __init__(self, call: int) -> None:
        self.call = call
        self.floor = 0
        self.last = TXN_MIN
        self.count = 0
        self.blocks: dict[int, list[Run]] = {}

    def begin(self, call: int) -> None:
        self.call, self.floor, self.count, self.blocks = call, 0, 0, {}

    def add(self, block: int, run: Run) -> int:
        """How many runs there are more."""
        self.last = max(self.last, run.txn)
        if block < self.floor or run in (runs := self.blocks.setdefault(block, [])):
            return 0
        runs.append(run)
        runs.sort()
        self.count += 1
        return 1

    def trim(self, runs_max: int) -> int:
        """Forget the first blocks; how many runs went."""
        gone = 0
        while self.count > runs_max:
            gone += self.raise_floor(min(self.blocks) + 1)
        return gone

    def raise_floor(self, floor: int) -> int:
        """Forget what is below; how many runs went."""
        if floor <= self.floor:
            return 0
        self.floor = floor
        below = [self.blocks.pop(block) for block in [block for block in self.blocks if block < floor]]
        gone = sum(map(len, below))
        self.count -= gone
        return gone


class DoneWrites:
    """See the module. One for all states of a tablet."""

    __slots__ = ("_count", "_lanes", "forgotten")

    def __init__(self, forgotten: Txn = TXN_MIN) -> None:
        self.forgotten = forgotten
        """Of lanes that are gone, the greatest txn."""
        self._lanes: dict[ClientId, _Lane] = {}
        """Those that were heard of last come last."""
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._lanes)

    # -- a write comes

    def find(self, once: Once, count: int, now_ms: int) -> tuple[Txn, ...]:
        """The txns at which this write of so many places was done; none if it was not, and may be let in. DoneInPart if
        it is to be cut first. UnknownOutcome if it is not known any more, or is over."""
        if once.age_ms > WINDOW_MS:
            raise UnknownOutcome(
                f"it was first sent {once.age_ms // 1_000} s ago, and what was done is known for {WINDOW_MS // 1_000} s"
            )
        lane = self._lanes.get(once.client)
        call, block, start = call_of(once.sequence), block_of(once.sequence), place_of(once.sequence)
        if start + count > _ANY_PLACE:
            raise InvalidArgument(f"a numbered block has at most {_ANY_PLACE} places, not {start + count}")
        found: tuple[Txn, ...] = ()
        if lane is not None and call <= lane.call:
            if call < lane.call:
                raise UnknownOutcome("it came after a later write of the same program, for which it was over")
            if block < lane.floor:
                raise UnknownOutcome("it is of a call of too many blocks to know which of them are done")
            runs = lane.blocks.get(block)
            found = () if runs is None else _covering(runs, start, start + count)
        if not found and once.age_ms and self._may_be_forgotten(now_ms - once.age_ms):
            # Also of a lane that is there: it may have gone, and come back with a later block of the same call.
            raise UnknownOutcome("its tablet was asked for too much meanwhile to know whether it is done")
        return found

    def _may_be_forgotten(self, since_ms: int) -> bool:
        """Whether what was first sent then may be among what is gone. It may have been on its way for a while."""
        return self.forgotten > TXN_MIN and millis_of(self.forgotten) >= since_ms - WINDOW_MS

    def note(self, client: ClientId, sequence: Sequence, count: int, txn: Txn) -> None:
        """So many places, from the number's own on, are written at a txn. If they fail, it is to be taken back."""
        call, start = call_of(sequence), place_of(sequence)
        lane = self._lanes.pop(client, None)
        if lane is None:
            lane = _Lane(call)
        self._lanes[client] = lane
        if call > lane.call:
            self._count -= lane.count
            lane.begin(call)
        if call == lane.call and start == _ANY_PLACE:
            lane.last = max(lane.last, txn)
            self._count -= lane.raise_floor(block_of(sequence) + 1)
        elif call == lane.call:
            self._count += lane.add(block_of(sequence), Run(start, start + count, txn))
            if lane.count > RUNS_MAX:
                self._count -= lane.trim(RUNS_MAX)
        if len(self._lanes) > 1:
            self._forget(millis_of(txn) - KEPT_MS)

    def take_back(self, client: ClientId, sequence: Sequence, txn: Txn) -> None:
        """Forget a request that was noted as done when its record was queued, and whose record then failed."""
        lane = self._lanes.get(client)
        if lane is None or call_of(sequence) != lane.call:
            return
        block = block_of(sequence)
        runs = lane.blocks.get(block, [])
        left = [run for run in runs if run.txn != txn]
        self._count -= len(runs) - len(left)
        lane.count -= len(runs) - len(left)
        if left:
            lane.blocks[block] = left
        else:
            lane.blocks.pop(block, None)

    def _forget(self, before_ms: int) -> None:
        """Lanes that are silent for too long, or too many."""
        while self._lanes:
            client, lane = next(iter(self._lanes.items()))
            is_much = len(self._lanes) > LANES_MAX or self._count > ALL_RUNS_MAX
            if len(self._lanes) == 1 or not (is_much or millis_of(lane.last) < before_ms):
                return
            del self._lanes[client]
            self._count -= lane.count
            self.forgotten = max(self.forgotten, lane.last)

    # -- as other tablets have it, and configs

    def saved(self, undecided: Collection[Txn] = ()) -> SavedDone:
        """Without what is not decided, which the log has."""
        if not self._lanes and self.forgotten == TXN_MIN:
            return NOTHING_DONE
        lanes = [
            SavedLane(
                client,
                lane.call,
                lane.floor,
                lane.last,
                tuple((block, *run) for block, runs in lane.blocks.items() for run in runs if run.txn not in undecided),
            )
            for client, lane in self._lanes.items()
        ]
        return SavedDone(self.forgotten, tuple(lanes))

    def copy(self) -> DoneWrites:
        return done_of(self.saved())

    def take_lane(self, saved: SavedLane) -> None:
        """Note what another table says of a lane."""
        client = ClientId(saved.client)
        lane = self._lanes.pop(client, None)
        if lane is None:
            lane = _Lane(saved.call)
        self._lanes[client] = lane
        if saved.call > lane.call:
            self._count -= lane.count
            lane.begin(saved.call)
        lane.last = max(lane.last, Txn(saved.last))
        if saved.call == lane.call:
            self._count -= lane.raise_floor(saved.floor)
            for block, start, stop, txn in saved.runs:
                self._count += lane.add(block, Run(start, stop, Txn(txn)))
        self._forget(0)


def done_of(*saved: SavedDone) -> DoneWrites:
    """What one or several tables say."""
    done = DoneWrites(max((Txn(each.forgotten) for each in saved), default=TXN_MIN))
    lanes = [lane for each in saved for lane in each.lanes]
    for lane in sorted(lanes, key=lambda lane: lane.last) if len(saved) > 1 else lanes:
        done.take_lane(lane)
    return done


def count_places(block: Block) -> int:
    """How many there are to be done of a block."""
    return len(block.mutations) if isinstance(block, SmallBlock) else block.batch.num_rows


def logged_number(once: Once, block: Block, places: int) -> tuple[ClientId, Sequence]:
    """What the log says of a write of so many places, of which the block is what is left."""
    if count_places(block) == places:
        return once.client, once.sequence
    return once.client, Sequence(once.sequence | _ANY_PLACE)


def _covering(runs: Iterable[Run], start: int, stop: int) -> tuple[Txn, ...]:
    """The txns of runs that together have all places; none if none has any."""
    txns: list[Txn] = []
    at = start
    for run in runs:
        if run.stop <= at:
            continue
        if run.start > at:
            if run.start < stop:
                raise DoneInPart((at if txns else run.start) - start)
            break
        txns.append(run.txn)
        at = run.stop
        if at >= stop:
            return tuple(txns)
    if txns:
        raise DoneInPart(at - start)
    return ()
