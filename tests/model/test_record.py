"""Lowering a block: within it, the last mention of a cell wins."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from stelae.model.ids import ColumnId, GroupId, Micros, Row
from stelae.model.mutation import Cell, Columns, Erase, EraseVersion, Mutation, Put, PutCell, WholeFamily, WholeRow
from stelae.model.record import ROW_EXISTS, CellRecord, ColumnsRecord, Kind, cells_order, columns_order, lower
from stelae.model.schema import CellsGroup, TableSchema
from tests.model.test_schema import EVENTS, PROFILE, USERS

NAME, AGE = ColumnId(3), ColumnId(4)
NOW = Micros(100)
A = Row(b"a")


def columns_of(*mutations: Mutation) -> tuple[ColumnsRecord, ...]:
    return lower(USERS, mutations, NOW).get(PROFILE.id, ())  # type: ignore[return-value]


def cells_of(*mutations: Mutation) -> tuple[CellRecord, ...]:
    return lower(USERS, mutations, NOW).get(EVENTS.id, ())  # type: ignore[return-value]


def put(ts: int | None = None, **values: object) -> Put:
    ids = {"name": NAME, "age": AGE}
    return Put(A, tuple((ids[name], value) for name, value in values.items()), None if ts is None else Micros(ts))


def written(ts: int, **values: object) -> ColumnsRecord:
    return ColumnsRecord(A, Micros(ts), Kind.PUT, tuple(put(ts, **values).values))


def test_puts_of_one_time_become_one_record_and_the_last_mention_wins() -> None:
    assert columns_of(put(name="x", age=1), put(name="y")) == (written(100, name="y", age=1),)


def test_times_are_versions_newest_first() -> None:
    assert columns_of(put(5, age=1), put(7, age=2), put(100, name="n"), put(age=3)) == (
        written(100, name="n", age=3),
        written(7, age=2),
        written(5, age=1),
    )


def test_a_later_erasure_removes_the_puts_it_covers_and_stays() -> None:
    erase = Erase(A, Columns((AGE,)), Micros(6))
    erased = ColumnsRecord(A, Micros(6), Kind.ERASE_COLUMN, ((AGE, None),))
    assert columns_of(put(5, age=1, name="n"), put(7, age=2), erase) == (
        written(7, age=2),
        erased,
        written(5, name="n"),
    )


def test_an_earlier_erasure_leaves_later_puts_alone() -> None:
    assert columns_of(Erase(A, WholeRow()), put(age=1)) == (
        written(100, age=1),
        ColumnsRecord(A, NOW, Kind.ERASE_ROW),
    )


def test_erasing_the_row_reaches_every_group() -> None:
    records = lower(USERS, [put(age=1), PutCell(A, "click", "x", b"1"), Erase(A, WholeRow())], NOW)
    assert records == {
        PROFILE.id: (ColumnsRecord(A, NOW, Kind.ERASE_ROW),),
        EVENTS.id: (CellRecord(A, "", "", NOW, Kind.ERASE_ROW),),
    }


def test_a_put_in_the_future_survives_an_erasure_up_to_now() -> None:
    assert columns_of(put(101, age=1), Erase(A, WholeRow())) == (
        written(101, age=1),
        ColumnsRecord(A, NOW, Kind.ERASE_ROW),
    )


def test_one_version_is_erased_exactly() -> None:
    assert columns_of(put(5, age=1), put(6, age=2), EraseVersion(A, Columns((AGE, NAME)), Micros(5))) == (
        written(6, age=2),
        ColumnsRecord(A, Micros(5), Kind.ERASE_VERSION, ((NAME, None), (AGE, None))),
    )


ALONE = ColumnsRecord(A, NOW, Kind.PUT, ((ROW_EXISTS, None),))


def test_a_key_alone_makes_a_row() -> None:
    assert columns_of(put()) == (ALONE,)
    assert columns_of(put(), put(age=1)) == (ColumnsRecord(A, NOW, Kind.PUT, ((ROW_EXISTS, None), (AGE, 1))),)
    only_cells = TableSchema(USERS.version, USERS.key, (EVENTS,), last_id=20)
    assert lower(only_cells, [put()], NOW) == {EVENTS.id: (CellRecord(A, "", "", NOW, Kind.PUT),)}


def test_a_row_made_by_its_key_alone_outlives_its_columns() -> None:
    erased = ColumnsRecord(A, NOW, Kind.ERASE_COLUMN, ((AGE, None),))
    version = ColumnsRecord(A, NOW, Kind.ERASE_VERSION, ((AGE, None),))
    for said in ([put(), put(age=1)], [put(age=1), put()]):
        assert columns_of(*said, Erase(A, Columns((AGE,)))) == (ALONE, erased)
        assert columns_of(*said, EraseVersion(A, Columns((AGE,)), NOW)) == (ALONE, version)
        assert columns_of(*said, Erase(A, WholeRow())) == (ColumnsRecord(A, NOW, Kind.ERASE_ROW),)
    assert columns_of(put(5), put(age=1), Erase(A, WholeRow(), Micros(4))) == (
        written(100, age=1),
        ColumnsRecord(A, Micros(5), Kind.PUT, ((ROW_EXISTS, None),)),
        ColumnsRecord(A, Micros(4), Kind.ERASE_ROW),
    )


def test_a_row_of_cells_made_by_its_key_alone_outlives_its_cells() -> None:
    wild = CellsGroup(GroupId(9), "rest", wildcard=True)
    schema = TableSchema(USERS.version, USERS.key, (EVENTS, wild), last_id=20)
    cell = PutCell(A, "click", "x", b"1")
    records = lower(schema, [put(), cell, Erase(A, WholeFamily("click")), Erase(A, Cell("other", "y"))], NOW)
    assert records == {
        EVENTS.id: (CellRecord(A, "", "", NOW, Kind.PUT), CellRecord(A, "click", "", NOW, Kind.ERASE_FAMILY)),
        wild.id: (CellRecord(A, "other", "y", NOW, Kind.ERASE_COLUMN),),
    }
    assert lower(schema, [put(), Erase(A, WholeRow())], NOW) == {
        group: (CellRecord(A, "", "", NOW, Kind.ERASE_ROW),) for group in (EVENTS.id, wild.id)
    }


def test_a_put_whose_columns_were_all_erased_again_makes_no_row() -> None:
    assert [record.kind for record in columns_of(put(age=1), Erase(A, Columns((AGE,))))] == [Kind.ERASE_COLUMN]


def test_cells_and_their_erasures() -> None:
    assert cells_of(
        PutCell(A, "click", "home", b"1"),
        PutCell(A, "click", "home", b"2"),
        PutCell(A, "click", "shop", b"3", Micros(5)),
        PutCell(A, "view", "x", b"4"),
        Erase(A, WholeFamily("view")),
        Erase(A, Cell("click", "shop"), Micros(5)),
        EraseVersion(A, Cell("click", "home"), Micros(3)),
    ) == (
        CellRecord(A, "click", "home", NOW, Kind.PUT, b"2"),
        CellRecord(A, "click", "home", Micros(3), Kind.ERASE_VERSION),
        CellRecord(A, "click", "shop", Micros(5), Kind.ERASE_COLUMN),
        CellRecord(A, "view", "", NOW, Kind.ERASE_FAMILY),
    )


rows = st.sampled_from([Row(b"a"), Row(b"b")])
times = st.none() | st.integers(98, 102).map(Micros)
column_ids = st.sampled_from([NAME, AGE])
cell_names = st.tuples(st.sampled_from(["click", "view"]), st.sampled_from(["p", "q"]))
column_sets = st.lists(column_ids, min_size=1, max_size=2, unique=True).map(lambda ids: Columns(tuple(ids)))
cells = cell_names.map(lambda name: Cell(*name))
mutations: st.SearchStrategy[Mutation] = st.one_of(
    st.builds(Put, rows, st.lists(st.tuples(column_ids, st.integers(0, 9)), max_size=2).map(tuple), times),
    st.builds(
        lambda row, name, value, ts: PutCell(row, name[0], name[1], value, ts),
        rows,
        cell_names,
        st.binary(max_size=1),
        times,
    ),
    st.builds(
        Erase, rows, st.just(WholeRow()) | column_sets | cells | cell_names.map(lambda n: WholeFamily(n[0])), times
    ),
    st.builds(EraseVersion, rows, column_sets | cells, times.filter(lambda ts: ts is not None)),
)


EXISTS = "exists"
"""Stands for a cell that only the key's own put writes and only the whole row's erasure reaches. Its record is one
without values, or if values of its group and time were put, theirs."""


def covers(erasure: Mutation, row: Row, name: object, ts: int) -> bool:
    """Whether a mutation erases the version of a cell at a time: the rule, said once more and plainly."""
    if erasure.row != row:
        return False
    family = name[0] if isinstance(name, tuple) else None
    match erasure:
        case Erase(_, target, until):
            hit = (
                isinstance(target, WholeRow)
                or (isinstance(target, WholeFamily) and target.family == family)
                or (isinstance(target, Columns) and name in target.ids)
                or (isinstance(target, Cell) and (target.family, target.qualifier) == name)
            )
            return hit and ts <= (NOW if until is None else until)
        case EraseVersion(_, Columns(ids), at):
            return name in ids and ts == at
        case EraseVersion(_, Cell(f, q), at):
            return (f, q) == name and ts == at
        case _:
            return False


@example([put(), put(age=1), Erase(A, Columns((AGE,)))])
@given(st.lists(mutations, max_size=8))
def test_exactly_the_last_mentions_remain(said: list[Mutation]) -> None:
    expected: dict[tuple[Row, object, int], object] = {}
    for mutation in said:
        match mutation:
            case Put(row, (), ts):
                expected[row, EXISTS, NOW if ts is None else ts] = None
            case Put(row, values, ts):
                for id_, value in values:
                    expected[row, id_, NOW if ts is None else ts] = value
            case PutCell(row, family, qualifier, value, ts):
                expected[row, (family, qualifier), NOW if ts is None else ts] = value
            case _:
                expected = {at: value for at, value in expected.items() if not covers(mutation, *at)}
    found: dict[tuple[Row, object, int], object] = {}
    records = lower(USERS, said, NOW)
    for record in records.get(PROFILE.id, ()):
        assert isinstance(record, ColumnsRecord)
        if record.kind is Kind.PUT:
            assert record.values
            for id_, value in record.values:
                found[record.row, EXISTS if id_ == ROW_EXISTS else id_, record.ts] = value
    for record in records.get(EVENTS.id, ()):
        assert isinstance(record, CellRecord)
        if record.kind is Kind.PUT:
            found[record.row, (record.family, record.qualifier), record.ts] = record.value
    assert found == expected


@given(st.lists(mutations, max_size=8))
def test_records_are_in_order_and_unique(said: list[Mutation]) -> None:
    records = lower(USERS, said, NOW)
    columns = [columns_order(record) for record in records.get(PROFILE.id, ())]  # type: ignore[arg-type]
    cells = [cells_order(record) for record in records.get(EVENTS.id, ())]  # type: ignore[arg-type]
    assert columns == sorted(set(columns))
    assert cells == sorted(set(cells))


def test_the_wildcard_takes_families_nobody_names() -> None:
    wild = CellsGroup(GroupId(9), "rest", wildcard=True)
    schema = TableSchema(USERS.version, USERS.key, (EVENTS, wild), last_id=20)
    records = lower(schema, [PutCell(A, "click", "x", b"1"), PutCell(A, "other", "y", b"2")], NOW)
    assert {group: len(found) for group, found in records.items()} == {EVENTS.id: 1, wild.id: 1}
