"""A tablet's config says all of its state that is not in the log, and is read back as what it was, or not at all."""

from __future__ import annotations

import json
from itertools import pairwise
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stelae.format.fragment.footer import FragmentFile, FragmentSeal, FragmentStats
from stelae.model.declare import cells, columns, declare
from stelae.model.errors import Corruption, UnsupportedFormat
from stelae.model.hybrid import TXN_MIN, micros_of
from stelae.model.ids import TS_MAX, TS_MIN, Epoch, Micros, Row, SchemaVersion, TableId, TabletId, Txn
from stelae.model.mutation import Put
from stelae.model.ranges import ALL_ROWS, RangeSet, RowRange
from stelae.sim.effects import SimCrash
from stelae.storage.tablet.config import (
    TabletConfig,
    config_of,
    decode_config,
    encode_config,
    narrowed,
    state_of,
)
from stelae.storage.tablet.config_bytes import CONFIG_VERSION
from stelae.storage.tablet.opening import settled
from stelae.storage.tablet.state import (
    Ref,
    TabletState,
    altered,
    check_state,
    joined,
    new_tablet,
    purged,
    replaced,
    split,
    with_floor,
    with_load,
    with_prepared,
)
from tests.effort import examples
from tests.storage import engine as world
from tests.storage.workloads import START, choose_alteration, choose_schema

TABLE = TableId(7)
PLACES = [b"\0", b"a", b"b", b"m\xff\xfe", b"z"]
seeds = st.integers(0, 2**32 - 1)


# -- random states


def choose_file(random: Random) -> FragmentFile:
    first, last = sorted(random.sample([b"", b"\0", b"a", b"\xff" * 9], 2))
    stats = FragmentStats(
        records=random.randrange(1, 2**40),
        rows=random.randrange(1, 99),
        erasures=random.choice([0, 3]),
        markers=random.choice([0, 2]),
        first_row=first,
        last_row=last,
    )
    if random.random() < 0.7:
        own = {"txn_min": START, "txn_max": START + 9, "ts_min": TS_MIN, "ts_max": TS_MAX}
        stats = msgspec.structs.replace(stats, **own)
    seal = FragmentSeal(*(random.randrange(2**32) for _ in range(5)))
    return FragmentFile(f"fragments/{random.randrange(2**32):08x}.parquet", seal, stats)


def choose_state(random: Random) -> TabletState:
    """What a few changes of all kinds leave behind."""
    state = new_tablet(TabletId(1), TABLE, ALL_ROWS, choose_schema(random.choice), Txn(random.choice([0, START])))
    for number in range(random.randint(0, 9)):
        kinds = ["file", "file", "file", "alter", "alter", "split", "floor", "prepare", "load", "epoch", "purge"]
        match random.choice(kinds):
            case "purge":
                state = purged(state, Txn(START + random.randrange(9)))
            case "file":
                group = random.choice(state.schema.groups).id
                state = replaced(state, group, (), [choose_file(random)])
            case "alter":
                state = altered(state, choose_alteration(random.choice, state.schema)[1])
            case "split":
                at = random.choice(PLACES)
                if at in state.rows and at != state.rows.start:
                    both = split(state, Row(at), TabletId(2 * number), TabletId(2 * number + 1), state.resize + 1)
                    state = random.choice(both)
            case "floor":
                state = with_floor(state, Txn(START + number))
            case "prepare":
                files = {group.id: [choose_file(random)] for group in state.schema.groups[:2]}
                state = with_prepared(state, f"load-{random.randrange(2)}", files)
            case "load":
                state = with_load(state, f"load-{random.randrange(2)}", Txn(START + number))
            case _:
                state = replace(state, epoch=Epoch(state.epoch + 1))
    return check_state(state)


def files_of(state: TabletState) -> list[tuple[int, list[Ref]]]:
    found = [(id_, [ref for ref in refs if ref.file is not None]) for id_, refs in state.groups]
    return [(id_, refs) for id_, refs in found if refs]


@given(seeds)
@settings(max_examples=examples(80))
def test_what_is_saved_is_what_is_loaded(seed: int) -> None:
    state = choose_state(Random(seed))
    config = config_of(state, "log of a server")
    decoded = decode_config(encode_config(config), "here")
    assert decoded == config
    assert decoded.files() == frozenset(state.files())
    loaded = check_state(state_of(decoded, state.schema))
    assert files_of(loaded) == files_of(state)
    kept = ("tablet", "table", "rows", "flushed", "floors", "prepared", "epoch", "resize", "purged_below")
    assert [getattr(loaded, name) for name in kept] == [getattr(state, name) for name in kept]
    assert loaded.active.is_empty
    assert len(loaded.memories) == 1
    assert config_of(loaded, "log of a server") == config


