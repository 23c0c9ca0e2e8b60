"""Every way to put rows says what the rule says, or refuses where it refuses, and then names a row that is at fault."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import pandas as pd
from hypothesis import event, given, settings
from hypothesis import strategies as st

from stelae.client.arguments.keys import row_maker, rows_of_keys
from stelae.client.arguments.names import Names
from stelae.client.intake.mutations import blocks_of, key_of
from stelae.client.intake.rule import judged, judged_alone, judged_long
from stelae.client.intake.single_rows import PlainPuts, SinglePuts
from stelae.client.intake.values import fit_value
from stelae.model.errors import InvalidArgument
from stelae.model.ids import Micros, Row
from stelae.model.limits import Limits
from stelae.model.mutation import Mutation
from stelae.model.schema import TableSchema
from stelae.service.blocks import OrderedBlock
from tests.client.intake import givens
from tests.client.intake.givens import Judged, judgements
from tests.client.plainly import checked, held, mutations_in
from tests.effort import examples

_NUMBERED = re.compile(r"^row number (\d+): ")


def hold_to(schema: TableSchema, limits: Limits, expected: Judged, make: Callable[[], Sequence[OrderedBlock]]) -> None:
    """Blocks of all rows say what all rows say, in their order. If a row is refused, so are all, with the number of one
    that is; without a number only if every row is."""
    refused = [number for number, each in enumerate(expected) if isinstance(each, str)]
    event("refused" if refused else "said")
    try:
        blocks = make()
    except InvalidArgument as error:
        assert refused, f"refused what the rule says: {error}"
        named = _NUMBERED.match(str(error))
        assert (int(named[1]) in refused) if named else len(refused) == len(expected), (str(error), expected)
    else:
        assert not refused, f"said what the rule refuses: {[expected[number] for number in refused]}"
        said = [mutation for each in expected if not isinstance(each, str) for mutation in each]
        assert held(schema, checked(schema, blocks, limits)) == held(schema, said)


@settings(max_examples=examples(300))
@given(st.data(), givens.schemas(), st.sampled_from(givens.LIMITS), st.sampled_from([None, Micros(5)]))
def test_one_row(data: st.DataObject, schema: TableSchema, limits: Limits, ts: Micros | None) -> None:
    """The same object makes several puts, so that shapes of rows are met again with other values."""
    puts, names = SinglePuts(schema, limits), Names(schema, limits)
    plain = PlainPuts(names)
    shapes = [data.draw(givens.names_of_rows(schema, clean=clean)) for clean in (True, False)]
    for clean in (True, True, False, False):
        shape = data.draw(st.sampled_from(shapes))
        row = dict(data.draw(givens.given_rows(schema, shape, clean=clean)))
        (expected,) = judgements(lambda row: judged_alone(names, row, ts), [row])
        event("refused" if isinstance(expected, str) else "said")
        for given_ in (row, MappingProxyType(row)):
            for put in (_in_blocks(schema, puts, limits), lambda row, ts: list(puts.said(row, ts).mutations)):
                (found,) = judgements(lambda row, put=put: put(row, ts), [given_])  # type: ignore[misc]
                assert repr(found) == repr(expected)
        short = plain.put(row, ts)
        event("plain" if short is not None else "not plain")
        assert short is None or repr(list(short)) == repr(expected)


@settings(max_examples=examples(150))
@given(st.data(), givens.schemas())
def test_keys(data: st.DataObject, schema: TableSchema) -> None:
    """Of a key by itself: `key_of` is the rule, and the maker of a table's rows its fast path."""
    row_of = row_maker(schema)
    for clean in (True, False):
        parts = [(key.name, data.draw(givens.given_values(key.type, clean=clean))) for key in schema.key]
        key = tuple(value for _, value in parts)
        for given_ in (key, key[0], dict(parts), list(key), key[1:]):
            assert _row_or_refusal(row_of, given_) == _row_or_refusal(partial(key_of, schema), given_)


@settings(max_examples=examples(50))
@given(st.data(), givens.schemas())
def test_many_keys(data: st.DataObject, schema: TableSchema) -> None:
    """Of many keys at once: the rows of each, or the refusal of the first that is refused."""
    row_of, one = row_maker(schema), len(schema.key) == 1
    for clean in (True, False):
        values = st.tuples(*[givens.given_values(key.type, clean=clean) for key in schema.key])
        keys: list[object] = [key[0] if one else key for key in data.draw(st.lists(values, max_size=4))]
        lists: list[list[object]] = [keys, [*keys, b"k"], [b"k", b"a" * 100_000], []]
        for given_ in lists:
            rows = _rows_or_refusal(partial(rows_of_keys, schema, row_of), given_)
            assert rows == _rows_or_refusal(lambda keys: [key_of(schema, key) for key in keys], given_)


def _rows_or_refusal(way: Callable[[list[object]], list[Row]], keys: list[object]) -> list[Row] | str:
    try:
        return way(keys)
    except InvalidArgument as error:
        return str(error)


def _row_or_refusal(way: Callable[[object], Row], key: object) -> Row | str:
    try:
        return way(key)
    except InvalidArgument as error:
        return str(error)


