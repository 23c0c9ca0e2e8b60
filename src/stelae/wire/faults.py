"""Errors that cross the wire: as bytes, and back as the class they were.

A fault is msgpack: the names of the error's class and of its ancestors, nearest first; the message; the attributes that
the class declares (`FaultTable`), of which one that is not there is None. Whoever reads it makes the nearest class it
knows, and says the name it does not know in the message: a newer server's `Unavailable` of some new kind is still
`Unavailable`, and is retried.

What is no StelaeError is a mistake on the side where it happened: it travels as an InternalFault that names its class
and nothing else, since its message and traceback may hold anything. Texts are cut to `TEXT_CHARS_MAX`.

`encode` takes any error and never raises; `decode` takes any bytes and raises MessageRefused for what is no fault.
Unknown fields and attributes are ignored: faults are read across versions, a refused hello among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

import msgspec
from typing_extensions import Buffer

from stelae.model import errors
from stelae.model.errors import (
    Corruption,
    InternalFault,
    InvalidArgument,
    InvalidPredicate,
    PartialWrite,
    ProtocolError,
    StelaeError,
)

TEXT_CHARS_MAX = 16 * 1024
_NAME_CHARS_MAX = 200
_ANCESTORS_MAX = 32
_ATTRIBUTES_MAX = 32
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1
_CUT = " ... (cut)"


class MessageRefused(ProtocolError):
    """A message does not fit its method. That request fails; the connection goes on."""


_Scalar: TypeAlias = bool | int | float | str | None


class _Fault(msgspec.Struct):
    kinds: Annotated[list[str], msgspec.Meta(min_length=1, max_length=_ANCESTORS_MAX)]
    message: str
    attributes: Annotated[dict[str, _Scalar], msgspec.Meta(max_length=_ATTRIBUTES_MAX)]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Fault)

_OF_MODEL = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, StelaeError)]
_ATTRIBUTES: dict[type[StelaeError], dict[str, Any]] = {
    PartialWrite: {"durable": int, "why": str | None},
    Corruption: {"file": str, "offset": int | None},
    InvalidPredicate: {"text": str, "position": int},
}
_ALWAYS = {kind: _ATTRIBUTES.get(kind, {}) for kind in (*_OF_MODEL, MessageRefused)}


class FaultTable:
    """Which error classes a side can make of a fault: all of `model.errors` and this module, and those it is given.

    Each comes with the attributes it has beside its message and its ancestors' attributes, by name, and their types:
    text, numbers, None. A fault whose attributes do not fit its class becomes the next ancestor that they fit.
    """

    def __init__(self, more: Mapping[type[StelaeError], Mapping[str, Any]] | None = None) -> None:
        declared = {**_ALWAYS, **(more or {})}
        self._kinds = {kind.__name__: kind for kind in declared}
        twice = sorted({kind.__name__ for kind in declared if self._kinds[kind.__name__] is not kind})
        if twice:
            raise InvalidArgument(f"faults are told apart by name: two classes are called {', '.join(twice)}")
        self._attributes = {kind: _inherited(kind, declared) for kind in declared}

    def encode(self, error: BaseException) -> bytes:
        if not isinstance(error, StelaeError):
            error = InternalFault(f"the other side failed on a mistake of its own: {_full_name(type(error))}")
        ancestors = [kind for kind in type(error).__mro__ if issubclass(kind, StelaeError)]
        nearest_known = next(kind for kind in ancestors if kind in self._attributes)
        attributes = {name: getattr(error, name, ...) for name in self._attributes[nearest_known]}
        fault = _Fault(
            [_bounded(kind.__name__, _NAME_CHARS_MAX) for kind in ancestors[:_ANCESTORS_MAX]],
            _bounded(str(error)),
            {name: _bounded(value) for name, value in attributes.items() if _is_scalar(value)},
        )
        return _ENCODER.encode(fault)

    def decode(self, data: Buffer) -> StelaeError:
        try:
            fault = _DECODER.decode(data)
        except (ValueError, RecursionError) as error:
            raise MessageRefused(f"not a fault: {error}") from None
        message = _bounded(fault.message)
        for number, name in enumerate(fault.kinds):
            kind = self._kinds.get(name)
            attributes = None if kind is None else _fitting(fault.attributes, self._attributes[kind])
            if kind is not None and attributes is not None:
                return _revive(kind, _naming(fault, message) if number else message, attributes)
        return StelaeError(_naming(fault, message))


def _inherited(kind: type[StelaeError], declared: Mapping[type[StelaeError], Mapping[str, Any]]) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if issubclass(base, StelaeError):
            attributes |= declared.get(base, {})
    return attributes


def _full_name(kind: type[BaseException]) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _naming(fault: _Fault, message: str) -> str:
    return f"{_bounded(fault.kinds[0], _NAME_CHARS_MAX)}: {message}"


def _is_scalar(value: object) -> bool:
    match value:
        case int():
            return _INT_MIN <= value <= _INT_MAX
        case _:
            return value is None or isinstance(value, float | str)


def _bounded(value: Any, chars_max: int = TEXT_CHARS_MAX) -> Any:
    """Text that is short enough and that UTF-8 can hold; anything else as it is."""
    if not isinstance(value, str):
        return value
    sound = value[:chars_max].encode("utf-8", "replace").decode("utf-8")
    return sound if len(value) <= chars_max else f"{sound[: chars_max - len(_CUT)]}{_CUT}"


def _fitting(found: dict[str, _Scalar], declared: dict[str, Any]) -> dict[str, _Scalar] | None:
    try:
        return {name: _bounded(msgspec.convert(found.get(name), type_)) for name, type_ in declared.items()}
    except msgspec.ValidationError:
        return None


def _revive(kind: type[StelaeError], message: str, attributes: dict[str, _Scalar]) -> StelaeError:
    """Without `__init__`, which would put the message together a second time."""
    error = kind.__new__(kind, message)
    error.__dict__.update(attributes)
    return error
