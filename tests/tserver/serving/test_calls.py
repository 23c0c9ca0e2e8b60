"""Every operation of a backend says and gives the same over the socket as on the backend itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal as PyDecimal
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.catalog.objects import TableProperties
from stelae.client.intake.blocks import Sizes, small_blocks, weighed
from stelae.client.intake.mutations import blocks_of, erasures_of, mutations_of
from stelae.client.remote.store import RemoteStore
from stelae.client.remote.writes import GROUP_BYTES
from stelae.format.block import SmallBlock
from stelae.format.fragment.footer import FragmentFile, FragmentSeal, FragmentStats
from stelae.model.declare import columns, declare
from stelae.model.errors import (
    AlreadyExists,
    Closed,
    Conflict,
    Corruption,
    DiskFull,
    InternalFault,
    InvalidArgument,
    InvalidPredicate,
    NotCached,
    NotFound,
    PartialWrite,
    SchemaChanged,
    SnapshotTooOld,
    StaleSchema,
    StelaeError,
    TabletAway,
    Unavailable,
    UnknownOutcome,
)
from stelae.model.ids import GroupId, Micros, Row, SchemaVersion, TableId, Txn
from stelae.model.limits import DEFAULT_LIMITS
from stelae.model.predicate.parser import parse
from stelae.model.predicate.plan import ScanPredicate, TimeRange, plan
from stelae.model.predicate.selectors import ALL_COLUMNS, NO_COLUMNS, ColumnSelector
from stelae.model.ranges import RangeSet, RowRange
from stelae.service.backend import Backend, TableService, TabletService
from stelae.service.blocks import OrderedBlock
from stelae.service.bodies import PIECE_BYTES, pieces, scan_from, scan_parts
from stelae.service.jobs import BulkBackend
from stelae.service.reports import CheckReport, Problem
from stelae.service.scans import ScanAsk
from stelae.service.spaces import AlterZoneAsk, SpacesInfo, ZoneInfo
from stelae.service.table import OPERATIONS
from stelae.service.tables import AlterAsk, CreateAsk, TableStats, TabletInfo
from stelae.service.tickets import CompactionTicket, CompactionWork, HeldTable, LoadedFile, LoadTicket
from stelae.storage.read.asking import Version
from stelae.tserver.serving.scans import ANSWER_BYTES_MAX
from tests.client.fake_backend import READ_AT, FakeBackend, StoreWorld, served, table_info, until
from tests.client.samples import EVERYTHING, HASHED, PAIR, STRICT, USERS, WILD, every_type
from tests.effort import examples

TABLE = TableId(7)
SOME = (ColumnSelector("age", is_prefix=False), ColumnSelector("click:", is_prefix=True))
VALUES = {name: value for name, value in every_type()[0].items() if name != "id"}
OTHERS = {name: value for name, value in every_type()[1].items() if name != "id"} | {
    "click:über": b"\x00\xff",
    "odd": float("inf"),
    "deep": {"a": [{"b": [PyDecimal("1.50"), None]}], "c": {1: {2: [True, 2**63 - 1]}}},
    "vector": [float(i) / 3 for i in range(300)],
    "few": [1.5] * 7,
    "mixed": [1.0] * 8 + [None],
}
NULLS = dict.fromkeys(VALUES)
TABLETS = tuple(
    TabletInfo(n, 7, bytes([n]), None if n == 3 else bytes([n + 1]), "running", "ACTIVE", "s", 1, 2, 3, 4, 5, 6)
    for n in range(4)
)
TYPED_ASK = ScanAsk(
    plan(
        parse(
            '"a" <= row < "n" and column ~= "click:" and 10 <= time < 20 and history = 2 and '
            '(age > 30 or name in ("x", "größe") or seen >= timestamp "2024-05-06T07:08:09.123456Z" or not ok is null)'
        )
    ),
    Txn(99),
    reverse=True,
    limit=5,
)
BATCH = pa.record_batch({"id": pa.array([1, 2, None]), "v": pa.array([[1.0], None, []], pa.list_(pa.float64()))})

SPACES = SpacesInfo(("a", "main"), (ZoneInfo("fast", 1, 1, ("a", "b"), "tablets", 2**30, 3, True),))
FILE = FragmentFile(
    "fragments/00000007/0000000000000001-aa.parquet",
    FragmentSeal(9, 8, 7, 6, 5),
    FragmentStats(3, 2, 1, 0, b"a", b"\xff", Txn(4), Txn(5), Micros(-6), Micros(7)),
    Txn(8),
    Micros(9),
)
WORK = CompactionWork(1, b"config", GroupId(2), ("a", "b"), Txn(3), Txn(4), True, 5, 6)

CALLS: dict[str, tuple[Callable[[Backend], Any], Any]] = {
    "hold": (
        lambda b: b.hold(TABLE, Txn(4), 12.5),
        HeldTable("hold-1", Txn(4), Txn(2), "größe", "/data", b"table", (b"x" * 2**20, b""), "token"),
    ),
    "hold_now": (lambda b: b.hold(TABLE), HeldTable("hold-2", Txn(4), Txn(2), "x", "/data", b"table", ())),
    "renew": (lambda b: b.renew("hold-1", 60.0), None),
    "release": (lambda b: b.release("hold-1"), None),
    "begin_load": (
        lambda b: b.begin_load(TABLE, "größe", 3),
        LoadTicket("load-1", TABLE, "x", "/data", "fragments/x", b"table", (Row(b""), Row(b"\xff")), Txn(5)),
    ),
    "commit_load": (
        lambda b: b.commit_load("load-1", (LoadedFile(GroupId(1), FILE), LoadedFile(GroupId(2), FILE)), replaces=True),
        Txn(2**62),
    ),
    "commit_load_of_nothing": (lambda b: b.commit_load("load-1", ()), Txn(1)),
    "begin_compaction": (
        lambda b: b.begin_compaction(TABLE, full=False, erase_now=True),
        CompactionTicket("compaction-1", TABLE, "/data", "fragments/x", b"table", (WORK,)),
    ),
    "adopt": (lambda b: b.adopt("compaction-1", 3, FILE), True),
    "adopt_nothing": (lambda b: b.adopt("compaction-1", 4, None), False),
    "find": (lambda b: b.find("main.things"), table_info(USERS)),
    "names": (lambda b: b.names(), ("a.b", "größe.x")),
    "no_names": (lambda b: b.names(), ()),
    "spaces": (lambda b: b.spaces(), SPACES),
    "change_spaces": (lambda b: b.change_spaces(AlterZoneAsk("fast", racks=("a", "b"), is_default=True)), SPACES),
    "create": (
        lambda b: b.create(
            CreateAsk("x.y", EVERYTHING, (Row(b"\x00"), Row(b"\x80" * 4096)), "z", TableProperties(9, "c"), True)
        ),
        table_info(EVERYTHING),
    ),
    "create_plainly": (lambda b: b.create(CreateAsk("y", HASHED)), table_info(HASHED)),
    "alter": (
        lambda b: b.alter(
            "x",
            AlterAsk(
                ("a",),
                ("f",),
                {"b": "c"},
                {"g": "h"},
                {"i": "int64"},
                ("j",),
                {"g": {"k": "string not null default 'x'"}},
                {"g": ("l", "m")},
                {"g": "max-age=1d"},
                {"comment": "größe"},
                "zone",
                "new",
            ),
        ),
        table_info(WILD),
    ),
    "drop": (lambda b: b.drop("x", if_exists=True), None),
    "recall": (lambda b: b.recall("x", "y"), table_info(PAIR)),
    "recall_plainly": (lambda b: b.recall("x"), table_info(STRICT)),
    "truncate": (lambda b: b.truncate(TABLE), Txn(2**62)),
    "now": (lambda b: b.now(), Txn(2**63 - 1)),
    "newest": (lambda b: b.newest(TABLE, Row(b"\x00\xff"), SOME), VALUES),
    "newest_others": (lambda b: b.newest(TABLE, Row(b""), ALL_COLUMNS, Txn(3)), OTHERS),
    "newest_nulls": (lambda b: b.newest(TABLE, Row(b"x"), NO_COLUMNS), NULLS),
    "newest_nothing": (lambda b: b.newest(TABLE, Row(b"x"), NO_COLUMNS), None),
    "newest_exists": (lambda b: b.newest(TABLE, Row(b"x"), NO_COLUMNS), {}),
    "newest_many": (
        lambda b: b.newest_many(TABLE, (Row(b"a"), Row(b""), Row(b"c"), Row(b"d"), Row(b"a")), SOME, Txn(0)),
        [VALUES, None, OTHERS, {}, NULLS],
    ),
    "history": (
        lambda b: b.history(TABLE, Row(b"x"), ALL_COLUMNS, 3, Txn(5), TimeRange(-5, 2**40)),
        {
            name: (Version(Micros(-1), Txn(2**60), value), Version(Micros(-2), Txn(1), None))
            for name, value in OTHERS.items()
        }
        | {"none": ()},
    ),
    "history_nothing": (lambda b: b.history(TABLE, Row(b"x"), SOME, 1), None),
    "flush": (lambda b: b.flush(TABLE), None),
    "compact": (lambda b: b.compact(TABLE, erase_now=True), []),
    "check": (lambda b: b.check(), CheckReport((Problem("file", "x", "größe"),), {"files": 3})),
    "split": (lambda b: b.split(TABLE, Row(b"x"), 3), None),
    "split_plainly": (lambda b: b.split(TABLE), None),
    "join": (lambda b: b.join(TABLE, Row(b"x")), None),
    "tablets": (lambda b: b.tablets(TABLE), TABLETS),
    "stats": (lambda b: b.stats(TABLE), TableStats(1, 2, 3, 4, 5, 6, 2**62)),
    "metrics": (lambda b: b.metrics(), {"a.b": 1, "c": 0.5, "d": "x", "e": None, "f": True}),
    "scan": (lambda b: list(b.scan(TABLE, TYPED_ASK)), [BATCH, BATCH.slice(1, 1), BATCH.slice(3)]),
    "scan_everything": (lambda b: list(b.scan(TABLE, ScanAsk(ScanPredicate(), Txn(1)))), []),
    "scan_two_shapes": (
        lambda b: list(b.scan(TABLE, ScanAsk(ScanPredicate(rows=RangeSet()), Txn(1)))),
        [BATCH, BATCH.select(["v"]), pa.record_batch({"id": pa.array([], pa.int64())})],
    ),
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[StoreWorld]:
    with served(tmp_path, FakeBackend(tables={TABLE: table_info(USERS)})) as world:
        yield world


@pytest.mark.parametrize("which", CALLS)
def test_each_call_says_and_gives_the_same(which: str, world: StoreWorld) -> None:
    call, answer = CALLS[which]
    method = which if hasattr(FakeBackend, which) else which.rpartition("_")[0]
    method = {"no": "names", "scan_two": "scan", "commit_load_of": "commit_load"}.get(method, method)
    world.backend.answers[method] = answer
    plain = call(world.backend)
    over_socket = call(world.attach())
    assert over_socket == plain
    assert (plain[1] if method.startswith("newest") else plain) == (("a snapshot",) if method == "compact" else answer)
    assert repr(over_socket) == repr(plain)
    assert len(world.backend.calls) == 2
    assert world.backend.calls[0] == world.backend.calls[1]


def test_no_operation_is_left_out() -> None:
    """A store has a method for each operation of the table, and nothing else that is asked over a connection."""
    every = {*vars(Backend), *vars(TableService), *vars(TabletService), *vars(BulkBackend)}
    methods = {name for name in every if not name.startswith("_")} - {"is_local", "quick", "place"}
    assert methods <= set(dir(RemoteStore))
    assert methods - OPERATIONS.keys() == {"close", "newest_cached", "submit", "wait_for_room"}
    assert OPERATIONS.keys() - methods == {"unpin"}
    tried = {name for name in methods for which in CALLS if which.startswith(name)}
    assert OPERATIONS.keys() - tried == {"info", "pin", "unpin", "write"}


def test_a_remote_backend_is_a_backend(world: StoreWorld) -> None:
    backend: Backend = world.attach()
    assert not backend.is_local
    assert backend.place == world.path
    with pytest.raises(NotCached):
        backend.newest_cached(TABLE, Row(b"x"), ALL_COLUMNS)
    assert backend.info(TABLE) == table_info(USERS)
    with pytest.raises(NotFound, match="no table 8"):
        backend.info(TableId(8))


def test_a_cached_row_is_read_without_a_thread(world: StoreWorld) -> None:
    world.backend.answers |= {"newest_cached": VALUES, "newest": InvalidArgument("not needed")}
    assert world.attach().newest(TABLE, Row(b"x"), SOME, Txn(4)) == (Txn(4), VALUES)
    assert world.backend.calls == [("newest_cached", TABLE, Row(b"x"), SOME, Txn(4))]


def test_a_backend_that_is_not_local_is_asked_in_threads_only(world: StoreWorld) -> None:
    world.backend.is_local = False
    world.backend.answers |= {"newest_cached": InvalidArgument("would block the loop"), "newest": VALUES}
    assert world.attach().newest(TABLE, Row(b"x"), SOME) == (READ_AT, VALUES)


ERRORS: list[StelaeError] = [
    NotFound("no table 'x'; did you mean 'y'?"),
    AlreadyExists("x"),
    Conflict("row 'x' changed"),
    PartialWrite("some", 17),
    Corruption("bad page", "f.parquet", 4096),
    InvalidPredicate("no such thing", "a = ", 4),
    SnapshotTooOld("größe"),
    DiskFull("no room"),
    StaleSchema("version 3"),
    TabletAway("tablet 4"),
    NotCached("row"),
    SchemaChanged("column"),
    UnknownOutcome("lost"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("which", ["find", "newest", "newest_many", "scan", "write", "compact"])
def test_errors_come_as_they_are(which: str, error: StelaeError, world: StoreWorld) -> None:
    world.backend.answers |= {which: error, "newest_cached": error}
    calls: dict[str, Callable[[Backend], Any]] = {
        **{name: call for name, (call, _) in CALLS.items()},
        "write": lambda b: b.write(TABLE, USERS_BLOCKS),
    }
    remote = world.attach()
    for _ in range(2):
        with pytest.raises(StelaeError) as caught:
            calls[which](remote)
        assert type(caught.value) is type(error)
        assert str(caught.value) == str(error)
        assert vars(caught.value) == vars(error)
    assert remote.connections == 1


def test_mistakes_of_the_owner_are_named_and_not_shown(world: StoreWorld) -> None:
    world.backend.answers |= {"find": lambda _: "abc".index("x"), "now": Txn(1)}
    seen: list[dict[str, Any]] = []
    world.loop.run(_watch(seen))
    remote = world.attach()
    with pytest.raises(InternalFault, match="ValueError") as caught:
        remote.find("x")
    assert "substring" not in str(caught.value)
    assert [type(each["exception"]) for each in seen] == [ValueError]
    assert remote.now() == 1


async def _watch(seen: list[dict[str, Any]]) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))


def test_an_owner_that_closes_is_away_and_this_side_is_not_closed(world: StoreWorld) -> None:
    world.backend.answers["now"] = Closed("the database is closed")
    with pytest.raises(Unavailable, match="is closing it"):
        world.attach().now()


@pytest.mark.parametrize(
    "ask",
    [
        lambda b: b.now.__self__.truncate(TableId(2**70)),
        lambda b: b.find("\ud800"),
        lambda b: b.find("x" * 2_000_000),
        lambda b: b.newest(TABLE, Row("text"), ALL_COLUMNS),  # type: ignore[arg-type]
        lambda b: b.truncate(TableId(-1)),
        lambda b: b.write(TABLE, []),
    ],
    ids=["number", "text", "size", "type", "bound", "nothing"],
)
def test_what_cannot_be_asked_is_refused_and_the_connection_goes_on(
    ask: Callable[[RemoteStore], Any], world: StoreWorld
) -> None:
    world.backend.answers["now"] = Txn(1)
    remote = world.attach()
    assert remote.now() == 1
    with pytest.raises(StelaeError):
        ask(remote)
    assert remote.now() == 1
    assert remote.connections == 1
    assert [call[0] for call in world.backend.calls] == ["now", "now"]


# -- large answers


def test_a_row_too_large_for_a_frame_comes_in_pieces(world: StoreWorld) -> None:
    big = {f"c{i}": bytes([i]) * (16 * 2**20) for i in range(5)}
    assert sum(map(len, big.values())) > 64 * 2**20 > ANSWER_BYTES_MAX
    world.backend.answers |= {"newest_cached": big, "newest": big, "newest_many": [big, None]}
    remote = world.attach()
    assert remote.newest(TABLE, Row(b"x"), SOME, Txn(3)) == (Txn(3), big)
    assert world.backend.calls[-1] == ("newest", TABLE, Row(b"x"), SOME, Txn(3))
    assert remote.newest_many(TABLE, [Row(b"x"), Row(b"y")], SOME, Txn(3)) == (Txn(3), [big, None])


def test_history_and_names_too_large_for_a_frame(world: StoreWorld) -> None:
    history = {"c": tuple(Version(Micros(i), Txn(i), bytes([i]) * (16 * 2**20)) for i in range(5))}
    names = tuple(f"{'x' * 250}.{i}" for i in range(40_000))
    world.backend.answers |= {"history": history, "names": names}
    assert world.attach().history(TABLE, Row(b"x"), ALL_COLUMNS, 5) == history
    assert world.attach().names() == names


def test_a_batch_is_sliced_and_a_row_too_large_for_a_frame_is_cut(world: StoreWorld) -> None:
    many = pa.record_batch({"n": pa.array(np.arange(2_000_000))})
    wide = pa.record_batch({f"c{i}": pa.array([bytes([i]) * (16 * 2**20)]) for i in range(5)})
    world.backend.answers["scan"] = [many, wide, many.slice(0, 2)]
    batches = list(world.attach().scan(TABLE, TYPED_ASK))
    assert len(batches) > 5
    assert all(batch.nbytes <= PIECE_BYTES for batch in batches[:-2])
    assert pa.Table.from_batches(batches[:-2]).combine_chunks() == pa.Table.from_batches([many]).combine_chunks()
    assert batches[-2:] == [wide, many.slice(0, 2)]


def test_batches_lie_straight_in_memory(world: StoreWorld) -> None:
    world.backend.answers["scan"] = [pa.record_batch({f"{'n' * i}": pa.array([1, 2, i])}) for i in range(1, 40)]
    for batch in world.attach().scan(TABLE, TYPED_ASK):
        assert batch.column(0).buffers()[1].address % 8 == 0


def test_many_rows_are_asked_for_at_one_snapshot(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stelae.service.messages.ROWS_MAX", 3)
    world.backend.answers |= {
        "pin": Txn(77),
        "newest_many": lambda _, rows, __, ___: [{"row": bytes(row)} for row in rows],
    }
    rows = [Row(b"%d" % n) for n in range(8)]
    remote = world.attach()
    assert remote.newest_many(TABLE, rows, SOME) == (Txn(77), [{"row": row} for row in rows])
    asked = [call for call in world.backend.calls if call[0] == "newest_many"]
    assert [len(call[2]) for call in asked] == [3, 3, 2]
    assert {call[4] for call in asked} == {77}
    assert not world.backend.pins
    assert remote.newest_many(TABLE, rows, SOME, Txn(5)) == (Txn(5), [{"row": row} for row in rows])
    assert {call[4] for call in world.backend.calls[-3:]} == {5}
    assert remote.newest_many(TABLE, [], SOME) == (READ_AT, [])


@given(st.binary(max_size=40))
@settings(max_examples=examples(100))
def test_pieces_are_the_same_bytes(data: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stelae.service.bodies.PIECE_BYTES", 4)
        cut = [bytes(piece) for piece in pieces(data)]
    assert b"".join(cut) == data
    assert all(len(piece) == 4 for piece in cut[:-1])
    assert all(0 < len(piece) <= 4 for piece in cut)


ranges = st.lists(st.tuples(st.binary(max_size=3), st.none() | st.binary(max_size=3)), max_size=5).map(
    lambda pairs: RangeSet.of(RowRange(*pair) for pair in pairs)
)
texts = st.sampled_from(
    [
        None,
        'a = 1 and "b" != c',
        'column ~= "f:" or column = "x"',
        "time < 5",
        "history = 3",
        "not (a is null or b = 2)",
    ]
)


@given(ranges, texts, st.booleans(), st.none() | st.integers(0, 9))
@settings(max_examples=examples(100))
def test_what_a_scan_asks_for_comes_back(rows: RangeSet, text: str | None, reverse: bool, limit: int | None) -> None:
    said = ScanPredicate() if text is None else plan(parse(text))
    ask = ScanAsk(ScanPredicate(rows, said.columns, said.time, said.history, said.where), Txn(3), reverse, limit)
    assert scan_from(*scan_parts(TABLE, ask)) == ask


def test_rows_may_be_said_twice() -> None:
    """As ranges, and in what is evaluated: both count."""
    ask = ScanAsk(ScanPredicate(RangeSet.of([RowRange(b"a", b"m")]), where=parse('row >= "c"')), Txn(1))
    assert scan_from(*scan_parts(TABLE, ask)).predicate == ScanPredicate(RangeSet.of([RowRange(b"c", b"m")]))


# -- writes

USERS_BLOCKS = blocks_of(USERS, [{"id": "ann", "name": "Ann"}, {"id": "bob", "age": 3, "click:home": b"1"}])


def _many_rows(schema_name: str, count: int) -> list[dict[str, Any]]:
    match schema_name:
        case "users":
            return [{"id": f"u{n:06}", "name": "x", "age": n, "click:a": b"1"} for n in range(count)]
        case "pair":
            return [{"area": "a", "place": n, "number": n} for n in range(count)]
        case "hashed":
            return [{"id": n, "number": n} for n in range(count)]
        case "everything":
            return [row | {"id": n} for n in range(count) for row in every_type()[:1]]
        case _:
            return [{"id": n, "click:a": b"1", "other:b": b"2"} for n in range(count)]


@pytest.mark.parametrize("count", [1, 50, 3_000])
@pytest.mark.parametrize("name", ["users", "pair", "hashed", "everything", "wild"])
@pytest.mark.parametrize("way", ["write", "submit"])
def test_blocks_arrive_as_they_are(way: str, name: str, count: int, world: StoreWorld) -> None:
    schema = {"users": USERS, "pair": PAIR, "hashed": HASHED, "everything": EVERYTHING, "wild": WILD}[name]
    blocks = blocks_of(schema, _many_rows(name, count))
    world.backend.tables[TABLE] = table_info(schema)
    world.backend.answers["write"] = Txn(55)
    remote = world.attach()
    for backend in (world.backend, remote):
        txn = backend.write(TABLE, blocks, Txn(9)) if way == "write" else backend.submit(TABLE, blocks).result()
        assert txn == 55
    assert world.backend.calls[0] == world.backend.calls[1]


def test_erasures_arrive_as_they_are(world: StoreWorld) -> None:
    world.backend.answers["write"] = Txn(1)
    said = [
        *mutations_of(USERS, {"id": "ann", "name": None, "age": 3}),
        *erasures_of(USERS, "ann", columns=["age", "click:"], versions=None, ts=None),
    ]
    blocks = list(small_blocks(USERS, [weighed(said)], Sizes(DEFAULT_LIMITS)))
    world.attach().write(TABLE, blocks)
    world.backend.write(TABLE, blocks)
    assert world.backend.calls[0] == world.backend.calls[1]


def test_a_call_of_many_bytes_goes_group_after_group(world: StoreWorld) -> None:
    rows = [{"id": f"{n:04}", "name": "x" * 100_000} for n in range(500)]
    blocks = blocks_of(USERS, rows, block_rows_max=40)
    world.backend.answers["write"] = lambda _, said, __: Txn(len(said))
    assert world.attach().write(TABLE, blocks) == max(len(call[2]) for call in world.backend.calls)
    said = [block for call in world.backend.calls for block in call[2]]
    sizes = [sum(len(data) for data, _ in call[2]) for call in world.backend.calls]
    assert len(sizes) > 2
    assert all(size <= GROUP_BYTES or len(call[2]) == 1 for size, call in zip(sizes, world.backend.calls, strict=True))
    world.backend.write(TABLE, blocks)
    assert tuple(said) == world.backend.calls[-1][2]


@pytest.mark.parametrize("way", ["write", "submit"])
def test_an_error_half_way_says_what_is_durable(way: str, world: StoreWorld) -> None:
    rows = [{"id": f"{n:04}", "name": "x" * 100_000} for n in range(500)]
    blocks = blocks_of(USERS, rows, block_rows_max=40)
    world.backend.answers["write"] = lambda *_: Conflict("no") if len(world.backend.calls) == 2 else Txn(3)
    remote = world.attach()
    with pytest.raises(PartialWrite, match="no") as caught:
        remote.write(TABLE, blocks) if way == "write" else remote.submit(TABLE, blocks).result()
    first = sum(len(row_names) for _, row_names in world.backend.calls[0][2])
    assert caught.value.durable == first > 0
    assert len(world.backend.calls) == 2
    world.backend.calls.clear()
    world.backend.answers["write"] = lambda *_: PartialWrite("some", 5) if len(world.backend.calls) == 2 else Txn(3)
    with pytest.raises(PartialWrite) as caught:
        remote.write(TABLE, blocks)
    assert caught.value.durable == first + 5
    world.backend.calls.clear()
    world.backend.answers["write"] = lambda *_: StaleSchema("old") if len(world.backend.calls) == 2 else Txn(3)
    with pytest.raises(PartialWrite, match="old") as caught:  # whoever is told StaleSchema writes all of it again
        remote.write(TABLE, blocks)
    assert caught.value.durable == first
    world.backend.calls.clear()
    world.backend.answers["write"] = lambda *_: StaleSchema("old")
    with pytest.raises(StaleSchema):
        remote.write(TABLE, blocks)


OTHER_USERS = declare({"id": "string"}, [columns("profile", {"name": "int64"})])


def _unordered() -> list[OrderedBlock]:
    [ordered] = blocks_of(USERS, [{"id": "a", "age": 1}, {"id": "b", "age": 2}])
    assert isinstance(ordered.block, SmallBlock)
    return [OrderedBlock(SmallBlock(USERS.version, ordered.block.mutations[::-1]), ordered.rows)]


def _of_version(version: int) -> list[OrderedBlock]:
    block = USERS_BLOCKS[0].block
    assert isinstance(block, SmallBlock)
    return [OrderedBlock(SmallBlock(SchemaVersion(version), block.mutations), USERS_BLOCKS[0].rows)]


@pytest.mark.parametrize(
    ("blocks", "error"),
    [
        (lambda: blocks_of(WILD, [{"id": 3, "x:y": b"1"}]), InvalidArgument),
        (lambda: blocks_of(OTHER_USERS, [{"id": "a", "name": 3}]), InvalidArgument),
        (_unordered, InvalidArgument),
        (lambda: _of_version(USERS.version + 1), StaleSchema),
    ],
    ids=["key", "column", "order", "version"],
)
def test_blocks_that_do_not_fit_the_table_never_reach_the_backend(
    blocks: Callable[[], Sequence[OrderedBlock]], error: type[StelaeError], world: StoreWorld
) -> None:
    world.backend.answers["write"] = Txn(1)
    remote = world.attach()
    with pytest.raises(error):
        remote.write(TABLE, [*USERS_BLOCKS, *blocks()])
    with pytest.raises(NotFound):
        remote.write(TableId(8), USERS_BLOCKS)
    assert world.backend.calls == []
    assert remote.write(TABLE, USERS_BLOCKS) == 1


def test_a_failed_write_does_not_stop_those_after_it(world: StoreWorld) -> None:
    numbers, refused = count(1), list[int]()

    def answer(*_: Any) -> Any:
        number = next(numbers)
        if number % 3:
            return Txn(number)
        refused.append(number)
        return Conflict(f"{number}")

    world.backend.answers["write"] = answer
    remote = world.attach()
    large = blocks_of(USERS, [{"id": f"{n}", "name": "x" * 9_000_000} for n in range(3)])
    futures = [remote.submit(TABLE, large if n == 10 else USERS_BLOCKS) for n in range(20)]
    ends = [type(future.exception()) for future in futures]
    assert ends.count(Conflict) + ends.count(PartialWrite) == len(refused) > 5
    assert ends.count(type(None)) == 20 - len(refused)


def test_closing_waits_for_what_was_submitted(world: StoreWorld) -> None:
    go, begun = Event(), Event()

    def answer(*_: Any) -> Txn:
        begun.set()
        go.wait()
        return Txn(4)

    world.backend.answers["write"] = answer
    remote = world.attach()
    future = remote.submit(TABLE, USERS_BLOCKS)
    begun.wait()
    closing = world.threads.submit(remote.close)
    until(remote._changes.ended.is_set, world.loop)
    with pytest.raises(Closed):
        remote.submit(TABLE, USERS_BLOCKS)
    assert not future.done()
    assert not closing.done()
    go.set()
    closing.result()
    assert future.result() == 4
    for call in (remote.now, lambda: remote.write(TABLE, USERS_BLOCKS), lambda: remote.submit(TABLE, USERS_BLOCKS)):
        with pytest.raises(Closed):
            call()
    remote.close()
