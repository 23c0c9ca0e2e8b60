"""Disks that are full or broken, a store that does not answer, configs that cannot be saved, memory that is full.

Whoever's block was not synced is told so, and it is never seen, not even after a crash at once. Reads go on. Once the
fault is over, writing goes on without a restart, and nothing is left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest
from msgspec import structs

from stelae.model.declare import cells, columns, declare
from stelae.model.errors import Conflict, DiskFailed, DiskFull, Overloaded, StelaeError, Unavailable, UnknownOutcome
from stelae.model.ids import Row, Txn
from stelae.model.mutation import Erase, Mutation, Put, PutCell, WholeRow
from stelae.sim.blobs import BlobCall
from stelae.sim.disk import DiskCall
from stelae.storage.shard import Commit
from stelae.storage.tablet.changes import Emptied, Loaded
from tests.effort import tries
from tests.storage.engine import HISTORY, SMALL, TABLE, Engine, check_engine, check_reads, choose_columnar
from tests.storage.plain import PlainTable
from tests.storage.workloads import choose_block

SCHEMA = declare(
    {"id": "string"},
    [columns("base", {"number": "int32", "text": "string"}), cells("events", ["click"], purge="max-history=2")],
)
NUMBER = SCHEMA.column("number")[1].id
ROWS = [SCHEMA.codec.encode((key,)) for key in ("a", "b", "c", "d", "e")]
DISK_CALLS: tuple[DiskCall, ...] = ("create", "append", "sync", "truncate", "delete")
DISK_ERRORS: tuple[type[DiskFull | DiskFailed], ...] = (DiskFull, DiskFailed)


def number(row: Row, value: int) -> Put:
    return Put(row, ((NUMBER, value),))


class Writers:
    """An engine, and what its writers were told."""

    def __init__(self, seed: int = 0) -> None:
        self.engine = Engine(SCHEMA, seed, page_bytes=(4096, 64)[seed % 2])
        self.model = PlainTable(SCHEMA)
        self.random = Random(seed)
        self.waiting: list[tuple[Commit, Sequence[Mutation]]] = []
        self.never: set[Txn] = set()
        self.unknown: set[Txn] = set()

    def queue(self, *blocks: Sequence[Mutation]) -> None:
        for block in blocks:
            self.waiting += self.engine.queue(block)

    def queue_columnar(self) -> None:
        self.waiting += self.engine.queue(*choose_columnar(self.random.choice, SCHEMA, ROWS))

    def blocks(self, count: int) -> list[tuple[Mutation, ...]]:
        return [choose_block(self.random.choice, SCHEMA, ROWS) for _ in range(count)]

    def drain(self) -> list[StelaeError]:
        """The errors that writers were given."""
        self.engine.shard.drain()
        errors: list[StelaeError] = []
        for commit, mutations in self.waiting:
            error = commit.durable.exception(timeout=0)
            if error is None:
                self.model.commit(commit.txn, mutations)
                self.never |= self.unknown
                self.unknown.clear()
                continue
            assert isinstance(error, StelaeError)
            errors.append(error)
            assert f"txn {commit.txn} " in str(error)
            (self.never if "never" in str(error) else self.unknown).add(commit.txn)
        self.waiting.clear()
        self.engine.clock.advance(0.001)
        return errors

    def write(self, *blocks: Sequence[Mutation]) -> list[StelaeError]:
        self.queue(*blocks)
        return self.drain()

    def flush(self) -> None:
        for state in self.engine.tablets():
            self.engine.flush(state.tablet)

    def check(self, *, all_reads: bool = True) -> None:
        """Nobody sees what failed."""
        self._check_failed(self.engine, self.never | self.unknown)
        self._check_reads(self.engine, all_reads)

    def _check_reads(self, engine: Engine, all_reads: bool) -> None:
        check_engine(engine, ROWS)
        if all_reads:
            check_reads(engine, self.model, ROWS, engine.visible, self.random)
        assert engine.history(ROWS, engine.visible, limit=HISTORY) == self.model.read(engine.visible, history=HISTORY)

    def check_after_a_crash(self, seed: int = 0, *, all_reads: bool = True) -> None:
        """If the power goes or the process dies now: all that was acknowledged, and nothing that was said never to
        be. Every version of every row is looked at; `all_reads`: and in every way, once."""
        for how in ("crash", "kill"):
            other = self.engine.fork(seed)
            other.clock.advance(0.001)
            other.restart(how)
            self._check_failed(other, self.never)
            if not self.unknown:
                self._check_reads(other, all_reads and how == "crash")

    def _check_failed(self, engine: Engine, failed: set[Txn]) -> None:
        txns = {txn for memory in engine.shard.memories() for txn in memory.txns}
        assert not txns & failed
        found = engine.history(ROWS, engine.visible, limit=100)
        seen = {v.txn for row in found.values() for versions in row.versions.values() for v in versions}
        assert not seen & failed


# -- the log


def log_work(writers: Writers, act: Callable[[], None] = lambda: None) -> list[StelaeError]:
    """Groups, several of them in a drain, full segments, a flush, collection: every call of the log comes often."""
    errors: list[StelaeError] = []
    engine = writers.engine
    for turn in range(4):
        writers.queue(*writers.blocks(2))
        writers.queue_columnar()
        writers.queue(*writers.blocks(1))
        errors += writers.drain()
        writers.check(all_reads=False)
        act()
        if turn % 2:
            writers.flush()
            engine.upkeep.save()
            with suppress(DiskFull, DiskFailed):
                engine.collect_log()
    return errors


@pytest.mark.parametrize("error", DISK_ERRORS)
@pytest.mark.parametrize("call", DISK_CALLS)
def test_a_call_of_the_log_fails(call: DiskCall, error: type[DiskFull | DiskFailed]) -> None:
    told = 0
    for nth in range(1, 7):
        writers = Writers(nth)
        assert writers.write(*writers.blocks(2)) == []
        writers.engine.disk.fail(call, error, nth)
        errors = log_work(writers, lambda: writers.check_after_a_crash(nth, all_reads=False))  # noqa: B023 - called at once
        assert {type(each) for each in errors} <= {error}
        assert not writers.unknown
        told += len(errors)
        assert writers.write(*writers.blocks(2)) == []
        writers.check(all_reads=nth % 3 == 0)
        writers.check_after_a_crash(nth, all_reads=nth % 3 == 0)
    assert bool(told) == (call in ("create", "append", "sync"))


@pytest.mark.parametrize("seed", range(tries(8)))
def test_a_disk_that_fails_again_and_again(seed: int) -> None:
    writers = Writers(seed)
    random = Random(seed)
    for _ in range(random.randrange(1, 7)):
        call = random.choice((*DISK_CALLS, "sync", "append"))
        writers.engine.disk.fail(call, random.choice(DISK_ERRORS), random.randrange(1, 6))
    log_work(writers, lambda: writers.check_after_a_crash(seed, all_reads=False))
    for _ in range(8):
        if not writers.write(*writers.blocks(1)):
            break
    else:
        raise AssertionError("writing does not go on")
    assert not writers.unknown
    writers.check()
    writers.check_after_a_crash(seed)


def test_a_disk_that_refuses_everything_says_that_the_outcome_is_not_known() -> None:
    writers = Writers()
    assert writers.write([number(ROWS[0], 1)]) == []
    for call in ("sync", "truncate", "create"):
        writers.engine.disk.fail(call, DiskFailed)
    (error,) = writers.write([number(ROWS[0], 2)])
    assert isinstance(error, UnknownOutcome)
    assert isinstance(error.__cause__, DiskFailed)
    assert "not known" in str(error)
    writers.check()
    assert writers.write([number(ROWS[0], 3)]) == []
    writers.check()
    writers.check_after_a_crash()


def test_what_is_queued_behind_a_failed_block_fails_too() -> None:
    """It may be conditioned on it: here it is."""
    writers = Writers()
    engine = writers.engine
    (tablet,) = engine.shard.tablets()
    large = [PutCell(row, "click", "q", b"x" * 600) for row in ROWS]
    writers.queue(large)
    first = writers.waiting[0][0].txn
    block = [number(ROWS[0], 5)]
    writers.waiting.append((engine.apply(tablet, block, max_txn=first), block))
    engine.disk.fail("sync", DiskFailed, 2)
    assert len(writers.drain()) == 2
    writers.check()
    writers.check_after_a_crash()


def test_a_conflict_with_what_then_fails_is_gone() -> None:
    writers = Writers()
    engine = writers.engine
    (tablet,) = engine.shard.tablets()
    assert writers.write([number(ROWS[0], 1)]) == []
    seen = engine.visible
    writers.queue([number(ROWS[0], 2)])
    with pytest.raises(Conflict):
        engine.apply(tablet, [number(ROWS[0], 3)], max_txn=seen)
    engine.disk.fail("append", DiskFull)
    assert len(writers.drain()) == 1
    block = [number(ROWS[0], 4)]
    writers.waiting.append((engine.apply(tablet, block, max_txn=seen), block))
    assert writers.drain() == []
    writers.check()
    assert engine.newest_values([ROWS[0]], engine.visible)[ROWS[0]]["number"] == 4


@pytest.mark.parametrize("change", ["seal", "split", "split and join", "alter", "save", "flush"])
def test_blocks_leave_memory_wherever_it_has_come_to(change: str) -> None:
    writers = Writers()
    engine = writers.engine
    (tablet,) = engine.shard.tablets()
    assert writers.write(*writers.blocks(3)) == []
    writers.queue(*writers.blocks(3))
    writers.queue_columnar()
    writers.queue([Erase(row, WholeRow()) for row in ROWS])
    engine.disk.fail("sync", DiskFull)
    match change:
        case "seal":
            engine.upkeep.seal(tablet)
        case "split":
            engine.split(tablet, ROWS[2])
        case "split and join":
            engine.split(tablet, ROWS[2])
            left, right = engine.tablets()
            engine.join(left.tablet, right.tablet)
        case "alter":
            schema = structs.replace(SCHEMA, version=2, groups=SCHEMA.groups[::-1])
            engine.alter(schema)
            writers.model.alter(schema)
        case "flush":
            engine.flush(tablet)
        case _:
            engine.upkeep.save()
    assert len(writers.drain()) >= 5
    writers.check()
    writers.flush()
    writers.check()
    writers.check_after_a_crash()
    assert writers.write([number(row, 3) for row in ROWS]) == []
    writers.check()
    engine.tidy()
    writers.check_after_a_crash()


@pytest.mark.parametrize("meanwhile", ["nothing", "save", "compact", "flush", "split"])
@pytest.mark.parametrize("what", ["emptied", "loaded", "replaced"])
def test_a_change_that_fails_never_was(what: str, meanwhile: str) -> None:
    """Whatever was done to the tablet while it was on its way."""
    writers = Writers()
    engine = writers.engine
    (tablet,) = engine.shard.tablets()
    for _ in range(2):
        assert writers.write([number(row, 1) for row in ROWS]) == []
        writers.flush()
    load = tuple(Put(row, tuple((column.id, None) for column in SCHEMA.groups[0].columns)) for row in ROWS[1:3])  # type: ignore[union-attr]
    engine.prepare_load("load", load)
    change = Emptied() if what == "emptied" else Loaded("load", replaces=what == "replaced")
    commit = engine.upkeep.commit(TABLE, change)
    engine.disk.fail("sync", DiskFailed)
    match meanwhile:
        case "save":
            engine.upkeep.save()
        case "compact":
            engine.compact_all(tablet)
        case "flush":
            writers.flush()
        case "split":
            engine.split(tablet, ROWS[2])
        case _:
            pass
    engine.shard.drain()
    assert isinstance(commit.durable.exception(timeout=0), DiskFailed)
    assert writers.write([number(ROWS[0], 2)]) == []
    writers.check()
    writers.check_after_a_crash()
    engine.tidy()
    writers.check_after_a_crash()
    for state in engine.tablets():
        engine.compact_all(state.tablet)
    writers.check()
    done = engine.change(change)
    if what == "emptied":
        writers.model.truncate(done)
    elif what == "loaded":
        writers.model.commit(done, load)
    else:
        writers.model.overwrite(done, load)
    writers.check()
    writers.check_after_a_crash()


# -- the store


def files_of(engine: Engine) -> set[str]:
    return {name for state in engine.tablets() for name in state.files()}


def retried(act: Callable[[], object], error: type[StelaeError]) -> int:
    """How often it was refused, until it was not."""
    for count in range(5):
        try:
            act()
        except error:
            continue
        return count
    raise AssertionError("it never comes to an end")


@pytest.mark.parametrize("error", [DiskFull, Unavailable])
@pytest.mark.parametrize("call", ["create", "write", "commit"])
@pytest.mark.parametrize("work", ["flush", "compact"])
def test_a_file_cannot_be_written(work: str, call: BlobCall, error: type[StelaeError]) -> None:
    """It is raised; nothing is lost and nothing changed; the next try does it, and what the first left behind goes."""
    refused = 0
    for nth in (1, 2, 3, 9):
        writers = Writers(nth)
        engine = writers.engine
        (tablet,) = engine.shard.tablets()
        for _ in range(2):
            assert writers.write([number(row, 1) for row in ROWS], *writers.blocks(3)) == []
            if work == "compact":
                writers.flush()
        engine.upkeep.save()
        engine.blobs.fail(call, error, nth)
        before = files_of(engine)
        try:
            writers.flush() if work == "flush" else engine.compact_all(tablet)
        except error as refusal:
            refused += 1
            assert call in str(refusal)
            writers.check()
            writers.check_after_a_crash(nth)
            engine.upkeep.collect_files()
            assert {info.name for info in engine.blobs.list("fragments/")} == engine.upkeep.needed_files() >= before
            assert writers.write([number(ROWS[0], 7)]) == []
            writers.flush() if work == "flush" else engine.compact_all(tablet)
        writers.check()
        engine.tidy()
        assert {info.name for info in engine.blobs.list("fragments/")} == files_of(engine)
        assert len(files_of(engine)) <= 2 * len(SCHEMA.groups)
        writers.check_after_a_crash(nth)
    assert refused


@pytest.mark.parametrize("call", ["open", "read"])
@pytest.mark.parametrize("seed", range(3))
def test_a_file_cannot_be_read(call: BlobCall, seed: int) -> None:
    """Whoever needs it now is told; later it is there."""
    writers = Writers(seed)
    engine = writers.engine
    (tablet,) = engine.shard.tablets()
    for _ in range(2):
        assert writers.write([number(row, 1) for row in ROWS], *writers.blocks(3)) == []
        writers.flush()
    engine.upkeep.save()
    acts: list[Callable[[], object]] = [
        lambda: engine.scan(engine.visible),
        lambda: engine.history(ROWS, engine.visible),
        lambda: engine.apply(tablet, [number(ROWS[0], 2)], max_txn=engine.horizon),
        lambda: engine.compact_all(tablet),
    ]
    refused = 0
    for act in acts:
        engine.restart("kill")
        engine.blobs.fail(call, Unavailable, 1 + seed)
        try:
            refused += retried(act, Unavailable)
        except Conflict:
            continue
    assert refused
    engine.restart("kill")
    writers.check()


@pytest.mark.parametrize("error", [DiskFailed, Unavailable])
@pytest.mark.parametrize("call", ["delete", "list"])
def test_files_cannot_be_collected(call: BlobCall, error: type[StelaeError]) -> None:
    writers = Writers()
    engine = writers.engine
    (tablet,) = engine.shard.tablets()
    for _ in range(3):
        assert writers.write([number(row, 1) for row in ROWS]) == []
        writers.flush()
    engine.compact_all(tablet)
    engine.upkeep.save()
    engine.blobs.fail(call, error)
    assert retried(engine.upkeep.collect_files, error) == 1
    assert {info.name for info in engine.blobs.list("fragments/")} == files_of(engine)
    writers.check()
    writers.check_after_a_crash()


# -- configs


@pytest.mark.parametrize("after", range(8))
def test_configs_cannot_be_saved(after: int) -> None:
    """Some are, and some are not, and nobody knows which: neither the log nor the files of either may go."""
    writers = Writers(after)
    engine = writers.engine
    assert writers.write([number(row, 1) for row in ROWS]) == []
    writers.flush()
    engine.upkeep.save()
    for at in (ROWS[3], ROWS[1]):
        assert writers.write([number(row, 2) for row in ROWS], *writers.blocks(2)) == []
        writers.flush()
        engine.split(engine.tablets()[0].tablet, at)
    engine.split(engine.tablets()[2].tablet, ROWS[4])
    engine.configs.fail(after)
    with pytest.raises(Unavailable):
        engine.upkeep.save()
    engine.configs.heal()
    engine.collect_log()
    writers.check_after_a_crash(after)
    assert writers.write([number(row, 3) for row in ROWS]) == []
    for state in engine.tablets():
        engine.compact_all(state.tablet)
    writers.flush()
    engine.collect_log()
    engine.upkeep.collect_files()
    writers.check()
    writers.check_after_a_crash(after)
    left, right = engine.tablets()[:2]
    engine.join(left.tablet, right.tablet)
    engine.configs.fail(after=1)
    with pytest.raises(Unavailable):
        engine.upkeep.save()
    engine.upkeep.collect_files()
    writers.check_after_a_crash(after)
    engine.tidy()
    assert {info.name for info in engine.blobs.list("fragments/")} == files_of(engine)
    writers.check_after_a_crash(after)


# -- memory that is full


def test_writers_are_turned_away_until_memory_is_flushed() -> None:
    """A block that is turned away leaves no trace. What is urgent has some room of its own, which ends too."""
    engine = Engine(SCHEMA, settings=replace(SMALL, unflushed_bytes_max=8_000, reserve_bytes=2_000))
    model = PlainTable(SCHEMA)
    (tablet,) = engine.shard.tablets()
    block = [PutCell(ROWS[0], "click", "q", b"x" * 300)]

    def fill(urgent: bool) -> int:
        for count in range(100):
            try:
                commit = engine.apply(tablet, block, urgent=urgent)
            except Overloaded as refusal:
                assert "limit" in str(refusal)
                return count
            engine.shard.drain()
            model.commit(commit.durable.result(timeout=0), block)
        raise AssertionError("there is always room")

    assert fill(urgent=False) > 3
    held = engine.shard.unflushed_bytes()
    assert held <= 8_000
    assert fill(urgent=True) > 0
    assert 8_000 < engine.shard.unflushed_bytes() <= 10_000
    assert fill(urgent=True) == 0
    check_reads(engine, model, ROWS, engine.visible, Random(0))
    room = engine.shard.when_room()
    assert not room.done()
    engine.flush(tablet)
    assert room.done()
    assert engine.shard.unflushed_bytes() == 0
    assert fill(urgent=False) > 3
    check_reads(engine, model, ROWS, engine.visible, Random(0))
    engine.restart("crash")
    check_reads(engine, model, ROWS, engine.visible, Random(0))
    assert fill(urgent=False) == 0, "what is replayed counts"


def test_a_block_larger_than_the_limit_is_let_in_alone() -> None:
    engine = Engine(SCHEMA, settings=replace(SMALL, unflushed_bytes_max=1_000, reserve_bytes=0))
    (tablet,) = engine.shard.tablets()
    large = [PutCell(ROWS[0], "click", "q", b"x" * 2_000)]
    engine.apply(tablet, large)
    with pytest.raises(Overloaded):
        engine.apply(tablet, [number(ROWS[0], 1)])
    engine.flush(tablet)
    engine.apply(tablet, large)


def test_what_fails_makes_room() -> None:
    engine = Engine(SCHEMA, settings=replace(SMALL, unflushed_bytes_max=1_000, reserve_bytes=0))
    (tablet,) = engine.shard.tablets()
    engine.apply(tablet, [PutCell(ROWS[0], "click", "q", b"x" * 900)])
    with pytest.raises(Overloaded):
        engine.apply(tablet, [number(ROWS[0], 1)])
    room = engine.shard.when_room()
    engine.disk.fail("sync", DiskFull)
    engine.shard.drain()
    assert room.done()
    assert engine.shard.unflushed_bytes() == 0
    engine.apply(tablet, [number(ROWS[0], 1)])


def test_there_is_room_at_once_where_nothing_is_held() -> None:
    """Whoever was turned away may ask only after the flush that it would have waited for."""
    assert Engine(SCHEMA).shard.when_room().done()
