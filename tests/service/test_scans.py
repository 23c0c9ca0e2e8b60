"""Binding a predicate, and going on from where a scan stopped."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.model.arrow_values import array_of
from stelae.model.declare import columns, declare
from stelae.model.errors import InvalidArgument
from stelae.model.ids import TableId, Txn
from stelae.model.keys.scalar import KeyCodec
from stelae.model.predicate.parser import parse
from stelae.model.predicate.plan import ScanPredicate, plan
from stelae.model.predicate.printer import to_text
from stelae.model.predicate.selectors import ALL_COLUMNS, ColumnSelector
from stelae.model.ranges import EVERYTHING, NOTHING, RangeSet, RowRange, single
from stelae.model.schema import TableSchema
from stelae.service.bodies import scan_from, scan_parts
from stelae.service.scans import Binding, ScanAsk, bind
from tests.client.samples import FLOATING, HASHED, MOMENT, PAIR, USERS, WILD

ROWS = [bytes([letter]) for letter in b"abcdefgh"]
_bounds = st.tuples(st.sampled_from(ROWS), st.none() | st.sampled_from(ROWS))
_areas = st.lists(_bounds, max_size=3).map(lambda pairs: RangeSet.of(RowRange(*pair) for pair in pairs))


def given_by(ask: ScanAsk) -> list[bytes]:
    """What a store with these rows answers."""
    inside = [row for row in ROWS if row in ask.predicate.rows]
    return (inside[::-1] if ask.reverse else inside)[: ask.limit]


@given(_areas, st.booleans(), st.none() | st.integers(0, 9), st.lists(st.integers(1, 3), max_size=4))
def test_a_scan_that_stops_anywhere_gives_the_same_in_the_end(
    area: RangeSet, reverse: bool, limit: int | None, stops: list[int]
) -> None:
    ask = ScanAsk(ScanPredicate(area), Txn(5), reverse, limit)
    wanted, found = given_by(ask), list[bytes]()
    for count in stops:
        rows = given_by(ask)[:count]
        if rows:
            found += rows
            ask = ask.after(rows[-1], len(rows))
            assert ask.at == Txn(5)
    assert found + given_by(ask) == wanted
    assert not (ask.is_done and given_by(ask))


def test_when_nothing_more_can_come() -> None:
    ask = ScanAsk(ScanPredicate(RangeSet((single(b"b"),))), Txn(5), limit=3)
    assert not ask.is_done
    assert ask.after(b"b", 1) == ScanAsk(ScanPredicate(NOTHING), Txn(5), limit=2)
    assert ask.after(b"b", 1).is_done
    assert ScanAsk(ScanPredicate(EVERYTHING), Txn(5), limit=1).after(b"b", 1).is_done


KEYED: dict[str, tuple[TableSchema, tuple[Any, ...]]] = {
    "text": (USERS, ("größe",)),
    "two columns": (PAIR, ("a\x00", -3)),
    "hashed": (HASHED, (7,)),
    "float": (FLOATING, (-0.5,)),
    "moment": (declare({"at": "timestamp"}, [columns("g", {"n": "int64"})]), (MOMENT,)),
}


@pytest.mark.parametrize("name", list(KEYED))
def test_the_last_row_of_a_batch_is_where_the_rest_begins(name: str) -> None:
    schema, key = KEYED[name]
    codec: KeyCodec = schema.codec
    arrays = [array_of(type_, [value, value]) for type_, value in zip(codec.types, key, strict=True)]
    batch = pa.RecordBatch.from_arrays([pa.nulls(2), *arrays], names=["other", *codec.names])
    ask = ScanAsk(ScanPredicate(), Txn(5), limit=9)
    assert ask.after_batch(schema, batch, 2) == ask.after(codec.encode(key), 2)


def test_binding_fits_the_condition_to_the_types_once() -> None:
    said = plan(parse('AGE > 3.0 and id >= "b" and row < "n"'))
    predicate, binding = bind(said, USERS)
    assert predicate.rows == RangeSet((RowRange(b"b", b"n"),))
    assert predicate.where == said.where
    assert binding.schema is USERS
    assert binding.condition is not None
    assert to_text(binding.condition) == 'age > 3 and id >= "b"'


def test_binding_fixes_the_columns_to_those_there_are() -> None:
    names = tuple(ColumnSelector(name, is_prefix=False) for name in ("number", "note"))
    assert bind(ScanPredicate(), PAIR) == (ScanPredicate(columns=tuple(sorted(names))), Binding(PAIR))
    assert bind(ScanPredicate(), WILD)[0].columns == ALL_COLUMNS


@pytest.mark.parametrize("text", ["agee > 1", 'age > "x"', "name = 7"])
def test_what_does_not_fit_the_schema_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        bind(plan(parse(text)), USERS)


@given(_areas, st.sampled_from([None, "age > 3.5", 'name in ("x", "y") or age is null', 'id >= "b"']), st.booleans())
def test_an_ask_that_came_over_a_connection_binds_to_the_same(area: RangeSet, text: str | None, reverse: bool) -> None:
    said = plan(parse(text)) if text is not None else ScanPredicate()
    predicate, binding = bind(ScanPredicate(area, where=said.where), USERS)
    sent = scan_from(*scan_parts(TableId(7), ScanAsk(predicate, Txn(5), reverse, 4, binding)))
    assert sent.binding is None
    assert (sent.at, sent.reverse, sent.limit) == (Txn(5), reverse, 4)
    assert bind(sent.predicate, USERS) == (predicate, binding)