@given(seeds)
@settings(max_examples=examples(40))
def test_a_loaded_state_changes_as_the_one_that_was_saved(seed: int) -> None:
    """A config of an older schema is altered after it was loaded."""
    random = Random(seed)
    state = choose_state(random)
    loaded = state_of(decode_config(encode_config(config_of(state)), "here"), state.schema)
    for _ in range(3):
        schema = choose_alteration(random.choice, state.schema)[1]
        state, loaded = altered(state, schema), altered(loaded, schema)
    assert config_of(loaded) == config_of(state)


@given(seeds, st.sampled_from(PLACES))
@settings(max_examples=examples(40))
def test_narrowed_is_what_a_split_leaves(seed: int, at: bytes) -> None:
    state = choose_state(Random(seed))
    if at not in state.rows or at == state.rows.start:
        return
    for half in split(state, Row(at), TabletId(8), TabletId(9), 99):
        left = narrowed(config_of(state), half.rows)
        assert msgspec.structs.replace(left, tablet=half.tablet, resize=99) == config_of(half)
        check_state(state_of(left, state.schema))


# -- bytes that are no config


@pytest.mark.parametrize("version", [0, CONFIG_VERSION + 1, 10**30])
def test_another_version_is_refused(version: int) -> None:
    """Also if all else in it is unknown."""
    saved = json.loads(encode_config(config_of(choose_state(Random(3)))))
    for data in ({**saved, "version": version}, {"version": version, "new": {"shape": []}}):
        with pytest.raises(UnsupportedFormat, match=f"here: .*version {version}; .*reads version {CONFIG_VERSION}"):
            decode_config(json.dumps(data).encode(), "here")


def test_a_config_that_says_no_version_is_refused() -> None:
    with pytest.raises(UnsupportedFormat, match="version 0"):
        decode_config(b"{}", "here")


@pytest.mark.parametrize("seed", range(3))
def test_every_cut_is_found(seed: int) -> None:
    data = encode_config(config_of(choose_state(Random(seed))))
    for length in range(len(data)):
        with pytest.raises(Corruption, match="here"):
            decode_config(data[:length], "here")


@given(seeds, st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.binary(max_size=3)), min_size=1, max_size=3))
@settings(max_examples=examples(200))
def test_damage_is_found_or_gives_a_config(seed: int, damages: list[tuple[float, bytes]]) -> None:
    """There is no checksum: whoever keeps configs has one. But nothing else than these comes out of any bytes."""
    data = encode_config(config_of(choose_state(Random(seed % 50))))
    for where, what in damages:
        at = int(where * len(data))
        data = data[:at] + what + data[at + len(what) :]
    try:
        found = decode_config(data, "here")
    except (Corruption, UnsupportedFormat):
        return
    assert isinstance(found, TabletConfig)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"[]", id="no object"),
        pytest.param(b'{"version": "1"}', id="a version in quotes"),
        pytest.param(b'{"version": 1}', id="nothing but a version"),
        pytest.param(b'{"version": 1.5}', id="no whole number"),
        pytest.param(b'{"version": null}', id="null"),
        pytest.param(b"\xff\xfe", id="no text"),
        pytest.param(b'{"\xff": 1}', id="a name that is no text"),
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(b'{"version": 1, "x": ' + b"[" * 100_000, id="deep inside"),
        pytest.param(b'{"version": ' + b"9" * 5000 + b"}", id="a huge number"),
    ],
)
def test_bytes_that_are_no_config(data: bytes) -> None:
    with pytest.raises((Corruption, UnsupportedFormat), match="here"):
        decode_config(data, "here")


# -- configs that overlap


def named(tablet: int, start: bytes, stop: bytes | None, resize: int, table: int = 7) -> TabletConfig:
    rows = RowRange(start, stop)
    schema = declare({"id": "binary"}, [columns("c", {"n": "int32"})])
    state = replace(new_tablet(TabletId(tablet), TableId(table), rows, schema), resize=resize)
    return config_of(replaced(state, schema.groups[0].id, (), [choose_file(Random(tablet))]))


PARENT = named(1, b"", None, 0)
LEFT, RIGHT = named(2, b"", b"m", 1), named(3, b"m", None, 1)
JOINED = named(4, b"", None, 2)


