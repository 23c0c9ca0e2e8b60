"""What users say of a table, as mutations and blocks: keys, puts, erasures, and whole frames of rows.

Pure functions of a schema and what was given. What they return says exactly what was said, or they raise
InvalidArgument, which names the row and the column, and nothing was done. What a row may say is told in `rule`; here is
what calls of many rows make of it, and what erasures say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

import pyarrow as pa

from stelae.client.arguments.names import Names
from stelae.client.intake.blocks import (
    BLOCK_ROWS_MAX,
    SMALL_ROWS_MAX,
    SaidRow,
    Sizes,
    batch_of,
    cut_columnar,
    small_blocks,
    weighed,
)
from stelae.client.intake.dicts import given_dicts, part_of_dicts, plain_dicts
from stelae.client.intake.frames import FramePart, is_frame, part_of_frame, whole_array
from stelae.client.intake.long_frames import given_long
from stelae.client.intake.merge import merged_rows
from stelae.client.intake.rows import GivenRows, check_given, check_keys, concatenated_rows, given_frame
from stelae.client.intake.rule import TWO_TIMES, judged, judged_long, long_places, plain_dict, said_alone
from stelae.client.intake.shares import shared_out
from stelae.client.intake.single_rows import PlainPuts
from stelae.client.intake.values import fit_value
from stelae.format.columnar import ColumnarBlock, ColumnarOp
from stelae.model.arrow_values import array_of
from stelae.model.errors import InvalidArgument
from stelae.model.ids import ColumnId, Micros, Row
from stelae.model.limits import DEFAULT_LIMITS, Limits
from stelae.model.mutation import Cell, Columns, Erase, EraseVersion, Mutation, WholeFamily, WholeRow
from stelae.model.schema import Column, KeyColumn, TableSchema
from stelae.model.values import Value, check_ts, show
from stelae.service.blocks import OrderedBlock
from stelae.storage.checks.rules import check_size

_Judge: TypeAlias = Callable[[dict[Any, Any]], Sequence[Mutation]]


def key_of(schema: TableSchema, key: object, limits: Limits = DEFAULT_LIMITS) -> Row:
    """The row of a key: a single value, a tuple of all values, or a dict of key column to value."""
    if isinstance(key, Mapping):
        key = _known_keys(schema, key)
    row = schema.codec.encode(schema.codec.check(key))
    if len(row) > limits.row_bytes_max:
        check_size(f"key {show(key)}: its row", len(row), limits.row_bytes_max)
    return row


def _known_keys(schema: TableSchema, key: Mapping[Any, Any]) -> dict[Any, Any]:
    """Under the names the columns have; what is no key column is left for the codec to refuse."""
    folded = {name.casefold(): name for name in schema.codec.names}
    found: dict[Any, Any] = {}
    for name, value in key.items():
        known = name if name in schema.codec.names else folded.get(str(name).casefold(), name)
        if known in found:
            raise InvalidArgument(f"key {show(dict(key))}: key column {known!r} is given twice (case does not count)")
        found[known] = value
    return found


def key_values(schema: TableSchema, row: Row) -> dict[str, Value]:
    """The key columns of a row."""
    return dict(zip(schema.codec.names, schema.codec.decode(row), strict=True))


def mutations_of(schema: TableSchema, row: Mapping[str, Any], ts: int | None = None) -> list[Mutation]:
    """What a put of one row says. What the whole block must hold (NOT NULL, sizes) is seen to by whoever takes it, who
    names the row and the column as well."""
    return said_alone(Names(schema), plain_dict(row), _time(ts))


def _time(ts: int | None) -> Micros | None:
    return None if ts is None else check_ts(ts)


def erasures_of(
    schema: TableSchema,
    key: object,
    columns: Sequence[str] | None = None,
    ts: int | None = None,
    versions: Sequence[int] | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> list[Mutation]:
    """An erasure of a row, or of some of its columns, up to a time; or of exact versions of those columns. Among the
    columns, `click:home` is a cell and `click:` a family."""
    row, until = key_of(schema, key, limits), _time(ts)
    if columns is None:
        if versions is not None:
            raise InvalidArgument("versions= are those of columns: name them in columns=")
        return [Erase(row, WholeRow(), until)]
    targets = _targets(Names(schema, limits), columns)
    if versions is None:
        return [Erase(row, target, until) for target in targets]
    if ts is not None:
        raise InvalidArgument("give ts=, up to which all is erased, or versions=, but not both")
    exact: list[Mutation] = []
    for time in _listed("versions", versions, "times"):
        for target in targets:
            if isinstance(target, WholeFamily):
                raise InvalidArgument(f"column '{target.family}:': a family has no versions=, its cells have")
            exact.append(EraseVersion(row, target, check_ts(time, "versions")))
    return exact


def _targets(names: Names, columns: Sequence[str]) -> list[Columns | Cell | WholeFamily]:
    ids: dict[ColumnId, None] = {}
    others: dict[Cell | WholeFamily, None] = {}
    for name in _listed("columns", columns, "names"):
        match names.meaning(name):
            case KeyColumn():
                raise InvalidArgument(f"{name!r} is a key column: without columns= the whole row is erased")
            case Column(id=id_):
                ids[id_] = None
            case Cell(family, ""):
                others[WholeFamily(family)] = None
            case Cell() as cell:
                others[cell] = None
            case WholeFamily():
                raise InvalidArgument(f"{name!r} is a family: say {name + ':'!r} for all of it")
    return [*([Columns(tuple(sorted(ids)))] if ids else []), *others]


def _listed(what: str, given: Any, of: str) -> list[Any]:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise InvalidArgument(f"{what}= is a list of {of}, not {show(given)}")
    found = list(given)
    if not found:
        raise InvalidArgument(f"{what}= is empty: leave it out, or name some")
    return found


def blocks_of(
    schema: TableSchema,
    rows: Any,
    *,
    nulls: str = "write",
    ts: int | None = None,
    cells: str = "map",
    limits: Limits = DEFAULT_LIMITS,
    block_rows_max: int = BLOCK_ROWS_MAX,
    small_rows_max: int = SMALL_ROWS_MAX,
) -> list[OrderedBlock]:
    """Puts of many rows: dicts, a frame (pyarrow, pandas, polars, whatever exports Arrow), or an iterable of frames.

    All is checked before anything is returned. Every row is in one block, with all that the call says of it: of a cell
    that is said twice, what was said last. `nulls="skip"` leaves a column untouched where it is null. With
    `cells="long"` each row is one cell: the key, then family, qualifier, value, and perhaps ts."""
    _check_choice("nulls", nulls, "write", "skip")
    _check_choice("cells", cells, "map", "long")
    names, time, sizes = Names(schema, limits), _time(ts), Sizes(limits, block_rows_max, small_rows_max)
    skip_nulls, is_long = nulls == "skip", cells == "long"
    parts = _parts(rows)
    if not parts:
        return []
    if isinstance(parts, list):
        if is_long:
            long_places(schema, dict.fromkeys(chain.from_iterable(parts)))
        judge = _judge_long(names, parts, time, skip_nulls) if is_long else _judge(names, time, skip_nulls)
        few = _few_dicts(schema, parts, judge, sizes) if len(parts) <= small_rows_max else None
        if few is not None:
            return few
    if isinstance(parts, list) and not is_long:
        given = given_dicts(names, parts, skip_nulls=skip_nulls)
    else:
        frames = (part_of_dicts(parts),) if isinstance(parts, list) else parts
        given = _given_frames(names, frames, skip_nulls=skip_nulls, is_long=is_long)
    if is_long and ts is not None and given.cells is not None and given.cells.ts is not None:
        raise InvalidArgument(TWO_TIMES)
    check_given(schema, given, limits)
    return shared_out(schema, merged_rows(schema, given, limits), time, sizes) if given.count else []


def _check_choice(name: str, given: str, one: str, other: str) -> None:
    if given not in (one, other):
        raise InvalidArgument(f"{name}= is {one!r} or {other!r}, not {show(given)}")


def _given_frames(names: Names, frames: Sequence[FramePart], *, skip_nulls: bool, is_long: bool) -> GivenRows:
    found: list[GivenRows] = []
    first_row = 0
    for frame in frames:
        read = given_long if is_long else given_frame
        found.append(read(names, frame, first_row, skip_nulls=skip_nulls))
        first_row += frame.count
    return concatenated_rows(found)


def _parts(rows: Any) -> tuple[FramePart, ...] | list[dict[Any, Any]]:
    """Frames, or a list of dicts."""
    if is_frame(rows):
        return (part_of_frame(rows),)
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise InvalidArgument(f"rows are a list of dicts or a frame, not {show(rows)}")
    items = list(rows)
    if not items or not is_frame(items[0]):
        return plain_dicts(items)
    for number, item in enumerate(items):
        if not is_frame(item):
            raise InvalidArgument(f"after {number} frames comes {show(item)}, which is none")
    return tuple(part_of_frame(item) for item in items)


def _few_dicts(
    schema: TableSchema, rows: Sequence[dict[Any, Any]], judge: _Judge, sizes: Sizes
) -> list[OrderedBlock] | None:
    """Straight to small blocks; None if some row does not fit into one."""
    by_row: dict[Row, SaidRow] = {}
    for number, row in enumerate(rows):
        try:
            puts = judge(row)
        except InvalidArgument as error:
            raise InvalidArgument(f"row number {number}: {error}") from None
        if not puts:
            continue
        more = weighed(puts)
        before = by_row.get(more.row)
        by_row[more.row] = more if before is None else before.followed_by(more)
    if not all(each.fits_small for each in by_row.values()):
        return None
    return list(small_blocks(schema, [by_row[row] for row in sorted(by_row)], sizes))


def _judge(names: Names, ts: Micros | None, skip_nulls: bool) -> _Judge:
    plain = PlainPuts(names)

    def judge(row: dict[Any, Any]) -> Sequence[Mutation]:
        puts = None if skip_nulls else plain.put(row, ts)
        return judged(names, row.items(), ts, fit_value, skip_nulls=skip_nulls) if puts is None else puts

    return judge


def _judge_long(names: Names, rows: Sequence[dict[Any, Any]], ts: Micros | None, skip_nulls: bool) -> _Judge:
    """Of a column that some rows have, the others have a NULL."""
    columns = list(dict.fromkeys(chain.from_iterable(rows)))

    def judge(row: dict[Any, Any]) -> Sequence[Mutation]:
        return judged_long(names, [(name, row.get(name)) for name in columns], ts, skip_nulls=skip_nulls)

    return judge


def erase_rows_blocks(
    schema: TableSchema,
    keys: Any,
    ts: int | None = None,
    *,
    limits: Limits = DEFAULT_LIMITS,
    block_rows_max: int = BLOCK_ROWS_MAX,
    small_rows_max: int = SMALL_ROWS_MAX,
) -> list[OrderedBlock]:
    """Erasures of whole rows up to a time: keys as `key_of` takes them, an Arrow array of a single key column, or a
    frame of the key columns."""
    sizes, until = Sizes(limits, block_rows_max, small_rows_max), _time(ts)
    given = _given_keys(schema, keys)
    if not given.count:
        return []
    check_keys(schema, given)
    found = merged_rows(schema, given, limits)
    if len(found.rows) <= small_rows_max:
        rows = [Row(row) for row in found.rows.to_pylist()]
        return list(small_blocks(schema, [weighed([Erase(row, WholeRow(), until)]) for row in rows], sizes))
    batch = batch_of(schema, found.rows, found.keys, (), until)
    block = ColumnarBlock(schema.version, ColumnarOp.ERASE_ROWS, True, batch)
    return cut_columnar(schema, OrderedBlock(block, found.rows), None, sizes)


def _given_keys(schema: TableSchema, keys: Any) -> GivenRows:
    if is_frame(keys):
        given = given_frame(Names(schema), part_of_frame(keys), 0, skip_nulls=False)
        if given.columns or given.cells is not None:
            raise InvalidArgument("a frame of keys has the key columns alone")
        return given
    if isinstance(keys, pa.Array | pa.ChunkedArray):
        if len(schema.key) > 1:
            raise InvalidArgument(f"one array is no key of {', '.join(schema.codec.names)}: give a table of them")
        column = schema.key[0].name, whole_array(keys, "keys")
        return given_frame(Names(schema), FramePart(len(keys), (column,)), 0, skip_nulls=False)
    if isinstance(keys, str | bytes | Mapping) or not isinstance(keys, Iterable):
        raise InvalidArgument(f"keys are a list of them, not {show(keys)}")
    checked = []
    for number, key in enumerate(keys):
        try:
            checked.append(schema.codec.check(_known_keys(schema, key) if isinstance(key, Mapping) else key))
        except InvalidArgument as error:
            raise InvalidArgument(f"key number {number}: {error}") from None
    columns = zip(*checked, strict=True) if checked else [()] * len(schema.key)
    return GivenRows(
        len(checked), tuple(array_of(key.type, values) for key, values in zip(schema.key, columns, strict=True))
    )