def _in_blocks(schema: TableSchema, puts: SinglePuts, limits: Limits) -> Callable[[Any, Any], list[Mutation]]:
    def put(row: Mapping[str, Any], ts: int | None) -> list[Mutation]:
        blocks = puts.blocks(row, ts)
        checked(schema, blocks, limits)
        return [mutation for block in blocks for mutation in mutations_in(schema, block.block)]

    return put


@settings(max_examples=examples(300))
@given(
    st.data(),
    givens.schemas(),
    st.sampled_from(givens.LIMITS),
    st.sampled_from(["write", "skip"]),
    st.sampled_from([None, Micros(5)]),
)
def test_dicts(data: st.DataObject, schema: TableSchema, limits: Limits, nulls: str, ts: Micros | None) -> None:
    clean = data.draw(st.booleans())
    rows = data.draw(st.lists(givens.given_dicts(schema, clean=clean), min_size=1, max_size=4))
    names = Names(schema, limits)
    expected = judgements(lambda row: judged(names, row.items(), ts, fit_value, skip_nulls=nulls == "skip"), rows)
    for given_ in (rows, [MappingProxyType(row) for row in rows]):
        for small in (0, 64):
            hold_to(
                schema,
                limits,
                expected,
                lambda given_=given_, small=small: blocks_of(  # type: ignore[misc]
                    schema, given_, nulls=nulls, ts=ts, limits=limits, small_rows_max=small
                ),
            )


@settings(max_examples=examples(200))
@given(st.data(), givens.schemas(), st.sampled_from(givens.LIMITS), st.sampled_from(["write", "skip"]))
def test_frames_of_objects(data: st.DataObject, schema: TableSchema, limits: Limits, nulls: str) -> None:
    """What pandas calls missing is null there."""
    clean = data.draw(st.booleans())
    columns = data.draw(givens.names_of_rows(schema, clean=clean))
    rows = data.draw(st.lists(givens.given_rows(schema, columns, clean=clean), min_size=1, max_size=3))
    series = [pd.Series([row[at][1] for row in rows], dtype=object) for at in range(len(columns))]
    frame = pd.DataFrame(dict(enumerate(series)), index=range(len(rows)))
    frame.columns = pd.Index(columns, dtype=object)
    missing = [each.isna().tolist() for each in series]
    seen = [
        [(name, None if missing[at][number] else value) for at, (name, value) in enumerate(row)]
        for number, row in enumerate(rows)
    ]
    names = Names(schema, limits)
    expected = judgements(lambda row: judged(names, row, None, fit_value, skip_nulls=nulls == "skip"), seen)
    hold_to(schema, limits, expected, lambda: blocks_of(schema, frame, nulls=nulls, limits=limits, small_rows_max=0))


@settings(max_examples=examples(400))
@given(st.data(), givens.schemas(), st.sampled_from(givens.LIMITS), st.sampled_from(["write", "skip"]))
def test_arrow(data: st.DataObject, schema: TableSchema, limits: Limits, nulls: str) -> None:
    frame, rows = data.draw(givens.given_frames(schema))
    names = Names(schema, limits)
    expected = judgements(lambda row: judged(names, row, Micros(7), fit_value, skip_nulls=nulls == "skip"), rows)
    for given_ in (frame, frame.to_batches(max_chunksize=1)):
        for small in (0, 64):
            hold_to(
                schema,
                limits,
                expected,
                lambda given_=given_, small=small: blocks_of(  # type: ignore[misc]
                    schema, given_, nulls=nulls, ts=7, limits=limits, small_rows_max=small
                ),
            )


@settings(max_examples=examples(300))
@given(st.data(), givens.schemas(), st.sampled_from(givens.LIMITS), st.sampled_from(["write", "skip"]))
def test_long_frames(data: st.DataObject, schema: TableSchema, limits: Limits, nulls: str) -> None:
    names = Names(schema, limits)
    ts = data.draw(st.sampled_from([None, Micros(5)]))

    def judge(row: Any) -> list[Mutation]:
        return judged_long(names, row, ts, skip_nulls=nulls == "skip")

    frame, rows = data.draw(givens.given_long_frames(schema))
    for given_ in (frame, frame.to_batches(max_chunksize=1)):
        hold_to(
            schema,
            limits,
            judgements(judge, rows),
            lambda given_=given_: blocks_of(schema, given_, nulls=nulls, ts=ts, limits=limits, cells="long"),  # type: ignore[misc]
        )
    clean = data.draw(st.booleans())
    columns = data.draw(givens.names_of_long_rows(schema, clean=clean))
    some = st.lists(givens.given_long_rows(schema, columns, clean=clean), min_size=1, max_size=3)
    dicts = [dict(row) for row in data.draw(some)]
    for small in (0, 64):
        hold_to(
            schema,
            limits,
            judgements(lambda row: judge(row.items()), dicts),
            lambda small=small: blocks_of(  # type: ignore[misc]
                schema, dicts, nulls=nulls, ts=ts, limits=limits, cells="long", small_rows_max=small
            ),
        )
