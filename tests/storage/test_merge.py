"""A merge gives what the plain rule gives of each row and column, however the records lie in files.

Random records of both kinds of groups are cut into files at random: each file with a few of them, or one, or all;
records held twice; the columns of one record in two files; rows that go on from block to block. Whatever the cut, the
order of files and the size of blocks, the answers are the same, and no compaction changes one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from stelae.format.fragment.footer import FragmentFile
from stelae.model.arrow import to_arrow
from stelae.model.arrow_values import array_of, values_of
from stelae.model.declare import cells, columns, declare
from stelae.model.errors import Overloaded
from stelae.model.hybrid import TXN_MIN, micros_of, millis_of, pack
from stelae.model.ids import TS_MAX, TS_MIN, ColumnId, Micros, Row, TableId, TabletId, Txn
from stelae.model.mutation import Columns, EraseVersion, Mutation, Put
from stelae.model.predicate.plan import ALL_TIME, TimeRange
from stelae.model.predicate.selectors import ALL_COLUMNS, ColumnSelector, Selectors
from stelae.model.purge import MaxAge, MaxHistory, PastPolicy, PurgePolicy, Purging, Reigns, parse_purge
from stelae.model.ranges import ALL_ROWS, RowRange
from stelae.model.record import ROW_EXISTS, CellRecord, ColumnsRecord, Kind
from stelae.model.schema import CellsGroup, ColumnsGroup, Group
from stelae.model.values import Value
from stelae.sim.blobs import SimBlobStore
from stelae.sim.rng import SimRng
from stelae.storage.files.blocks import Block
from stelae.storage.files.cache import BlockCache
from stelae.storage.files.fragments import Fragments
from stelae.storage.files.writing import Shape, everything, fragment_spec, write_fragment
from stelae.storage.memory.cells import MemoryOfCells
from stelae.storage.memory.columns import ColumnsBlock, MemoryOfColumns
from stelae.storage.merge.alive import Judging
from stelae.storage.merge.order import extent, order_records, order_sorted, shared_bytes, words_of
from stelae.storage.merge.overlay import overlaid
from stelae.storage.merge.pick import Ordered, in_order, seen_versions
from stelae.storage.merge.records import Keeping, merged_records
from stelae.storage.merge.rule import Erased, Written, survivors
from stelae.storage.merge.slab import Slab, SlabColumn
from stelae.storage.read.asking import Asking
from stelae.storage.read.scans.cells import CellsQuestion, CellsScan, matching
from stelae.storage.read.scans.choices import ColumnChoice
from stelae.storage.read.scans.columns import ColumnsQuestion, ColumnsScan
from stelae.storage.tablet.parts import whole
from stelae.storage.tablet.state import Ref
from stelae.storage.upkeep.picker import Pick
from tests.effort import examples
from tests.storage.engine import Engine
from tests.storage.engine import expected as expected_scan
from tests.storage.plain import PlainTable
from tests.storage.workloads import POLICIES, START

TABLE = TableId(7)
TYPED = declare({"id": "binary"}, [columns("c", {"n": "int32", "s": "string", "d": "int32 not null default 7"})])
NAMED = declare({"id": "binary"}, [cells("f", ["click", "clicks", "view"])])
IDS = tuple(column.id for column in TYPED.groups[0].columns)  # type: ignore[union-attr]

KEYS = [
    b"",
    b"\0",
    b"\0\0",
    b"a",
    b"a\0",
    b"a" + b"\0" * 6,
    b"a" + b"\0" * 7,
    b"a" + b"\0" * 8,
    b"a" + b"\0" * 7 + b"b",
    b"abcdefg",
    b"abcdefgh",
    b"abcdefghi",
    b"abcdefgi",
    b"abcdefhh",
    b"\x7f" * 8,
    b"\x80" * 8,
    b"\xff" * 8,
    b"\xff" * 9,
    b"p" * 900,
    b"p" * 900 + b"\0",
    b"p" * 899 + b"q",
]
TXNS = [pack(millis_of(START) + ms, counter) for ms in (0, 1, 4, 30) for counter in (0, 1)]
TIMES = [Micros(micros_of(START) + us) for us in (0, -1, 1_000, 4_000, 30_000)] + [Micros(0), TS_MIN, TS_MAX]
NAMES = [("click", "q"), ("click", ""), ("click", "qq"), ("clicks", "q"), ("view", "q")]
VALUES: dict[ColumnId, tuple[Value, ...]] = {
    ROW_EXISTS: (None,),
    IDS[0]: (1, 2**31 - 1, None),
    IDS[1]: ("", "x", None),
    IDS[2]: (1, -1, None),
}
ALONE = ("", "")
"""The cell in which a put of the key alone lies."""

P = ParamSpec("P")
T = TypeVar("T")
Member = ColumnId | tuple[str, str]


class Rec(NamedTuple):
    """A record, or a part of one: of several columns, or of one cell. An erasure is `about` them without values, and
    that of a row about none."""

    row: bytes
    ts: Micros
    txn: Txn
    kind: Kind
    about: tuple[tuple[Member, Value], ...]

    @property
    def key(self) -> tuple[Any, ...]:
        """What no two whole records share, in the order they lie in."""
        member = self.about[0][0] if self.about else ALONE
        family, qualifier = member if isinstance(member, tuple) else ALONE
        return (self.row, family.encode(), qualifier.encode(), -self.ts, -self.txn, self.kind)


def put_together(parts: Iterable[Rec]) -> list[Rec]:
    """Whole records of parts, in order."""
    found: dict[tuple[Any, ...], dict[Member, Value]] = {}
    first: dict[tuple[Any, ...], Rec] = {}
    for part in parts:
        found.setdefault(part.key, {}).update(dict(part.about))
        first.setdefault(part.key, part)
    return [first[key]._replace(about=tuple(sorted(about.items()))) for key, about in sorted(found.items())]


# -- random records


class Pool(NamedTuple):
    """Few of each, so that records meet."""

    rows: list[bytes]
    times: list[Micros]
    txns: list[Txn]
    names: list[tuple[str, str]]


def few(random: Random, options: Sequence[T], least: int, most: int) -> list[T]:
    return random.sample(options, random.randint(least, most))


def records(random: Random, size: int, of_cells: bool) -> list[Rec]:
    """Whole ones, in order: of a few rows that much happened to, or of rows that were just put."""
    if random.random() < 0.3:
        return quiet(random, size, of_cells)
    return story(random, few(random, KEYS, 1, 3), size, of_cells)


def crowd(random: Random, of_cells: bool) -> list[Rec]:
    """Many rows, each with a story of its own."""
    stories = [
        pushed_out(random, row, of_cells)
        if random.random() < 0.15
        else story(random, [row], random.randint(0, 7), of_cells)
        for row in sorted(KEYS)
    ]
    return [rec for each in stories for rec in each]


def quiet(random: Random, size: int, of_cells: bool) -> list[Rec]:
    """Nothing but puts of values, nearly all rows once: files of them need no merge, unless the question does."""
    is_complete, at = random.choice([True, False]), few(random, TXNS, 1, 2)
    pool = Pool(KEYS, few(random, TIMES, 1, 2), at, few(random, NAMES, 1, 2))
    found: dict[tuple[Any, ...], Rec] = {}
    for row in random.sample(KEYS, min(size, len(KEYS))):
        for _ in range(random.choice([1, 1, 1, 1, 1, 1, 1, 2])):
            name = random.choice(pool.names)
            ids = IDS if is_complete else few(random, IDS, 1, 3)
            about = ((name, b"x"),) if of_cells else tuple((id_, random.choice(VALUES[id_])) for id_ in sorted(ids))
            rec = stamped(random, pool, Kind.PUT, about)._replace(row=row)
            found[rec.key] = rec
    return sorted(found.values(), key=lambda rec: rec.key)


def pushed_out(random: Random, row: bytes, of_cells: bool) -> list[Rec]:
    """A put, a newer one, and an erasure of just that: if the policy took the first, it does not come back."""
    txns, (old, new) = sorted(random.sample(TXNS, 3)), sorted(random.sample(TIMES[:5], 2))
    member: Member = NAMES[0] if of_cells else IDS[0]
    put, erased = ((member, b"x" if of_cells else 1),), ((member, None),)
    kinds = [(old, Kind.PUT, put), (new, Kind.PUT, put), (new, Kind.ERASE_VERSION, erased)]
    recs = [Rec(row, ts, txn, kind, about) for txn, (ts, kind, about) in zip(txns, kinds, strict=True)]
    return sorted(recs, key=lambda rec: rec.key)


def story(random: Random, rows: list[bytes], size: int, of_cells: bool) -> list[Rec]:
    """Erasures are mostly of what was put."""
    pool = Pool(rows, few(random, TIMES, 2, 4), few(random, TXNS, 3, 8), few(random, NAMES, 1, 2))
    found: dict[tuple[Any, ...], Rec] = {}
    for _ in range(size):
        puts = [rec for rec in found.values() if rec.kind is Kind.PUT]
        rec = (cell_record if of_cells else columns_record)(random, pool)
        if rec.kind is not Kind.PUT and puts and random.random() < 0.8:
            met = random.choice(puts)
            later = [txn for txn in pool.txns if txn > met.txn] or [rec.txn]
            rec = rec._replace(row=met.row, ts=met.ts, txn=random.choice(later), about=_meeting(rec, met))
        found[rec.key] = rec
    return sorted(found.values(), key=lambda rec: rec.key)


def _meeting(rec: Rec, met: Rec) -> tuple[tuple[Member, Value], ...]:
    """What an erasure must be about to reach a put; a put of the key alone only falls with its row."""
    match rec.kind:
        case Kind.ERASE_VERSION | Kind.ERASE_COLUMN:
            reached = tuple((member, None) for member, _ in met.about if member not in (ROW_EXISTS, ALONE))
            return reached or rec.about
        case _:
            return rec.about


def columns_record(random: Random, pool: Pool) -> Rec:
    kind = random.choice([Kind.PUT] * 6 + [Kind.ERASE_VERSION] * 2 + [Kind.ERASE_COLUMN, Kind.ERASE_ROW])
    ids: Sequence[ColumnId] = IDS if random.random() < 0.3 else few(random, [*IDS, ROW_EXISTS], 1, 4)
    if kind is not Kind.PUT:
        ids = [] if kind is Kind.ERASE_ROW else few(random, IDS, 1, 3)
    about = [(id_, random.choice(VALUES[id_]) if kind is Kind.PUT else None) for id_ in sorted(ids)]
    return stamped(random, pool, kind, tuple(about))


def cell_record(random: Random, pool: Pool) -> Rec:
    kind = random.choice([Kind.PUT] * 6 + [Kind.ERASE_VERSION, *list(Kind)])
    name = random.choice([*pool.names, *pool.names, ALONE] if kind is Kind.PUT else pool.names)
    value = random.choice([b"", b"x"]) if kind is Kind.PUT and name != ALONE else None
    about: tuple[tuple[Member, Value], ...] = ((name, value),)
    if kind is Kind.ERASE_ROW:
        about = ()
    elif kind is Kind.ERASE_FAMILY:
        about = (((name[0], ""), None),)
    return stamped(random, pool, kind, about)


def stamped(random: Random, pool: Pool, kind: Kind, about: tuple[tuple[Member, Value], ...]) -> Rec:
    return Rec(random.choice(pool.rows), random.choice(pool.times), random.choice(pool.txns), kind, about)


# -- the answer, row by row


@dataclass(frozen=True, slots=True)
class Question:
    at: Txn
    read_us: Micros
    floor: Txn = TXN_MIN
    policy: Purging = None
    time: TimeRange = ALL_TIME

    @property
    def asking(self) -> Asking:
        return Asking(self.at, self.floor, self.read_us, self.time)


def by_the_rule(parts: Iterable[Rec], question: Question) -> dict[bytes, dict[Member, list[tuple[int, int, Value]]]]:
    """All versions of all members of all rows that have any, newest first."""
    by_row: dict[bytes, list[Rec]] = {}
    for rec in put_together(parts):
        if question.floor <= rec.txn <= question.at:
            by_row.setdefault(rec.row, []).append(rec)
    found = {}
    for row, recs in sorted(by_row.items()):
        members = sorted({member for rec in recs if rec.kind is Kind.PUT for member, _ in rec.about})
        alive = {member: _versions(recs, member, question) for member in members}
        if any(alive.values()):
            found[row] = {member: versions for member, versions in alive.items() if versions}
    return found


def _versions(recs: Sequence[Rec], member: Member, question: Question) -> list[tuple[int, int, Value]]:
    puts, erased = [], []
    for rec in recs:
        about = dict(rec.about)
        match rec.kind:
            case Kind.PUT if member in about:
                puts.append(Written(rec.ts, rec.txn, about[member]))
            case Kind.ERASE_COLUMN | Kind.ERASE_VERSION if member in about:
                erased.append(Erased(rec.ts, rec.txn, rec.kind is Kind.ERASE_VERSION))
            case Kind.ERASE_FAMILY if isinstance(member, tuple) and (member[0], "") in about:
                erased.append(Erased(rec.ts, rec.txn, is_exact=False))
            case Kind.ERASE_ROW:
                erased.append(Erased(rec.ts, rec.txn, is_exact=False))
            case _:
                continue
    alive = survivors(puts, erased, question.policy, question.read_us)
    return [(put.ts, put.txn, put.held) for put in alive if put.ts in question.time]


# -- files


def slab_of(parts: Iterable[Rec], group: Group) -> Slab:
    """Parts of different records, in order."""
    recs = sorted(parts, key=lambda rec: rec.key)
    rows = pa.array([rec.row for rec in recs], pa.binary())
    ts, txn = (np.array([getattr(rec, name) for rec in recs], np.int64) for name in ("ts", "txn"))
    kinds = np.array([rec.kind for rec in recs], np.int8)
    if isinstance(group, CellsGroup):
        family, qualifier = (pa.array([rec.key[at] for rec in recs], pa.binary()) for at in (1, 2))
        value = pa.array([rec.about[0][1] if rec.about else None for rec in recs], pa.binary())
        return Slab(rows, ts, txn, kinds, (SlabColumn(value, written=True),), (family, qualifier))
    found = []
    for column in group.columns:
        written = np.array([column.id in dict(rec.about) for rec in recs], np.bool_)
        found.append(SlabColumn(array_of(column.type, [dict(rec.about).get(column.id) for rec in recs]), written))
    exists = np.array([ROW_EXISTS in dict(rec.about) for rec in recs], np.bool_)
    return Slab(rows, ts, txn, kinds, (*found, SlabColumn(None, exists)))


def recs_of(slab: Slab, group: Group) -> list[Rec]:
    """The records of a slab that has everything of the group."""
    kinds = np.zeros(len(slab), np.int8) if slab.kinds is None else slab.kinds
    stamps = zip(slab.rows.to_pylist(), slab.ts.tolist(), slab.txn.tolist(), map(Kind, kinds.tolist()), strict=True)
    if slab.cell is not None:
        names = zip(slab.cell[0].to_pylist(), slab.cell[1].to_pylist(), strict=True)
        values = values_or_nulls(slab.columns[0], len(slab), None)
        return [
            Rec(*stamp, () if stamp[3] is Kind.ERASE_ROW else (((family.decode(), qualifier.decode()), value),))
            for stamp, (family, qualifier), value in zip(stamps, names, values, strict=True)
        ]
    ids: tuple[ColumnId, ...] = (*IDS, ROW_EXISTS)
    about: list[list[tuple[Member, Value]]] = [[] for _ in range(len(slab))]
    for id_, column in zip(ids, slab.columns, strict=True):
        values = values_or_nulls(column, len(slab), id_)
        for at in np.flatnonzero(column.flags(len(slab))).tolist():
            about[at].append((id_, values[at]))
    return [
        Rec(*stamp, () if stamp[3] is Kind.ERASE_ROW else tuple(sorted(some)))
        for stamp, some in zip(stamps, about, strict=True)
    ]


def values_or_nulls(column: SlabColumn, count: int, id_: ColumnId | None) -> list[Value]:
    if column.values is None:
        return [None] * count
    return column.values.to_pylist() if id_ is None else values_of(TYPED.column_by_id(id_)[1].type, column.values)


class Lazily:
    """An executor whose jobs run, in a random order, when somebody waits for one; at times it is full."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._waiting: list[Callable[[], None]] = []

    def submit(self, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        if self._random.random() < 0.1:
            raise Overloaded("full")
        future = _Wanted[T](self.run_all)
        self._waiting.append(lambda: None if future.cancelled() else future.set_result(job(*args, **kwargs)))
        return future

    def run_all(self) -> None:
        self._random.shuffle(self._waiting)
        while self._waiting:
            self._waiting.pop()()

    def close(self) -> None: ...


class _Wanted(Future[T]):
    def __init__(self, run: Callable[[], None]) -> None:
        super().__init__()
        self._run = run

    def result(self, timeout: float | None = None) -> T:
        self._run()
        return super().result(timeout=0)


class Store:
    """Files of one group, and what they are read with."""

    def __init__(self, of_cells: bool, block_bytes: int, random: Random) -> None:
        self.schema = NAMED if of_cells else TYPED
        group = self.schema.groups[0]
        self.group: Group = structs.replace(group, options=structs.replace(group.options, block_bytes=block_bytes))
        self.part = whole(self.schema, self.group)
        self.blobs = SimBlobStore(SimRng(0))
        self.fragments = Fragments(self.blobs, BlockCache[Block](2**20), random.choice([None, Lazily(random)]))
        self._count = 0

    def write(self, slabs: Iterable[Slab], shape: Shape) -> FragmentFile | None:
        self._count += 1
        spec = fragment_spec(TABLE, self.schema, self.group, shape)
        return write_fragment(self.blobs, f"fragments/{self._count}", spec, self.group, slabs)

    def file(self, parts: Sequence[Rec]) -> Ref:
        erases = any(rec.kind is not Kind.PUT for rec in parts)
        complete = not erases and all([id_ for id_, _ in rec.about] == list(IDS) for rec in parts)
        file = self.write([slab_of(parts, self.group)], Shape(complete, erases))
        assert file is not None
        return Ref(file, ALL_ROWS, self.part)

    def memory(self, parts: Sequence[Rec]) -> Ref:
        """What a memory takes in comes commit by commit."""
        source: MemoryOfColumns | MemoryOfCells
        source = MemoryOfCells(self.group) if isinstance(self.group, CellsGroup) else MemoryOfColumns(self.group)
        for rec in sorted(parts, key=lambda rec: rec.txn):
            row = Row(rec.row)
            if isinstance(source, MemoryOfColumns):
                source.add([ColumnsRecord(row, rec.ts, rec.kind, rec.about)], rec.txn)  # type: ignore[arg-type]
            else:
                _, family, qualifier, *_ = rec.key
                value = rec.about[0][1] if rec.about else None
                cell = CellRecord(row, family.decode(), qualifier.decode(), rec.ts, rec.kind, value)
                source.add([cell], rec.txn)
        return Ref(source, ALL_ROWS, self.part)

    def block(self, parts: Sequence[Rec]) -> Ref:
        """A memory of one columnar block: puts of the same columns, of one txn, no row twice."""
        assert isinstance(self.group, ColumnsGroup)
        source = MemoryOfColumns(self.group)
        ordered = sorted(parts, key=lambda rec: rec.row)
        columns = [
            (c.id, SlabColumn(array_of(c.type, [dict(rec.about)[c.id] for rec in ordered]), written=True))
            for c in self.group.columns
            if c.id in dict(ordered[0].about)
        ]
        rows, times = pa.array([rec.row for rec in ordered], pa.binary()), np.array([rec.ts for rec in ordered])
        source.add_block(ColumnsBlock(rows, times, ordered[0].txn, Kind.PUT, tuple(columns), exists=False))
        return Ref(source, ALL_ROWS, self.part)

    def merged(self, refs: Sequence[Ref], keeping: Keeping, rows: RowRange = ALL_ROWS) -> list[Slab]:
        return list(merged_records(refs, self.fragments, rows, everything(self.schema, self.group), keeping))

    def compacted(self, refs: Sequence[Ref], keeping: Keeping) -> list[Ref]:
        file = self.write(self.merged(refs, keeping), Shape(is_complete=False, erases=True))
        return [] if file is None else [Ref(file, ALL_ROWS, self.part)]

    def records(self, refs: Sequence[Ref]) -> list[Rec]:
        return [rec for slab in self.merged(refs, Keeping()) for rec in recs_of(slab, self.group)]


def cuts(recs: Sequence[Rec], random: Random) -> list[list[Rec]]:
    """The records shared out to some files, none of which holds one twice."""
    match random.choice(["one", "each", "some", "some", "some"]):
        case "one":
            return [list(recs)]
        case "each":
            return [[rec] for rec in recs]
        case _:
            count = random.randint(2, 4)
            files: list[dict[tuple[Any, ...], Rec]] = [{} for _ in range(count)]
            for rec in recs:
                for part, to in zip(_parts(rec, random), random.sample(range(count), 2), strict=False):
                    files[to][part.key] = part
            return [list(file.values()) for file in files if file]


def _parts(rec: Rec, random: Random) -> list[Rec]:
    """The record; or the same twice; or some of its columns here, and others, or some of the same, there."""
    match random.choice(["whole", "whole", "twice", "apart"]):
        case "twice":
            return [rec, rec]
        case "apart" if len(rec.about) > 1:
            at = random.randrange(1, len(rec.about))
            both = random.choice([0, 1])
            return [rec._replace(about=rec.about[: at + both]), rec._replace(about=rec.about[at:])]
        case _:
            return [rec]


def laid_out(store: Store, recs: Sequence[Rec], random: Random) -> list[Ref]:
    """Records in files and memories, referred to in any order; some files by halves, as after a split."""
    refs: list[Ref] = []
    for parts in cuts(recs, random):
        ref = store.memory(parts) if random.random() < 0.2 else store.file(parts)
        if random.random() < 0.3:
            at = random.choice(KEYS[1:])
            refs += [structs.replace(ref, rows=rows) for rows in ALL_ROWS.split(at)]
        else:
            refs.append(ref)
    random.shuffle(refs)
    return refs


# -- scans


def scan_columns(
    store: Store, refs: Sequence[Ref], question: ColumnsQuestion, reverse: bool
) -> list[tuple[bytes, tuple[Value, ...]]]:
    chunks = list(ColumnsScan(refs, store.fragments, question).chunks(reverse=reverse))
    found = []
    for chunk in chunks[::-1] if reverse else chunks:
        values = [
            values_of(column.type, array) for column, array in zip(question.choice.columns, chunk.values, strict=True)
        ]
        rows = chunk.rows.to_pylist()
        assert all(row in chunk.covers for row in rows)
        assert all(
            array.type == to_arrow(c.type) for c, array in zip(question.choice.columns, chunk.values, strict=True)
        )
        found += list(zip(rows, zip(*values, strict=True) if values else [()] * len(rows), strict=True))
    return found


def expected_columns(recs: Sequence[Rec], question: ColumnsQuestion, plain: Question) -> list[Any]:
    wanted = [column.id for column in question.choice.columns] + ([ROW_EXISTS] if question.choice.exists else [])
    return [
        (
            row,
            tuple(
                found[column.id][0][2] if column.id in found else column.default for column in question.choice.columns
            ),
        )
        for row, found in by_the_rule(recs, plain).items()
        if row in question.rows and any(id_ in found for id_ in wanted)
    ]


def scan_cells(store: Store, refs: Sequence[Ref], question: CellsQuestion, reverse: bool) -> list[Any]:
    chunks = list(CellsScan(refs, store.fragments, question).chunks(reverse=reverse))
    found = []
    for chunk in chunks[::-1] if reverse else chunks:
        names = zip(chunk.family.to_pylist(), chunk.qualifier.to_pylist(), strict=True)
        shown = list(
            zip([(f.decode(), q.decode()) for f, q in names], chunk.ts, chunk.txn, chunk.value.to_pylist(), strict=True)
        )
        bounds = pairwise(chunk.offsets.tolist())
        found += [(row, shown[start:stop]) for row, (start, stop) in zip(chunk.rows.to_pylist(), bounds, strict=True)]
        assert all(row in chunk.covers for row in chunk.rows.to_pylist())
    return found


def expected_cells(recs: Sequence[Rec], question: CellsQuestion, plain: Question) -> list[Any]:
    answer = []
    for row, found in by_the_rule(recs, plain).items():
        shown = [
            (member, *version)
            for member, versions in found.items()
            if member != ALONE and any(s.matches(":".join(member)) for s in question.selectors)  # type: ignore[arg-type]
            for version in versions[: question.history]
        ]
        if row in question.rows and (shown or (question.exists and ALONE in found)):
            answer.append((row, shown))
    return answer


SELECTED: list[Selectors] = [
    ALL_COLUMNS,
    (ColumnSelector("click:", is_prefix=True),),
    (ColumnSelector("cli", is_prefix=True),),
    (ColumnSelector("click:q", is_prefix=True), ColumnSelector("view:q", is_prefix=False)),
    (ColumnSelector("click:", is_prefix=False),),
    (ColumnSelector("click:q", is_prefix=True), ColumnSelector("v", is_prefix=True)),
    (ColumnSelector("none:", is_prefix=True),),
]
PURGES = [parse_purge(text) for text in POLICIES if text]
BLOCK_SIZES = [1, 64, 200, 4096]
seeds, sizes = st.integers(0, 2**32 - 1), st.integers(1, 24)
each_kind = pytest.mark.parametrize("of_cells", [False, True], ids=["columns", "cells"])


def choose_policy(random: Random) -> PurgePolicy | None:
    return random.choice([None, random.choice(PURGES), random.choice(PURGES[:3])])


def choose_purging(random: Random) -> Purging:
    """One policy, or several after each other."""
    ends = sorted(random.sample(TXNS, random.choice([0, 0, 1, 2])))
    past = [PastPolicy(choose_policy(random), Txn(end - random.choice([0, 0, 1]))) for end in ends]
    return Reigns(tuple(past), choose_policy(random)) if past else choose_policy(random)


def standing(policy: Purging, at: Txn) -> Purging:
    return policy.at(at) if isinstance(policy, Reigns) else policy


def choose_question(random: Random) -> Question:
    at = random.choice([TXNS[-1], TXNS[-1], random.choice(TXNS)])
    read_us = Micros(micros_of(at) + random.choice([0, 1, 2_000, 60_000]))
    floor = random.choice([*[TXN_MIN] * 4, random.choice([txn for txn in TXNS if txn <= at])])
    time = random.choice([*[ALL_TIME] * 4, TimeRange(random.choice(TIMES), random.choice(TIMES))])
    return Question(at, read_us, floor, standing(choose_purging(random), at), time)


def choose_rows(random: Random) -> RowRange:
    start, stop = sorted(random.sample(KEYS, 2))
    return random.choice([ALL_ROWS, ALL_ROWS, RowRange(start, stop), RowRange(start), RowRange(b"", stop)])


@each_kind
@given(seeds)
@settings(max_examples=examples(30))
def test_vectors_say_what_the_rule_says(of_cells: bool, seed: int) -> None:
    random = Random(seed)
    recs, question = crowd(random, of_cells), choose_question(random)
    group = (NAMED if of_cells else TYPED).groups[0]
    slabs = [slab_of(parts, group).within(question.floor, question.at) for parts in cuts(recs, random)]
    slabs = [slab for slab in slabs if len(slab)]
    if not slabs:
        assert by_the_rule(recs, question) == {}
        return
    for plainly in (False, True):
        ordered = in_order(slabs, is_sorted=True)
        judging = Judging(question.policy, question.read_us, plainly)
        seen = seen_versions(ordered, judging, question.time.start, question.time.stop)
        shown = recs_of(_only(ordered, seen), group)
        versions = [(rec.row, member, rec.ts, rec.txn, value) for rec in shown for member, value in rec.about]
        assert sorted(versions, key=repr) == sorted(versions_of(by_the_rule(recs, question)), key=repr)


def versions_of(found: dict[bytes, dict[Member, list[tuple[int, int, Value]]]]) -> list[tuple[Any, ...]]:
    return [(row, member, *each) for row, members in found.items() for member, some in members.items() for each in some]


def _only(ordered: Ordered, seen: list[npt.NDArray[np.bool_]]) -> Slab:
    """The records in order, with what is seen of each."""
    at = ordered.ordering.positions
    slab = ordered.slab if at is None else ordered.slab.take(at)
    kept = [SlabColumn(column.values, flags) for column, flags in zip(slab.columns, seen, strict=True)]
    some = np.flatnonzero(np.logical_or.reduce(seen))
    return structs.replace(slab, columns=tuple(kept)).take(some)


@given(seeds, sizes)
@settings(max_examples=examples(20))
def test_columns_are_merged_by_the_rule(seed: int, size: int) -> None:
    random = Random(seed)
    recs, plain, rows = records(random, size, of_cells=False), choose_question(random), choose_rows(random)
    group = TYPED.groups[0]
    assert isinstance(group, ColumnsGroup)
    chosen = tuple(random.sample(group.columns, random.randint(0, 3)))
    exists = random.choice([True, not chosen])
    question = ColumnsQuestion(rows, ColumnChoice(chosen, exists), plain.asking, plain.policy)
    expected = expected_columns(recs, question, plain)
    for block_bytes in random.sample(BLOCK_SIZES, 2):
        store = Store(False, block_bytes, random)
        refs = laid_out(store, recs, random)
        assert scan_columns(store, refs, question, reverse=False) == expected
        assert scan_columns(store, refs[::-1], replace(question, plainly=True), reverse=True) == expected
        few = replace(question, limit=random.randint(1, 5))
        assert scan_columns(store, refs, few, reverse=random.choice([True, False])) == expected


@given(seeds, sizes)
@settings(max_examples=examples(20))
def test_cells_are_merged_by_the_rule(seed: int, size: int) -> None:
    random = Random(seed)
    recs, plain, rows = records(random, size, of_cells=True), choose_question(random), choose_rows(random)
    selectors, exists, history = random.choice(SELECTED), random.choice([True, False]), random.choice([1, 2, 9])
    question = CellsQuestion(rows, selectors, exists, plain.asking, plain.policy, history)
    expected = expected_cells(recs, question, plain)
    for block_bytes in random.sample(BLOCK_SIZES, 2):
        store = Store(True, block_bytes, random)
        refs = laid_out(store, recs, random)
        assert scan_cells(store, refs, question, reverse=False) == expected
        assert scan_cells(store, refs[::-1], replace(question, plainly=True), reverse=True) == expected
        few = replace(question, limit=random.randint(1, 5))
        assert scan_cells(store, refs, few, reverse=random.choice([True, False])) == expected


@each_kind
@given(seeds, sizes)
@settings(max_examples=examples(10))
def test_a_merge_that_keeps_all_gives_each_record_once(of_cells: bool, seed: int, size: int) -> None:
    random = Random(seed)
    recs = records(random, size, of_cells)
    store = Store(of_cells, random.choice(BLOCK_SIZES), random)
    refs = laid_out(store, recs, random)
    assert store.records(refs) == recs
    again = store.compacted(refs, Keeping())
    assert store.records(again) == recs
    rows = choose_rows(random)
    inside = [rec for slab in store.merged(refs, Keeping(), rows) for rec in recs_of(slab, store.group)]
    assert inside == [rec for rec in recs if rec.row in rows]


@pytest.mark.parametrize("text", ["", "c", "click", "click:", "click:q", "clicks:", "clicks:q", "v", ":", "none:q"])
@pytest.mark.parametrize("is_prefix", [False, True])
def test_cells_are_selected_by_their_whole_names(text: str, is_prefix: bool) -> None:
    """Together with another selector, or alone."""
    families, qualifiers = zip(*NAMES, strict=True)
    family, qualifier = (sliced([name.encode() for name in each]) for each in (families, qualifiers))
    for selectors in ([ColumnSelector(text, is_prefix)], [ColumnSelector(text, is_prefix), ColumnSelector("vi", True)]):
        expected = [any(each.matches(f"{f}:{q}") for each in selectors) for f, q in NAMES]
        assert matching(family, qualifier, tuple(selectors)).tolist() == expected


# -- files that need no merge


def near(random: Random, numbers: Iterable[int]) -> int:
    return random.choice([*numbers]) + random.choice([-1, 0, 0, 1])


@given(seeds, sizes)
@settings(max_examples=examples(60))
def test_what_is_passed_on_as_it_lies_is_what_a_merge_gives(seed: int, size: int) -> None:
    """Of files that hold nothing but puts, asked what they just about can answer, or just about cannot."""
    random = Random(seed)
    recs = quiet(random, size, of_cells=False)
    times, txns = {rec.ts for rec in recs}, {rec.txn for rec in recs}
    at, floor = Txn(near(random, [*txns, max(txns)])), Txn(near(random, [1, 1, min(txns)]))
    time = random.choice(
        [ALL_TIME, TimeRange(near(random, times), near(random, times)), TimeRange(stop=max(times) + 1)]
    )
    read_us = Micros(max(TIMES))
    now: PurgePolicy | None = random.choice([None, MaxAge(max(1, read_us - near(random, times))), MaxHistory(1)])
    policy: Purging = now
    if random.random() < 0.3:
        end = Txn(near(random, txns))
        aged: PurgePolicy = MaxAge(max(1, micros_of(end) - near(random, times)))
        before = random.choice([aged, MaxHistory(1)])
        policy = standing(Reigns((PastPolicy(before, end),), now), at)
    plain = Question(at, read_us, floor, policy, time)
    group = TYPED.groups[0]
    assert isinstance(group, ColumnsGroup)
    default = random.choice([7, None])
    chosen = [
        column if column.default is None else structs.replace(column, default=default) for column in group.columns
    ]
    chosen = random.sample(chosen, random.choice([0, 1, 2, 3, 3, 3]))
    question = ColumnsQuestion(
        ALL_ROWS, ColumnChoice(tuple(chosen), random.choice([True, False])), plain.asking, policy
    )
    store = Store(False, random.choice([64, 4096]), random)
    refs = [store.file(recs)] if random.random() < 0.8 else laid_out(store, recs, random)
    assert scan_columns(store, refs, question, reverse=False) == expected_columns(recs, question, plain)


@given(seeds, sizes)
@settings(max_examples=examples(60))
def test_sources_that_lie_over_each_other_are_read_by_the_rule(seed: int, size: int) -> None:
    """Files and memories, each newer than the one below it, or just about not: in its txns, in its times, in the
    columns it has."""
    random = Random(seed)
    store = Store(False, random.choice([64, 4096]), random)
    layers, refs = list[Rec](), list[Ref]()
    txns, times = sorted(random.sample(TXNS, random.randint(2, 4))), sorted(TIMES[:5])
    one_time, mixed = random.random() < 0.3, random.random() < 0.3
    for number in range(len(txns)):
        ids = IDS if random.random() < 0.8 else tuple(random.sample(IDS, 2))
        ts = random.choice(times) if random.random() < 0.1 else times[0 if one_time else number]
        layer = [
            Rec(
                row,
                ts,
                random.choice(txns) if mixed else txns[number],
                Kind.PUT,
                tuple((id_, random.choice(VALUES[id_])) for id_ in sorted(ids)),
            )
            for row in random.sample(KEYS, min(len(KEYS), random.randint(1, size)))
        ]
        taken = {rec.key for rec in layers}
        layer = [rec for rec in layer if rec.key not in taken]
        if not layer:
            continue
        layers += layer
        lays = random.choice([store.file, store.file, store.memory, store.memory if mixed else store.block])
        refs.append(lays(layer))
    random.shuffle(refs)
    group = TYPED.groups[0]
    assert isinstance(group, ColumnsGroup)
    every = [structs.replace(column, default=random.choice([column.default, None])) for column in group.columns]
    chosen = tuple(random.sample(every, random.choice([1, 2, 3, 3])))
    at = random.choice([txns[-1], txns[-1], Txn(near(random, txns))])
    now = random.choice([None, None, MaxHistory(1)])
    past = PastPolicy(MaxHistory(1), Txn(near(random, txns)))
    policy = standing(Reigns((past,), now), at) if random.random() < 0.2 else now
    plain = Question(at, Micros(max(times)), policy=policy)
    question = ColumnsQuestion(ALL_ROWS, ColumnChoice(chosen, random.choice([True, False])), plain.asking, plain.policy)
    reverse, limit = random.choice([False, True]), random.choice([None, 1, 3])
    question = replace(question, limit=limit)
    assert scan_columns(store, refs, question, reverse) == expected_columns(put_together(layers), question, plain)


ALL = ((IDS[0], 1), (IDS[1], "x"), (IDS[2], 1))
SOME = ((IDS[0], 2),)


@pytest.mark.parametrize(
    ("below", "above"),
    [
        ([Rec(b"a", TIMES[0], TXNS[2], Kind.PUT, ALL)], [Rec(b"a", TIMES[0], TXNS[3], Kind.PUT, SOME)]),
        (
            [Rec(b"a", TIMES[0], TXNS[3], Kind.PUT, ALL), Rec(b"b", TIMES[0], TXNS[1], Kind.PUT, ALL)],
            [Rec(b"a", TIMES[0], TXNS[2], Kind.PUT, tuple((id_, None) for id_ in IDS))],
        ),
        (
            [Rec(b"a", TIMES[2], TXNS[2], Kind.PUT, ALL)],
            [Rec(b"a", TIMES[0], TXNS[3], Kind.PUT, tuple((id_, None) for id_ in IDS))],
        ),
    ],
    ids=["not all columns", "an older txn", "an older time"],
)
@pytest.mark.parametrize("lies", ["file", "memory", "block"])
def test_what_does_not_lie_over_a_file_is_merged_with_it(below: list[Rec], above: list[Rec], lies: str) -> None:
    store, group = Store(False, 4096, Random(0)), TYPED.groups[0]
    assert isinstance(group, ColumnsGroup)
    chosen = tuple(structs.replace(column, default=None) for column in group.columns)
    plain = Question(TXNS[-1], Micros(max(TIMES)))
    question = ColumnsQuestion(ALL_ROWS, ColumnChoice(chosen, True), plain.asking, None)
    over: Ref = getattr(store, lies)(above)
    found = scan_columns(store, [store.file(below), over], question, reverse=False)
    assert found == expected_columns([*below, *above], question, plain)


@each_kind
@pytest.mark.parametrize("exists", [False, True])
def test_an_erasure_of_the_row_counts_whatever_is_asked(of_cells: bool, exists: bool) -> None:
    member: Member = NAMES[0] if of_cells else IDS[0]
    put = Rec(b"a", TIMES[0], TXNS[0], Kind.PUT, ((member, b"x" if of_cells else 1),))
    erased = Rec(b"a", TIMES[0], TXNS[1], Kind.ERASE_ROW, ())
    plain = Question(TXNS[-1], TIMES[0])
    store = Store(of_cells, 64, Random(0))
    for refs, expected in (([store.file([put])], 1), ([store.file([put]), store.file([erased])], 0)):
        if of_cells:
            asked = CellsQuestion(ALL_ROWS, SELECTED[1], exists, plain.asking, None)
            found = scan_cells(store, refs, asked, reverse=False)
        else:
            typed = ColumnsQuestion(
                ALL_ROWS, ColumnChoice((TYPED.column_by_id(IDS[0])[1],), exists), plain.asking, None
            )
            found = scan_columns(store, refs, typed, reverse=False)
        assert len(found) == expected


# -- compaction


def histories(recs: Iterable[Rec], horizon: Txn, floor: Txn, policy: Purging) -> list[Any]:
    """All versions that can be seen at any snapshot from the horizon on, at its own time and later."""
    known = list(recs)
    snapshots = [horizon, *(txn for txn in TXNS if txn > horizon), Txn(TXNS[-1] + 5)]
    return [
        by_the_rule(known, Question(at, Micros(micros_of(at) + later), floor, standing(policy, at)))
        for at in snapshots
        for later in (0, 7_000)
    ]


@each_kind
@given(seeds, sizes)
@settings(max_examples=examples(20))
def test_no_compaction_changes_an_answer(of_cells: bool, seed: int, size: int) -> None:
    """Some files are merged, rooted if they hold all up to some txn, at growing horizons and floors, into a file that
    is merged with the next ones."""
    random = Random(seed)
    recs, policy = records(random, size, of_cells), choose_purging(random)
    store = Store(of_cells, random.choice(BLOCK_SIZES), random)
    limit = random.choice(TXNS)
    old, new = [rec for rec in recs if rec.txn <= limit], [rec for rec in recs if rec.txn > limit]
    refs, later = laid_out(store, old, random) if old else [], [store.file(new)] if new else []
    known: list[Rec] = list(recs)
    horizon, floor = TXN_MIN, TXN_MIN
    for _ in range(random.randint(1, 3)):
        horizon = max(horizon, random.choice([txn for txn in TXNS if txn <= limit]))
        floor = max(floor, random.choice([TXN_MIN, TXN_MIN, random.choice([txn for txn in TXNS if txn <= horizon])]))
        before = histories(known, horizon, floor, policy)
        rooted = random.choice([True, False])
        count = len(refs) if rooted else random.randint(0, len(refs))
        keeping = Keeping(horizon, floor, rooted, standing(policy, horizon))
        refs = [*(store.compacted(refs[:count], keeping) if count else []), *refs[count:]]
        known = store.records([*refs, *later])
        assert histories(known, horizon, floor, policy) == before
        if rooted:
            assert not [rec for rec in known if rec.txn < floor and rec.txn <= limit]
            assert not [rec for rec in known if rec.kind is not Kind.PUT and rec.txn <= horizon]


@each_kind
@given(seeds, sizes)
@settings(max_examples=examples(12))
def test_rooted_above_everything_only_what_is_seen_stays(of_cells: bool, seed: int, size: int) -> None:
    random = Random(seed)
    recs, policy = records(random, size, of_cells), choose_purging(random)
    store = Store(of_cells, 64, random)
    refs = laid_out(store, recs, random)
    horizon = Txn(TXNS[-1] + 1)
    left = store.records(store.compacted(refs, Keeping(horizon, TXN_MIN, is_rooted=True, policy=policy)))
    assert all(rec.kind is Kind.PUT for rec in left)
    seen = by_the_rule(recs, Question(horizon, micros_of(horizon), TXN_MIN, policy))
    versions = [(rec.row, member, rec.ts, rec.txn, value) for rec in left for member, value in rec.about]
    assert sorted(versions, key=repr) == sorted(versions_of(seen), key=repr)


@each_kind
@given(seeds, sizes)
@settings(max_examples=examples(6))
def test_nothing_below_the_floor_stays(of_cells: bool, seed: int, size: int) -> None:
    random = Random(seed)
    recs = records(random, size, of_cells)
    store = Store(of_cells, 64, random)
    refs = laid_out(store, recs, random)
    floor = random.choice(TXNS)
    left = store.records(store.compacted(refs, Keeping(floor, floor)))
    assert left == [rec for rec in recs if rec.txn >= floor]


def test_a_compaction_judges_no_later_than_what_it_leaves_out() -> None:
    """Of two versions the newer one was erased before the older was old enough to go: so it stays. The erasure is in a
    file of its own, and without it the policy would take the older one as soon as time has passed."""
    schema = declare({"id": "string"}, [columns("c", {"n": "int32"}, purge="max-history=1 and max-age=5ms")])
    engine, model, n = Engine(schema), PlainTable(schema), schema.column("n")[1].id
    tablet, group = TabletId(1), schema.groups[0].id
    row = Row(b"r")

    def write(mutation: Mutation) -> Txn:
        engine.clock.advance(0.001)
        ((txn, part),) = engine.write([mutation])
        model.commit(txn, part)
        return txn

    write(Put(row, ((n, 1),)))
    newer = write(Put(row, ((n, 2),)))
    engine.flush(tablet)
    (file,) = engine.shard.state(tablet).files()
    write(EraseVersion(row, Columns((n,)), micros_of(newer)))
    engine.flush(tablet)
    engine.clock.advance(1)
    write(Put(Row(b"s"), ((n, 3),)))
    at = engine.shard.visible
    wanted = expected_scan(model, at)
    assert wanted[row] == {"n": 1}
    engine.advance_horizon(at)
    engine.upkeep.compact(tablet, group, Pick((file,), rooted=True, reason="a test", score=1.0))
    assert file not in engine.shard.state(tablet).files()
    assert engine.scan(at) == wanted


# -- order

pieces = st.lists(st.sampled_from([b"\0", b"a", b"b", b"\xff", b"\0" * 7, b"a" * 8, b"\xff" * 9]), max_size=4)
names = st.sampled_from(KEYS) | pieces.map(b"".join) | st.binary(max_size=20)
places = st.tuples(
    names, names, names, st.sampled_from(TIMES), st.sampled_from(TXNS), st.sampled_from([kind.value for kind in Kind])
)


def common(rows: Sequence[bytes]) -> int:
    shortest = min(map(len, rows), default=0)
    return next(length for length in range(shortest, -1, -1) if len({row[:length] for row in rows}) <= 1)


def sliced(values: Sequence[bytes]) -> pa.Array:
    """As arrays come out of blocks: a part of a longer one."""
    return pa.array([b"before" * 9, *values, b"after"], pa.binary()).slice(1, len(values))


@given(st.lists(places, max_size=30), st.sampled_from([b"", b"shared", b"\0" * 8, b"s" * 17]), st.booleans())
@example([(b"", b"", b"", TIMES[0], TXNS[0], 0), (b"\0", b"", b"", TIMES[0], TXNS[0], 0)], b"", False)
@settings(max_examples=examples(80))
def test_the_order_is_that_of_the_keys(some: list[Any], prefix: bytes, of_cells: bool) -> None:
    recs = [(prefix + row, family, qualifier, *rest) for row, family, qualifier, *rest in some]
    rows, family, qualifier = (sliced([rec[at] for rec in recs]) for at in (0, 1, 2))
    ts, txn = (np.array([rec[at] for rec in recs], np.int64) for at in (3, 4))
    kinds = np.array([rec[5] for rec in recs], np.int8)
    shared = min(len(prefix), common([rec[0] for rec in recs]))
    ordering = order_records(rows, (family, qualifier) if of_cells else None, ts, txn, kinds, shared)

    def key(rec: Any) -> tuple[Any, ...]:
        return (rec[0], *(rec[1:3] if of_cells else ()), -rec[3], -rec[4], rec[5])

    at = range(len(recs)) if ordering.positions is None else ordering.positions.tolist()
    assert sorted(at) == list(range(len(recs)))
    ordered = [recs[place] for place in at]
    assert [key(rec) for rec in ordered] == sorted(key(rec) for rec in recs)
    changes = [(a[0] != b[0], a[:3] != b[:3]) for a, b in pairwise(ordered)]
    assert ordering.begins.tolist() == [True, *(row for row, _ in changes)][: len(recs)]
    if of_cells:
        assert ordering.cell_begins is not None
        assert ordering.cell_begins.tolist() == [True, *(cell for _, cell in changes)][: len(recs)]
    alone = order_sorted(sliced([rec[0] for rec in ordered]))
    assert alone.begins.tolist() == ordering.begins.tolist()


@pytest.mark.parametrize("without_kinds", [False, True])
def test_records_that_are_equal_stay_in_the_order_they_came(without_kinds: bool) -> None:
    """Which copy of a record comes first must not depend on chance."""
    ones = np.ones(4, np.int64)
    kinds = None if without_kinds else np.zeros(4, np.int8)
    ordering = order_records(sliced([b"b", b"a", b"b", b"a"]), None, ones, ones, kinds)
    assert ordering.positions is not None
    assert ordering.positions.tolist() == [1, 3, 0, 2]


@given(st.lists(st.lists(names, max_size=4), max_size=4), st.sampled_from([b"", b"shared", b"\0" * 8]))
def test_what_all_rows_share_is_seen_at_the_ends(some: list[list[bytes]], prefix: bytes) -> None:
    found = [sorted(prefix + name for name in each) for each in some]
    rows = [name for each in found for name in each]
    assert shared_bytes([sliced(each) for each in found]) == common(rows)


@given(st.lists(st.lists(names, min_size=1, max_size=12), min_size=1, max_size=4), st.sampled_from([b"", b"s" * 17]))
@example([[b"a", b"c"], [b"b"], [b"b", b"c"]], b"")
@example([[b"abcdefghi", b"abcdefghj"], [b"abcdefghj"]], b"")
@settings(max_examples=examples(60))
def test_the_last_source_with_a_row_has_its_newest_record(some: list[list[bytes]], prefix: bytes) -> None:
    sources = [sorted({prefix + name for name in each}) for each in some]
    overlay = overlaid([sliced(each) for each in sources])
    joined = [row for each in sources for row in each]
    last = {row: at for at, row in enumerate(joined)}
    if overlay is None:
        skip = common(joined)
        words = [row[skip : skip + 8].ljust(8, b"\0") for row in last]
        assert len(set(words)) < len(words)
        return
    assert overlay.rows.to_pylist() == sorted(last)
    assert overlay.places.tolist() == [last[row] for row in sorted(last)]
    assert overlay.has_more == (len(last) > len(sources[0]))


@given(st.lists(names, max_size=12), names, st.none() | names)
@settings(max_examples=examples(60))
def test_a_range_ends_where_its_rows_do(some: list[bytes], start: bytes, stop: bytes | None) -> None:
    rows = sorted(some)
    low, high = extent(sliced(rows), RowRange(start, stop))
    assert low <= high
    assert rows[low:high] == [row for row in rows if row >= start and (stop is None or row < stop)]


@given(st.lists(st.binary(min_size=9, max_size=9), min_size=1), st.lists(names, max_size=4), st.integers(0, 3))
@settings(max_examples=examples(60))
def test_words_order_as_the_rows_do(even: list[bytes], others: list[bytes], size: int) -> None:
    """Rows of one length are read where they lie, and others not: of all sources, or of none."""
    pieces = [sorted({b"shared" + row for row in each}) for each in (even, even[:size], others)]
    pieces = [each for each in pieces if each]
    found = words_of([sliced(each) for each in pieces], shared_bytes([sliced(each) for each in pieces]))
    both = sorted(zip([row for each in pieces for row in each], np.concatenate(found).tolist(), strict=True))
    assert [word for _, word in both] == sorted(word for _, word in both)
    assert all(a[1] == b[1] for a, b in pairwise(both) if a[0] == b[0])
