"""The block cache against a plain model; its ranks, its bound in bytes, and what threads see of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from threading import Event, Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.model.errors import InvalidArgument, Unavailable
from stelae.storage.files.cache import BlockCache, BlockKey, CachePriority, priority_of
from tests.effort import HANG_S, examples, tries

ONE_GROUP, SEVERAL_GROUPS, PARTLY, ON_DEMAND = CachePriority
PATIENCE_S = HANG_S


def _reads(value: str, size_bytes: int) -> Callable[[], tuple[str, int]]:
    return lambda: (value, size_bytes)


def _meanwhile(act: Callable[[], None]) -> Callable[[], tuple[str, int]]:
    def read() -> tuple[str, int]:
        act()
        return "late", 10

    return read


def _no_read() -> tuple[str, int]:
    raise AssertionError("read although it is cached")


def _kept(cache: BlockCache[str], keys: list[BlockKey]) -> list[BlockKey]:
    return [key for key in keys if cache.get(key) is not None]


# --- ranks


@pytest.mark.parametrize(
    ("columns", "groups", "priority"),
    [
        ({1, 2}, [({1, 2, 3}, True)], ONE_GROUP),
        ({1, 2}, [({1, 2}, True), ({3}, False)], ONE_GROUP),
        ({1, 2}, [({1}, True), ({2, 3}, True)], SEVERAL_GROUPS),
        ({1, 2, 3}, [({1}, True), ({2}, True), ({3}, True)], SEVERAL_GROUPS),
        ({1, 2}, [({1}, True), ({2}, False)], PARTLY),
        ({1, 2, 9}, [({1}, True), ({2}, True)], PARTLY),
        ({1, 9}, [({1, 2}, True)], PARTLY),
        ({1, 2}, [({1, 2}, False)], ON_DEMAND),
        ({9}, [({1}, True), ({2}, True)], ON_DEMAND),
        ({1}, [], ON_DEMAND),
        (set(), [(set(), True)], ONE_GROUP),
        (set(), [(set(), False), ({1}, False)], ON_DEMAND),
        (set(), [], ON_DEMAND),
    ],
)
def test_the_rank_of_a_fragment(
    columns: set[int], groups: list[tuple[set[int], bool]], priority: CachePriority
) -> None:
    assert priority_of(frozenset(columns), [(frozenset(inside), memory) for inside, memory in groups]) is priority


@given(
    st.frozensets(st.integers(0, 7), min_size=1),
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=8, max_size=8),
)
def test_ranks_as_they_are_worded(columns: frozenset[int], homes: list[tuple[int, bool]]) -> None:
    """Each column is in one group, or in none (group 0); a group is in memory as its first column says."""
    members = {group: frozenset(c for c in range(8) if homes[c][0] == group) for group in (1, 2, 3)}
    in_memory = {group for group, inside in members.items() if inside and homes[min(inside)][1]}
    homes_in_memory = [homes[c][0] for c in columns if homes[c][0] in in_memory]
    match len(homes_in_memory) == len(columns), len(set(homes_in_memory)):
        case True, 1:
            expected = ONE_GROUP
        case True, _:
            expected = SEVERAL_GROUPS
        case _, 0:
            expected = ON_DEMAND
        case _:
            expected = PARTLY
    assert priority_of(columns, [(inside, group in in_memory) for group, inside in members.items()]) is expected


def test_ranks_are_numbered_from_the_best() -> None:
    assert [int(priority) for priority in CachePriority] == [1, 2, 3, 4]


# --- reading ahead


def test_what_is_read_ahead_takes_room_from_worse_ranks_only() -> None:
    cache: BlockCache[str] = BlockCache(30)
    for number in range(3):
        cache.put(("old", number), ON_DEMAND, "old", 10)
    assert cache.preload(("a", 0), ONE_GROUP, _reads("first", 10))
    assert cache.preload(("a", 1), ONE_GROUP, _reads("second", 15))
    assert not cache.preload(("a", 2), ONE_GROUP, _reads("third", 10)), "another of its rank would have to go"
    assert not cache.preload(("b", 0), PARTLY, _reads("worse", 10))
    assert (cache.get(("a", 0)), cache.get(("a", 1)), cache.get(("a", 2))) == ("first", "second", None)
    assert cache.preload(("a", 3), ONE_GROUP, _reads("small", 5))
    assert cache.stats().bytes_by_priority == (30, 0, 0, 0)
    assert cache.stats().misses == 0, "nobody has asked"


def test_what_is_there_is_not_read_ahead_and_takes_the_rank() -> None:
    cache: BlockCache[str] = BlockCache(30)
    cache.put(("a", 0), ON_DEMAND, "block", 10)
    assert cache.preload(("a", 0), ONE_GROUP, _no_read)
    assert cache.stats().bytes_by_priority == (10, 0, 0, 0)


def test_what_somebody_reads_is_not_read_ahead_too() -> None:
    cache: BlockCache[str] = BlockCache(30)
    ahead: list[bool] = []
    read = _meanwhile(lambda: ahead.append(cache.preload(("a", 0), ONE_GROUP, _no_read)))
    assert cache.load(("a", 0), ONE_GROUP, read) == "late"
    assert ahead == [True]
    assert cache.get(("a", 0)) == "late"


def test_of_a_file_that_goes_nothing_is_kept_that_was_being_read_ahead() -> None:
    cache: BlockCache[str] = BlockCache(30)
    assert not cache.preload(("a", 0), ONE_GROUP, _meanwhile(lambda: cache.drop_file("a")))
    assert cache.stats().blocks == 0


def test_a_read_ahead_that_fails_leaves_nothing_behind() -> None:
    cache: BlockCache[str] = BlockCache(30)

    def broken() -> tuple[str, int]:
        raise Unavailable("simulated")

    with pytest.raises(Unavailable):
        cache.preload(("a", 0), ONE_GROUP, broken)
    assert cache.preload(("a", 0), ONE_GROUP, _reads("block", 10))


# --- one thread


def test_a_load_reads_once() -> None:
    cache: BlockCache[str] = BlockCache(100)
    key = ("a", 0, (1, 2))
    assert cache.get(key) is None
    assert cache.load(key, ON_DEMAND, _reads("block", 10)) == "block"
    assert cache.load(key, ON_DEMAND, _no_read) == "block"
    assert cache.get(key) == "block"
    assert cache.get(("a", 0, (1,))) is None
    stats = cache.stats()
    assert (stats.hits, stats.misses, stats.evictions, stats.blocks) == (2, 1, 0, 1)
    assert (stats.capacity_bytes, stats.size_bytes, stats.bytes_by_priority) == (100, 10, (0, 0, 0, 10))


def test_hits_of_what_is_gone_still_count() -> None:
    cache: BlockCache[str] = BlockCache(10)
    cache.put(("a", 0), ON_DEMAND, "x", 10)
    for _ in range(5):
        cache.get(("a", 0))
    cache.grew(("a", 0), 0)
    cache.drop_file("a")
    assert cache.stats().hits == 5
    assert cache.stats().evictions == 0


def test_worse_ranks_go_first() -> None:
    cache: BlockCache[str] = BlockCache(40)
    keys: list[BlockKey] = [("f", int(priority)) for priority in CachePriority]
    for key, priority in zip(keys, CachePriority, strict=True):
        cache.put(key, priority, "block", 10)
        cache.get(key)
    remaining = []
    for n in range(3):
        cache.put(("new", n), ONE_GROUP, "new", 10)
        remaining.append(_kept(cache, keys))
    assert remaining == [keys[:3], keys[:2], keys[:1]]


def test_a_newcomer_does_not_displace_a_better_rank() -> None:
    cache: BlockCache[str] = BlockCache(30)
    cache.put(("memory", 0), PARTLY, "in memory", 21)
    cache.put(("disk", 0), ON_DEMAND, "small", 5)
    assert cache.load(("disk", 1), ON_DEMAND, _reads("large", 10)) == "large"
    assert cache.get(("disk", 1)) is None
    assert cache.get(("disk", 0)) == "small", "it went in vain"
    assert cache.load(("disk", 2), ON_DEMAND, _reads("fits", 9)) == "fits"
    assert cache.get(("disk", 0)) is None
    assert cache.get(("disk", 2)) == "fits"
    assert cache.stats().evictions == 1


def test_what_is_larger_than_the_cache_is_given_out_and_not_kept() -> None:
    cache: BlockCache[str] = BlockCache(10)
    cache.put(("a", 0), ON_DEMAND, "small", 3)
    assert cache.load(("a", 1), ONE_GROUP, _reads("large", 11)) == "large"
    assert cache.get(("a", 1)) is None
    assert cache.get(("a", 0)) == "small"
    cache.put(("a", 0), ON_DEMAND, "no longer small", 11)
    assert cache.get(("a", 0)) is None
    assert cache.size_bytes == 0


def test_a_hit_gives_a_second_chance() -> None:
    cache: BlockCache[str] = BlockCache(30)
    keys: list[BlockKey] = [("a", n) for n in range(3)]
    for key in keys:
        cache.put(key, ON_DEMAND, "old", 10)
    cache.get(keys[0])
    cache.put(("b", 0), ON_DEMAND, "new", 10)
    cache.put(("b", 1), ON_DEMAND, "new", 10)
    assert _kept(cache, keys) == [keys[0]]
    assert _kept(cache, [("b", 0), ("b", 1)]) == [("b", 0), ("b", 1)]


def test_a_second_chance_is_used_up() -> None:
    cache: BlockCache[str] = BlockCache(20)
    cache.put(("a", 0), ON_DEMAND, "hit once", 10)
    cache.get(("a", 0))
    for n in range(3):
        cache.put(("b", n), ON_DEMAND, "never hit", 10)
    assert cache.get(("a", 0)) is None


def test_a_sweep_ends_when_everything_was_hit() -> None:
    cache: BlockCache[str] = BlockCache(300)
    keys: list[BlockKey] = [("a", n) for n in range(300)]
    for key in keys:
        cache.put(key, ON_DEMAND, "hit", 1)
        cache.get(key)
    cache.put(("b", 0), ON_DEMAND, "new", 1)
    gone = [key for key in keys if key not in _kept(cache, keys)]
    assert gone == [("a", 128)], "the hand looks at so many, then takes the next"


def test_empty_blocks_are_bounded_too() -> None:
    cache: BlockCache[str] = BlockCache(10)
    for n in range(50):
        cache.put(("a", n), ON_DEMAND, "", 0)
    assert cache.stats().blocks == 10
    cache.resize(0)
    cache.put(("a", 0), ONE_GROUP, "", 0)
    assert cache.stats().blocks == 0


def test_a_load_with_another_priority_moves_the_block() -> None:
    cache: BlockCache[str] = BlockCache(100)
    cache.put(("a", 0), ON_DEMAND, "x", 10)
    assert cache.load(("a", 0), ONE_GROUP, _no_read) == "x"
    assert cache.stats().bytes_by_priority == (10, 0, 0, 0)
    cache.rerank_file("a", PARTLY)
    assert cache.stats().bytes_by_priority == (0, 0, 10, 0)
    cache.rerank_file("nobody", PARTLY)


def test_growing_makes_room_or_goes() -> None:
    cache: BlockCache[str] = BlockCache(30)
    cache.put(("a", 0), ONE_GROUP, "a", 10)
    cache.put(("b", 0), ON_DEMAND, "b", 10)
    cache.put(("c", 0), ON_DEMAND, "c", 10)
    cache.grew(("c", 0), 10)
    assert _kept(cache, [("a", 0), ("b", 0), ("c", 0)]) == [("a", 0), ("c", 0)]
    cache.grew(("c", 0), 1)
    assert _kept(cache, [("a", 0), ("b", 0), ("c", 0)]) == [("a", 0)]
    cache.grew(("c", 0), 1)
    assert cache.size_bytes == 10


def test_dropping() -> None:
    cache: BlockCache[str] = BlockCache(100)
    keys: list[BlockKey] = [(file, block) for file in "abc" for block in (0, 1)]
    for key in keys:
        cache.put(key, ON_DEMAND, "x", 10)
    cache.drop_file("b")
    assert _kept(cache, keys) == [("a", 0), ("a", 1), ("c", 0), ("c", 1)]
    cache.drop(lambda key: key[1] == 0)
    assert _kept(cache, keys) == [("a", 1), ("c", 1)]
    assert cache.size_bytes == 20
    cache.drop_file("b")
    assert cache.stats().evictions == 0


def test_what_is_dropped_while_it_is_read_is_not_kept() -> None:
    cache: BlockCache[str] = BlockCache(100)

    for n, forget in enumerate([lambda: cache.drop_file("a"), lambda: cache.drop(lambda key: key[0] == "a")]):
        assert cache.load(("a", n), ON_DEMAND, _meanwhile(forget)) == "late"
        assert cache.size_bytes == 0
    assert cache.load(("a", 2), ON_DEMAND, _meanwhile(lambda: cache.drop_file("b"))) == "late"
    assert cache.get(("a", 2)) == "late"


def test_what_is_reranked_while_it_is_read_gets_the_new_rank() -> None:
    cache: BlockCache[str] = BlockCache(100)
    cache.load(("a", 0), ON_DEMAND, _meanwhile(lambda: cache.rerank_file("a", ONE_GROUP)))
    cache.load(("a", 1), ON_DEMAND, _meanwhile(lambda: cache.rerank_file("b", ONE_GROUP)))
    assert cache.stats().bytes_by_priority == (10, 0, 0, 10)


def test_a_read_may_load_another_block_but_not_itself() -> None:
    cache: BlockCache[str] = BlockCache(100)

    def with_index() -> tuple[str, int]:
        return "block of " + cache.load(("a", "index"), ON_DEMAND, _reads("index", 1)), 10

    assert cache.load(("a", 0), ON_DEMAND, with_index) == "block of index"

    def circular() -> tuple[str, int]:
        return cache.load(("a", 1), ON_DEMAND, circular), 10

    with pytest.raises(InvalidArgument, match="asks the cache for the same block"):
        cache.load(("a", 1), ON_DEMAND, circular)
    assert cache.load(("a", 1), ON_DEMAND, _reads("later", 1)) == "later"


def test_sizes_that_cannot_be() -> None:
    with pytest.raises(InvalidArgument, match="cache of -1 bytes"):
        BlockCache(-1)
    cache: BlockCache[str] = BlockCache(10)
    with pytest.raises(InvalidArgument, match="cache of -1 bytes"):
        cache.resize(-1)
    with pytest.raises(InvalidArgument, match="of -1 bytes"):
        cache.put(("a", 0), ON_DEMAND, "x", -1)
    with pytest.raises(InvalidArgument, match="of -1 bytes"):
        cache.load(("a", 0), ON_DEMAND, _reads("x", -1))
    assert cache.load(("a", 0), ON_DEMAND, _reads("x", 1)) == "x"
    with pytest.raises(InvalidArgument, match="grew by -1 bytes"):
        cache.grew(("a", 0), -1)
    assert cache.size_bytes == 1


# --- against a model


@dataclass
class _Block:
    key: BlockKey
    priority: int
    value: str
    size: int
    is_hit: bool = False


@dataclass
class _Model:
    """The same rules over one list, in the order in which the hand comes by."""

    capacity: int
    blocks: list[_Block] = field(default_factory=list)
    hits: int = 0

    def find(self, key: BlockKey) -> _Block | None:
        return next((block for block in self.blocks if block.key == key), None)

    def get(self, key: BlockKey) -> str | None:
        block = self.find(key)
        if block is None:
            return None
        block.is_hit = True
        self.hits += 1
        return block.value

    def put(self, new: _Block) -> None:
        self.drop(lambda key: key == new.key)
        if sum(block.size for block in self.blocks if block.priority < new.priority) + new.size <= self.capacity:
            self.evict(self.capacity - new.size)
            self.blocks.append(new)

    def evict(self, limit: int) -> None:
        while self.size() > limit:
            worst = max(block.priority for block in self.blocks)
            block = next(block for block in self.blocks if block.priority == worst)
            self.blocks.remove(block)
            if block.is_hit:
                block.is_hit = False
                self.blocks.append(block)

    def rerank(self, key: BlockKey, priority: int) -> None:
        block = self.find(key)
        if block and block.priority != priority:
            self.blocks.remove(block)
            block.priority = priority
            self.blocks.append(block)

    def grew(self, key: BlockKey, by: int) -> None:
        block = self.find(key)
        if block:
            self.put(_Block(key, block.priority, block.value, block.size + by))

    def drop(self, matches: Callable[[BlockKey], bool]) -> None:
        self.blocks = [block for block in self.blocks if not matches(block.key)]

    def size(self) -> int:
        return sum(block.size for block in self.blocks)


_KEYS: list[BlockKey] = [(file, block) for file in ("a", "b", "c") for block in range(4)]
_keys = st.sampled_from(_KEYS)
_priorities = st.sampled_from(CachePriority)
_sizes = st.integers(1, 12)
_calls = st.one_of(
    st.tuples(st.just("get"), _keys),
    st.tuples(st.just("load"), _keys, _priorities, _sizes),
    st.tuples(st.just("load"), _keys, _priorities, _sizes),
    st.tuples(st.just("put"), _keys, _priorities, _sizes),
    st.tuples(st.just("fail"), _keys, _priorities),
    st.tuples(st.just("grew"), _keys, st.integers(0, 6)),
    st.tuples(st.just("drop_file"), st.sampled_from("abc")),
    st.tuples(st.just("drop"), st.integers(0, 3)),
    st.tuples(st.just("resize"), st.integers(0, 40)),
)


def _call(cache: BlockCache[str], model: _Model, call: tuple[object, ...], value: str) -> None:
    match call:
        case "get", tuple() as key:
            assert cache.get(key) == model.get(key)
        case "load", tuple() as key, CachePriority() as priority, int() as size:
            cached = model.get(key)
            read = _no_read if cached is not None else _reads(value, size)
            assert cache.load(key, priority, read) == (cached or value)
            if cached is None:
                model.put(_Block(key, priority, value, size))
            model.rerank(key, priority)
        case "put", tuple() as key, CachePriority() as priority, int() as size:
            cache.put(key, priority, value, size)
            model.put(_Block(key, priority, value, size))
        case "fail", tuple() as key, CachePriority() as priority:
            _load_and_fail(cache, model, key, priority)
        case "grew", tuple() as key, int() as by:
            cache.grew(key, by)
            model.grew(key, by)
        case "drop_file", str() as file:
            cache.drop_file(file)
            model.drop(lambda key: key[0] == file)
        case "drop", int() as block:
            cache.drop(lambda key: key[1] == block)
            model.drop(lambda key: key[1] == block)
        case "resize", int() as capacity:
            cache.resize(capacity)
            model.capacity = capacity
            model.evict(capacity)
        case _:
            raise AssertionError(call)


def _load_and_fail(cache: BlockCache[str], model: _Model, key: BlockKey, priority: CachePriority) -> None:
    def fails() -> tuple[str, int]:
        raise Unavailable("the store is away")

    cached = model.get(key)
    if cached is None:
        with pytest.raises(Unavailable):
            cache.load(key, priority, fails)
    else:
        assert cache.load(key, priority, fails) == cached
        model.rerank(key, priority)


@settings(max_examples=examples(300))
@given(st.integers(0, 40), st.lists(_calls, max_size=60))
def test_against_the_model(capacity: int, calls: list[tuple[object, ...]]) -> None:
    cache: BlockCache[str] = BlockCache(capacity)
    model = _Model(capacity)
    for number, call in enumerate(calls):
        _call(cache, model, call, f"{call} {number}")
        stats = cache.stats()
        assert cache.size_bytes == stats.size_bytes == model.size() <= model.capacity
        by_priority = tuple(sum(b.size for b in model.blocks if b.priority == rank) for rank in CachePriority)
        assert stats.bytes_by_priority == by_priority
        assert (stats.blocks, stats.hits) == (len(model.blocks), model.hits)
    for key in _KEYS:
        assert cache.get(key) == model.get(key)


# --- threads


@contextmanager
def _thread(work: Callable[[], None]) -> Iterator[None]:
    thread = Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def _second_load_during_the_first(
    cache: BlockCache[str], first: Callable[[], tuple[str, int]], second: Callable[[], tuple[str, int]]
) -> tuple[Future[str], Future[str], bool]:
    """Load a key, and again from another thread while the first read runs; whether the second read ran beside it. The
    first goes on when the second reads, or waits for it."""
    has_read, has_come = Event(), Event()
    outcomes: tuple[Future[str], Future[str]] = Future(), Future()

    class Awaited(Event):
        def wait(self, timeout: float | None = None) -> bool:
            has_come.set()
            return super().wait(timeout)

    def observed() -> tuple[str, int]:
        has_read.set()
        has_come.set()
        return second()

    def load(read: Callable[[], tuple[str, int]], outcome: Future[str]) -> None:
        try:
            outcome.set_result(cache.load(("a", 0), ON_DEMAND, read))
        except Unavailable as error:
            outcome.set_exception(error)

    other = Thread(target=load, args=(observed, outcomes[1]), daemon=True)
    beside = []

    def starts_the_other() -> tuple[str, int]:
        cache._loads["a", 0].done = Awaited()
        other.start()
        assert has_come.wait(PATIENCE_S)
        beside.append(has_read.is_set())
        return first()

    load(starts_the_other, outcomes[0])
    other.join(PATIENCE_S)
    return *outcomes, beside[0]


@pytest.mark.parametrize("size_bytes", [10, 1_000], ids=["kept", "too large to keep"])
def test_threads_that_miss_together_read_once(size_bytes: int) -> None:
    cache: BlockCache[str] = BlockCache(100)
    first, second, beside = _second_load_during_the_first(
        cache, _reads("of the first", size_bytes), _reads("of the second", size_bytes)
    )
    assert not beside
    assert first.result(0) == "of the first"
    assert second.result(0) == "of the first"
    assert (cache.stats().misses, cache.stats().hits) == (1, 1)


def test_a_failed_read_fails_its_own_thread_only() -> None:
    def fails() -> tuple[str, int]:
        raise Unavailable("the store is away")

    cache: BlockCache[str] = BlockCache(100)
    first, second, beside = _second_load_during_the_first(cache, fails, _reads("of the second", 10))
    assert not beside
    with pytest.raises(Unavailable):
        first.result(0)
    assert second.result(0) == "of the second"
    assert cache.get(("a", 0)) == "of the second"
    assert cache.stats().misses == 2


def test_loads_of_other_keys_do_not_wait() -> None:
    cache: BlockCache[str] = BlockCache(100)
    is_reading, may_end = Event(), Event()

    def slow() -> tuple[str, int]:
        is_reading.set()
        assert may_end.wait(PATIENCE_S)
        return "slow", 10

    with _thread(lambda: _assert_loads(cache, ("a", 0), slow, "slow")):
        assert is_reading.wait(PATIENCE_S)
        assert cache.load(("a", 1), ON_DEMAND, _reads("quick", 10)) == "quick"
        assert cache.get(("a", 0)) is None
        cache.put(("a", 2), ON_DEMAND, "put", 10)
        may_end.set()
    assert _kept(cache, [("a", n) for n in range(3)]) == [("a", 0), ("a", 1), ("a", 2)]


def _assert_loads(cache: BlockCache[str], key: BlockKey, read: Callable[[], tuple[str, int]], value: str) -> None:
    assert cache.load(key, ON_DEMAND, read) == value


@pytest.fixture
def _hasty_threads() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("_hasty_threads")
@pytest.mark.parametrize("seed", range(3))
def test_many_threads(seed: int) -> None:
    """Whatever threads do to it, a key gives its own value, the bound holds, and the books are right at the end."""
    cache: BlockCache[BlockKey] = BlockCache(60)
    keys: list[BlockKey] = [(file, block) for file in "abcd" for block in range(6)]
    failures = 0

    def work(number: int) -> int:
        rng = Random(seed * 100 + number)
        failed = 0
        for _ in range(tries(1_500)):
            key, size = rng.choice(keys), rng.randint(1, 9)
            match rng.randrange(12):
                case 0:
                    cache.drop_file(str(key[0]))
                case 1:
                    cache.put(key, rng.choice(list(CachePriority)), key, size)
                case 2:
                    cache.grew(key, size)
                case 3:
                    cache.rerank_file(str(key[0]), rng.choice(list(CachePriority)))
                case 4:
                    failed += _fails_or_hits(cache, key)
                case 5 | 6 | 7:
                    assert cache.get(key) in (None, key)
                case _:
                    read = (lambda found: lambda: found)((key, size))
                    assert cache.load(key, rng.choice(list(CachePriority)), read) == key
            assert 0 <= cache.size_bytes <= 60
        return failed

    with ThreadPoolExecutor(4) as pool:
        failures = sum(pool.map(work, range(4)))
    stats = cache.stats()
    assert sum(stats.bytes_by_priority) == stats.size_bytes <= 60
    assert failures <= stats.misses
    assert stats.blocks == sum(cache.get(key) is not None for key in keys)
    for key in keys:
        assert cache.load(key, ON_DEMAND, lambda key=key: (key, 1)) == key  # type: ignore[misc]
    cache.drop(lambda _: True)
    assert cache.stats().bytes_by_priority == (0, 0, 0, 0)
    assert cache.size_bytes == 0


def _fails_or_hits(cache: BlockCache[BlockKey], key: BlockKey) -> int:
    def fails() -> tuple[BlockKey, int]:
        raise Unavailable("the store is away")

    try:
        assert cache.load(key, ON_DEMAND, fails) == key
    except Unavailable:
        return 1
    return 0
