"""Arrow arrays as users bring them, in the one form their column has: converted exactly, or refused.

A fast path of `rule`. What `fit_value` says of single values holds here for whole arrays, in vectors: overflow,
rounding, lost nanoseconds, a missing or a needless zone are errors, bool is not int, a float keeps its nearest float32.
Any layout will do (large, view, dictionary, run-end; a list of pairs for a map, as polars has it), and an array of
nulls alone is of any type.

Arrow's own safe casts are not safe in every place: decimals that outgrow 128 bits when they are rescaled and floats
that become infinite pass. Those are checked here; what Arrow has and a type has not, as times of no calendar, is looked
for in what comes out (`storage.checks.arrays`).

An array is tried as a whole. Only where that fails is the first value at fault looked for, by halving.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stelae.model import types as t
from stelae.model.arrow import compute as pc
from stelae.model.arrow import to_arrow
from stelae.model.arrow_values import array_of
from stelae.model.errors import InvalidArgument
from stelae.model.values import coerce
from stelae.storage.checks.arrays import why_not
from stelae.storage.checks.sizes import map_entries

_ELEMENTS_MAX = 2**31 - 1


class _Unfit(InvalidArgument):
    """Some value is not one of the type; why, but not yet which."""


_FAILURES = (InvalidArgument, pa.ArrowException, ValueError, OverflowError, NotImplementedError)


def fitted(type_: t.ColumnType, array: pa.Array, what: str, first_row: int) -> pa.Array:
    """The same values in the type's Arrow form. InvalidArgument names the row, numbered on from `first_row`, and `what`
    it is."""
    try:
        return _exact(type_, array)
    except _FAILURES as error:
        raise _refusal(type_, array, what, first_row, error) from None


def _refusal(type_: t.ColumnType, array: pa.Array, what: str, first_row: int, error: Exception) -> InvalidArgument:
    place, count = 0, len(array)
    while count > 1:
        half = count // 2
        if _fails(type_, array.slice(place, half)):
            count = half
        else:
            place, count = place + half, count - half
    where = f"row number {first_row + place}: {what}"
    single = array.slice(place, 1)
    if not _fails(type_, single):
        return InvalidArgument(f"{what}: {error}")
    try:
        coerce(type_, single[0].as_py(), where)
    except InvalidArgument as refused:
        return refused
    except (pa.ArrowException, ValueError, OverflowError, TypeError, NotImplementedError):
        pass  # no Python value stands for it
    return InvalidArgument(f"{where}: a value of Arrow's {array.type} is not a {type_}: {error}")


def _fails(type_: t.ColumnType, array: pa.Array) -> bool:
    try:
        _exact(type_, array)
    except _FAILURES:
        return True
    return False


def _exact(type_: t.ColumnType, array: pa.Array) -> pa.Array:
    kept = _converted(type_, array)
    why = why_not(type_, kept)
    if why:
        raise _Unfit(why)
    return kept


def _converted(type_: t.ColumnType, array: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        return _converted(type_, array.dictionary_decode())
    if pa.types.is_run_end_encoded(array.type):
        return _converted(type_, pc.run_end_decode(array))
    target = to_arrow(type_)
    if array.null_count == len(array):
        return pa.nulls(len(array), target)
    match type_:
        case t.Bool() | t.String() | t.Binary():
            return _same(target, array)
        case t.Int(bits):
            return _ints(bits, target, array)
        case t.Float():
            return _floats(target, array)
        case t.Decimal():
            return _decimals(type_, target, array)
        case t.Date():
            return _dates(target, array)
        case t.Timestamp() | t.TimestampNtz():
            return _timestamps(target, array)
        case t.Array(element):
            return _arrays(element, target, array)
        case t.Vector(length):
            return _vectors(length, target, array)
        case t.Struct(fields):
            return _structs(fields, target, array)
        case t.Map():
            return _maps(type_, target, array)


def _refuse_type(array: pa.Array) -> _Unfit:
    return _Unfit(f"Arrow's {array.type} does not fit")


_LAYOUTS: dict[pa.DataType, tuple[Callable[[pa.DataType], bool], ...]] = {
    pa.bool_(): (),
    pa.string(): (pa.types.is_large_string, pa.types.is_string_view),
    pa.binary(): (pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary),
}


def _same(target: pa.DataType, array: pa.Array) -> pa.Array:
    if array.type == target:
        return array
    if not any(is_layout(array.type) for is_layout in _LAYOUTS[target]):
        raise _refuse_type(array)
    return array.cast(target)


def _ints(bits: int, target: pa.DataType, array: pa.Array) -> pa.Array:
    if pa.types.is_integer(array.type):
        return array.cast(target)
    if not pa.types.is_floating(array.type):
        raise _refuse_type(array)
    numbers = array.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
    limit = 2.0 ** (bits - 1)
    if not np.all((numbers >= -limit) & (numbers < limit) & (np.floor(numbers) == numbers)):
        raise _Unfit("not a whole number in range")
    return pa.array(numbers.astype(f"i{bits // 8}"), target, mask=_nulls(array))


def _floats(target: pa.DataType, array: pa.Array) -> pa.Array:
    if pa.types.is_integer(array.type):
        return _float_of_ints(target, array)
    if not pa.types.is_floating(array.type):
        raise _refuse_type(array)
    kept = array.cast(target)
    if pa.types.is_float32(target) and pa.types.is_float64(array.type):
        overflown = pc.and_(pc.is_inf(kept), pc.invert(pc.is_inf(array)))
        if pc.any(overflown).as_py():
            raise _Unfit("out of range")
    return kept


def _float_of_ints(target: pa.DataType, array: pa.Array) -> pa.Array:
    ints = array.fill_null(0).to_numpy(zero_copy_only=False)
    floats = ints.astype(target.to_pandas_dtype())
    # The greatest ints round up to a float that no int of their width equals, and that numpy cannot turn back.
    inside = np.where(floats < 2.0 ** (np.iinfo(ints.dtype).bits - (ints.dtype.kind == "i")), floats, 0)
    if not np.all(inside.astype(ints.dtype) == ints):
        raise _Unfit("it would be rounded")
    return pa.array(floats, target, mask=_nulls(array))


def _decimals(type_: t.Decimal, target: pa.DataType, array: pa.Array) -> pa.Array:
    if pa.types.is_integer(array.type):
        array = array.cast(pa.decimal128(20, 0))
    if not pa.types.is_decimal(array.type):
        raise _refuse_type(array)
    scale = array.type.scale
    digits = type_.precision - type_.scale + scale
    if scale < 0 or digits < 1 or pa.types.is_decimal256(array.type):
        return array_of(type_, [None if v is None else coerce(type_, v, "it") for v in array.to_pylist()])
    if scale <= type_.scale:
        # Arrow counts the digits after it has rescaled, and rescaling wraps around: so they are counted before.
        array = array.cast(pa.decimal128(digits, scale))
    return array.cast(target)


def _dates(target: pa.DataType, array: pa.Array) -> pa.Array:
    if not pa.types.is_date(array.type):
        raise _refuse_type(array)
    return array.cast(target)


def _timestamps(target: pa.DataType, array: pa.Array) -> pa.Array:
    if not pa.types.is_timestamp(array.type):
        raise _refuse_type(array)
    if (array.type.tz is None) != (target.tz is None):
        raise _Unfit("it has no time zone" if array.type.tz is None else "it has a time zone")
    return array.cast(target)


def _arrays(element: t.ColumnType, target: pa.DataType, array: pa.Array) -> pa.Array:
    bounds, (inner,) = _entries(array)
    kept = _converted(element, inner)
    return pa.ListArray.from_arrays(bounds, kept, type=target, mask=_null_array(array))


def _vectors(length: int, target: pa.DataType, array: pa.Array) -> pa.Array:
    bounds, (inner,) = _entries(array)
    nulls = _nulls(array)
    there = np.ones(len(array), np.bool_) if nulls is None else ~nulls
    if np.any(np.diff(bounds.to_numpy())[there] != length):
        raise _Unfit("of another length")
    if inner.null_count:
        raise _Unfit("there is a NULL in it")
    numbers = np.zeros((len(array), length), np.float32)
    numbers[there] = _converted(t.Float(32), inner).to_numpy().reshape(-1, length)
    return pa.FixedSizeListArray.from_arrays(pa.array(numbers.ravel()), type=target, mask=_null_array(array))


def _structs(fields: tuple[tuple[str, t.ColumnType], ...], target: pa.DataType, array: pa.Array) -> pa.Array:
    if not pa.types.is_struct(array.type):
        raise _refuse_type(array)
    given = dict(zip([field.name for field in array.type], array.flatten(), strict=True))
    if len(given) != array.type.num_fields or not given.keys() <= {name for name, _ in fields}:
        raise _Unfit("its fields are others")
    nothing = pa.nulls(len(array))
    kept = [_converted(field, given.get(name, nothing)) for name, field in fields]
    return pa.StructArray.from_arrays(kept, fields=list(target), mask=_null_array(array))


def _maps(type_: t.Map, target: pa.DataType, array: pa.Array) -> pa.Array:
    bounds, parts = _entries(array)
    if len(parts) == 1:
        parts = parts[0].flatten() if pa.types.is_struct(parts[0].type) and parts[0].type.num_fields == 2 else []
    if len(parts) != 2 or parts[0].null_count:
        raise _Unfit("not pairs of a key and a value")
    keys, items = _converted(type_.key, parts[0]), _converted(type_.value, parts[1])
    return pa.MapArray.from_arrays(bounds, keys, items, type=target, mask=_null_array(array))


_LISTS: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)


def _entries(array: pa.Array) -> tuple[pa.Array, list[pa.Array]]:
    """Bounds of each list, and all elements behind each other: of a map its keys and its values. A null has none."""
    if pa.types.is_map(array.type):
        owners, *parts = map_entries(array)
        lengths = np.bincount(owners, minlength=len(array))
    elif any(is_list(array.type) for is_list in _LISTS):
        lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
        parts = [pc.list_flatten(array)]
    else:
        raise _refuse_type(array)
    bounds = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    if bounds[-1] > _ELEMENTS_MAX:
        raise _Unfit(f"{bounds[-1]} elements are too many for one array; give the rows in parts")
    return pa.array(bounds.astype(np.int32)), parts


def _nulls(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    return array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None


def _null_array(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None
