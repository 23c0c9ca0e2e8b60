"""Which serializer reads which bytes.

    protocol version (2 bytes) | object

    object = object type (2 bytes) | serializer version (varint) | payload (msgpack list of fields)

Numbers are big-endian. Objects inside objects have headers of their own, so each type's serializer can grow alone. A
type's versions are numbered from 1 without gaps; all read, and the newest that a value needs writes it, so that older
releases can read all that is not new. Bytes of a released version never change: golden files hold every one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Any

import msgspec

from stelae.model.errors import InvalidArgument, StelaeError, UnsupportedFormat

PROTOCOL_VERSION = 1
_HEADER = struct.Struct(">H")
_VARINT_BYTES_MAX = 5


class ObjectType(IntEnum):
    """Numbers are stored: never change one, never give one again."""

    NAMESPACE = 1
    ZONE = 2
    TABLE = 3
    TABLE_SCHEMA = 4
    KEY_COLUMN = 5
    COLUMN = 6
    FAMILY = 7
    GROUP_OPTIONS = 8
    COLUMNS_GROUP = 9
    CELLS_GROUP = 10
    TABLE_PROPERTIES = 11
    DROPPED_TABLE = 12
    INDEX = 13

    NAMESPACE_CREATED = 100
    NAMESPACE_DROPPED = 101
    ZONE_CREATED = 102
    ZONE_CHANGED = 103
    ZONE_DROPPED = 104
    DEFAULT_ZONE_SET = 105
    TABLE_CREATED = 106
    TABLE_DROPPED = 107
    TABLE_RECALLED = 108
    TABLE_FORGOTTEN = 109
    TABLE_RENAMED = 110
    TABLE_ZONE_SET = 111
    TABLE_PROPERTIES_SET = 112
    COLUMNS_ADDED = 113
    COLUMNS_DROPPED = 114
    COLUMN_CHANGED = 115
    FAMILIES_ADDED = 116
    FAMILIES_DROPPED = 117
    FAMILY_RENAMED = 118
    MEMBERS_MOVED = 119
    GROUP_ADDED = 120
    GROUP_DROPPED = 121
    GROUP_OPTIONS_SET = 122
    INDEX_CREATED = 123
    INDEX_STATUS_SET = 124
    INDEX_REMOVED = 125

    UPDATE = 200
    SNAPSHOT_HEAD = 201


class BadBytes(StelaeError):
    """Bytes that are no object of the catalog. Whoever knows where they came from says so."""


class Serializer(msgspec.Struct, frozen=True):
    """One version of one type: how its fields become plain values, and back. `since` is the release that first wrote
    it: from then on it never changes. `is_needed`: whether an older version could not hold a value."""

    object_type: ObjectType
    version: int
    since: str
    kind: type[Any]
    write: Callable[[Any], list[Any]]
    read: Callable[[list[Any]], Any]
    is_needed: Callable[[Any], bool] = lambda _: True


class SerializerRegistry:
    def __init__(self, serializers: Iterable[Serializer]) -> None:
        by_type: dict[ObjectType, dict[int, Serializer]] = {}
        for serializer in serializers:
            versions = by_type.setdefault(serializer.object_type, {})
            if serializer.version in versions:
                raise InvalidArgument(f"{serializer.object_type.name} has version {serializer.version} twice")
            versions[serializer.version] = serializer
        for type_, versions in by_type.items():
            if sorted(versions) != list(range(1, len(versions) + 1)):
                raise InvalidArgument(f"{type_.name} has serializers of versions {sorted(versions)}: there is a gap")
        self._readers: Mapping[ObjectType, dict[int, Serializer]] = by_type
        newest_first = [
            [versions[number] for number in sorted(versions, reverse=True)] for versions in by_type.values()
        ]
        self._writers = {versions[0].kind: versions for versions in newest_first}

    @property
    def serializers(self) -> tuple[Serializer, ...]:
        return tuple(serializer for versions in self._readers.values() for serializer in versions.values())

    def encode(self, value: object) -> bytes:
        """The bytes of a value, with the protocol version in front."""
        return _HEADER.pack(PROTOCOL_VERSION) + self.encode_part(value)

    def encode_part(self, value: object) -> bytes:
        versions = self._writers.get(type(value))
        if versions is None:
            raise InvalidArgument(f"{type(value).__name__} has no serializer")
        serializer = next(each for each in versions if each.version == 1 or each.is_needed(value))
        payload = msgspec.msgpack.encode(serializer.write(value))
        return _HEADER.pack(serializer.object_type) + _varint(serializer.version) + payload

    def decode(self, data: bytes) -> Any:
        if len(data) < _HEADER.size:
            raise BadBytes("the bytes end before the protocol version")
        (protocol,) = _HEADER.unpack_from(data)
        if protocol != PROTOCOL_VERSION:
            raise UnsupportedFormat(f"protocol version {protocol}; this release reads version {PROTOCOL_VERSION}")
        return self.decode_part(data[_HEADER.size :])

    def decode_part(self, data: object) -> Any:
        if not isinstance(data, bytes) or len(data) <= _HEADER.size:
            raise BadBytes("the bytes end inside an object's header")
        number = _HEADER.unpack_from(data)[0]
        if number not in _TYPES:
            raise UnsupportedFormat(f"object type {number} is not one this release knows")
        type_ = _TYPES[number]
        version, at = _read_varint(data, _HEADER.size)
        serializer = self._readers.get(type_, {}).get(version)
        if serializer is None:
            newest = len(self._readers.get(type_, {}))
            raise UnsupportedFormat(
                f"{type_.name} in serializer version {version}; this release reads versions up to {newest}"
            )
        try:
            fields = msgspec.msgpack.decode(data[at:], type=list[Any])
            return serializer.read(fields)
        except (BadBytes, UnsupportedFormat):
            raise
        except (msgspec.MsgspecError, StelaeError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise BadBytes(f"{type_.name} (serializer version {version}) cannot be read: {error}") from None


_TYPES = {int(type_): type_ for type_ in ObjectType}


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for i, byte in enumerate(data[at : at + _VARINT_BYTES_MAX]):
        number |= (byte & 0x7F) << (7 * i)
        if not byte & 0x80:
            return number, at + i + 1
    raise BadBytes("the bytes end inside a serializer version")