@pytest.mark.parametrize(
    ("saved", "expected"),
    [
        pytest.param([PARENT], [(1, b"", None)], id="one"),
        pytest.param([LEFT, RIGHT], [(2, b"", b"m"), (3, b"m", None)], id="neighbours"),
        pytest.param([PARENT, LEFT, RIGHT], [(2, b"", b"m"), (3, b"m", None)], id="split, the parent still there"),
        pytest.param([PARENT, LEFT], [(2, b"", b"m"), (1, b"m", None)], id="split, only the left half saved"),
        pytest.param([RIGHT, PARENT], [(1, b"", b"m"), (3, b"m", None)], id="split, only the right half saved"),
        pytest.param([LEFT, RIGHT, JOINED], [(4, b"", None)], id="joined, both halves still there"),
        pytest.param([RIGHT, JOINED], [(4, b"", None)], id="joined, one half still there"),
        pytest.param([PARENT, LEFT, RIGHT, JOINED], [(4, b"", None)], id="split and joined"),
        pytest.param(
            [RIGHT, LEFT, named(5, b"c", b"t", 3)],
            [(2, b"", b"c"), (5, b"c", b"t"), (3, b"t", None)],
            id="joined and split elsewhere, the middle saved",
        ),
        pytest.param(
            [PARENT, named(9, b"", None, 0, table=8), LEFT],
            [(2, b"", b"m"), (1, b"m", None), (9, b"", None)],
            id="another table",
        ),
        pytest.param([], [], id="none"),
    ],
)
def test_the_later_resize_counts(saved: list[TabletConfig], expected: list[tuple[int, bytes, bytes | None]]) -> None:
    found = sorted(settled(saved), key=lambda config: (config.table, config.rows.start))
    assert [(config.tablet, config.rows.start, config.rows.stop) for config in found] == expected
    for config in found:
        for _, refs in config.groups:
            assert all(config.rows.covers(ref.rows) and not ref.rows.is_empty for ref in refs)
        assert RangeSet.of(rows for rows, _ in config.flushed) == RangeSet.of([config.rows])
    assert settled(found) == settled(settled(found))


@given(seeds)
@settings(max_examples=examples(40))
def test_what_is_settled_covers_the_same_rows_once(seed: int) -> None:
    """One split or join is under way: any of its configs is saved, and any of those it replaces is still there."""
    random = Random(seed)
    schema = declare({"id": "binary"}, [columns("c", {"n": "int32"})])
    states = [new_tablet(TabletId(1), TABLE, ALL_ROWS, schema)]
    for number in range(1, 6):
        at = random.randrange(len(states))
        before, free = list(states), [place for place in PLACES if place in states[at].rows][1:]
        old = states[at : at + random.choice([1, 2])]
        if len(old) == 2:
            new = [joined(old[0], old[1], TabletId(2 * number), max(each.resize for each in old) + 1)]
        elif free:
            both = split(old[0], Row(free[0]), TabletId(2 * number), TabletId(2 * number + 1), old[0].resize + 1)
            new = list(both)
        else:
            continue
        states[at : at + len(old)] = new
        arrived = random.sample(new, random.randint(0, len(new)))
        left = old if len(arrived) < len(new) else random.sample(old, random.randint(0, len(old)))
        kept = [state for state in before if state not in old]
        there = [*kept, *arrived, *left]
        found = settled([config_of(state) for state in random.sample(there, len(there))])
        ranges = sorted((config.rows for config in found), key=lambda rows: rows.start)
        assert RangeSet.of(ranges) == RangeSet.of([ALL_ROWS])
        assert not any(a.overlaps(b) for a, b in pairwise(ranges))
        assert len({config.tablet for config in found}) == len(found)


# -- in the engine


def row(number: int) -> Row:
    return Row(b"%02d" % number)


def filled(crash_at: int | None = None) -> world.Engine:
    """Ten rows, one tablet, in a file and in memory."""
    schema = declare({"id": "string"}, [columns("c", {"n": "int32"}), cells("f", ["click"])])
    engine = world.Engine(schema, crash_at=crash_at)
    n = schema.column("n")[1].id
    engine.write([Put(row(number), ((n, number),)) for number in range(10)])
    engine.flush(TabletId(1))
    engine.write([Put(row(number), ((n, -number),)) for number in range(0, 10, 3)])
    return engine


def resize_often(engine: world.Engine) -> None:
    """Nobody asks for tablets 4 to 7, which are all that is left of 1, to be saved before the end, nor for 2 and 3."""
    engine.split(TabletId(1), row(5))
    engine.split(TabletId(3), row(8))
    engine.split(TabletId(2), row(2))
    engine.upkeep.save()


def test_a_crash_amid_saving_leaves_every_row_a_tablet() -> None:
    """Tablets that were split twice before anything was saved: whatever was saved of it is enough."""
    engine = filled()
    before = engine.effects.count
    resize_often(engine)
    ends = range(before + 1, engine.effects.count + 1)
    assert len(ends) >= 4
    for crash_at in ends:
        engine = filled(crash_at)
        expected = engine.scan(engine.shard.visible)
        with pytest.raises(SimCrash):
            resize_often(engine)
        engine.restart("kill")
        assert RangeSet.of(state.rows for state in engine.shard.tablets().values()) == RangeSet.of([ALL_ROWS]), (
            f"crash at {crash_at}"
        )
        assert engine.scan(engine.shard.visible) == expected, f"crash at {crash_at}"


def test_flushed_says_from_where_the_log_counts() -> None:
    engine = filled()
    state = engine.shard.state(TabletId(1))
    (rows, txn) = state.flushed[0]
    assert rows == ALL_ROWS
    assert TXN_MIN < txn < state.active.txn_min
    loaded = state_of(decode_config(encode_config(config_of(state)), "here"), engine.schema)
    assert loaded.flushed == state.flushed
    assert micros_of(txn) >= Micros(0)
    assert loaded.schema.version == SchemaVersion(1)
