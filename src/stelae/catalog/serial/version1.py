"""Version 1 of every serializer: the fields of each object, in the order they are stored.

A field is stored by its codec: plain values as they are, objects with their own header, types and purge policies as
their text, column values as in blocks. To change what is stored, leave this file alone and add version 2 beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, get_args

import msgspec

from stelae.catalog import entries as e
from stelae.catalog import index_entries as i
from stelae.catalog import objects as o
from stelae.catalog.serial.registry import ObjectType, Serializer, SerializerRegistry
from stelae.catalog.serial.version2 import SINCE_VERSION_1
from stelae.catalog.serial.version3 import SINCE_VERSION_2
from stelae.format.packing import pack_value, unpack_extension
from stelae.model import schema as s
from stelae.model.purge import parse_purge
from stelae.model.types import parse_type

SINCE = "0.1.0"


class _Codec(msgspec.Struct, frozen=True):
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def _plain(kind: type) -> _Codec:
    def exactly(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError(f"expected {kind.__name__}, found {type(value).__name__}")
        return value

    return _Codec(exactly, exactly)


NUMBER, TEXT, FLAG, RAW = (_plain(kind) for kind in (int, str, bool, bytes))


def _many(codec: _Codec) -> _Codec:
    def read(values: Any) -> Any:
        if not isinstance(values, list):
            raise TypeError(f"expected a list, found {type(values).__name__}")
        return tuple(codec.read(value) for value in values)

    return _Codec(lambda values: [codec.write(value) for value in values], read)


def _optional(codec: _Codec) -> _Codec:
    return _Codec(
        lambda value: None if value is None else codec.write(value),
        lambda value: None if value is None else codec.read(value),
    )


def _object(*kinds: type) -> _Codec:
    """An object of one of these kinds, with its own header."""

    def write(value: Any) -> bytes:
        return CATALOG_SERIALIZERS.encode_part(_of_kind(value))

    def read(data: Any) -> Any:
        return _of_kind(CATALOG_SERIALIZERS.decode_part(data))

    def _of_kind(value: Any) -> Any:
        if type(value) not in kinds:
            raise TypeError(f"expected {' or '.join(kind.__name__ for kind in kinds)}, found {type(value).__name__}")
        return value

    return _Codec(write, read)


NUMBERS = _many(NUMBER)
GROUP = _object(s.ColumnsGroup, s.CellsGroup)
TYPE = _Codec(str, lambda text: parse_type(TEXT.read(text)))
PURGE = _optional(_Codec(str, lambda text: parse_purge(TEXT.read(text))))
STATUS = _Codec(int, o.IndexStatus)
PLACEMENT = _Codec(int, o.Placement)
VALUE = _optional(
    _Codec(
        lambda value: msgspec.msgpack.encode(pack_value(value)),
        lambda data: msgspec.msgpack.decode(RAW.read(data), ext_hook=unpack_extension),
    )
)


def _of(type_: ObjectType, kind: type, **fields: _Codec) -> Serializer:
    names, codecs = tuple(fields), tuple(fields.values())

    def write(value: Any) -> list[Any]:
        return [codec.write(getattr(value, name)) for name, codec in zip(names, codecs, strict=True)]

    def read(stored: list[Any]) -> Any:
        if len(stored) != len(codecs):
            raise TypeError(f"{len(stored)} fields instead of {len(codecs)}")
        return kind(**{name: codec.read(value) for name, codec, value in zip(names, codecs, stored, strict=True)})

    return Serializer(type_, 1, SINCE, kind, write, read)


T = ObjectType

_OBJECTS: Sequence[Serializer] = (
    _of(T.NAMESPACE, o.Namespace, id=NUMBER, name=TEXT),
    _of(
        T.ZONE,
        o.Zone,
        id=NUMBER,
        name=TEXT,
        replicas=NUMBER,
        min_replicas=NUMBER,
        placement=PLACEMENT,
        tablet_bytes=NUMBER,
    ),
    _of(
        T.TABLE,
        o.Table,
        id=NUMBER,
        namespace=NUMBER,
        name=TEXT,
        zone=NUMBER,
        schema=_object(s.TableSchema),
        properties=_object(o.TableProperties),
    ),
    _of(
        T.TABLE_SCHEMA,
        s.TableSchema,
        version=NUMBER,
        key=_many(_object(s.KeyColumn)),
        groups=_many(GROUP),
        hashed=FLAG,
        last_id=NUMBER,
    ),
    _of(T.KEY_COLUMN, s.KeyColumn, id=NUMBER, name=TEXT, type=TYPE),
    _of(T.COLUMN, s.Column, id=NUMBER, name=TEXT, type=TYPE, nullable=FLAG, default=VALUE),
    _of(T.FAMILY, s.Family, id=NUMBER, name=TEXT),
    _of(
        T.GROUP_OPTIONS,
        s.GroupOptions,
        compression=TEXT,
        block_bytes=NUMBER,
        in_memory=FLAG,
        bloom=FLAG,
        purge=PURGE,
    ),
    _of(
        T.COLUMNS_GROUP,
        s.ColumnsGroup,
        id=NUMBER,
        name=TEXT,
        columns=_many(_object(s.Column)),
        options=_object(s.GroupOptions),
    ),
    _of(
        T.CELLS_GROUP,
        s.CellsGroup,
        id=NUMBER,
        name=TEXT,
        families=_many(_object(s.Family)),
        wildcard=FLAG,
        options=_object(s.GroupOptions),
    ),
    _of(T.TABLE_PROPERTIES, o.TableProperties, retention_us=NUMBER, comment=TEXT),
    _of(T.DROPPED_TABLE, o.DroppedTable, table=_object(o.Table), namespace=TEXT, version=NUMBER, since=NUMBER),
    _of(T.INDEX, o.Index, id=NUMBER, namespace=NUMBER, name=TEXT, table=NUMBER, columns=NUMBERS, status=STATUS),
)

_ENTRIES: Sequence[Serializer] = (
    _of(T.NAMESPACE_CREATED, e.NamespaceCreated, namespace=_object(o.Namespace)),
    _of(T.NAMESPACE_DROPPED, e.NamespaceDropped, namespace=NUMBER),
    _of(T.ZONE_CREATED, e.ZoneCreated, zone=_object(o.Zone)),
    _of(T.ZONE_CHANGED, e.ZoneChanged, zone=_object(o.Zone)),
    _of(T.ZONE_DROPPED, e.ZoneDropped, zone=NUMBER),
    _of(T.DEFAULT_ZONE_SET, e.DefaultZoneSet, zone=NUMBER),
    _of(T.TABLE_CREATED, e.TableCreated, table=_object(o.Table)),
    _of(T.TABLE_DROPPED, e.TableDropped, table=NUMBER),
    _of(T.TABLE_RECALLED, e.TableRecalled, table=NUMBER, namespace=NUMBER, name=TEXT, zone=NUMBER),
    _of(T.TABLE_FORGOTTEN, e.TableForgotten, table=NUMBER),
    _of(T.TABLE_RENAMED, e.TableRenamed, table=NUMBER, namespace=NUMBER, name=TEXT),
    _of(T.TABLE_ZONE_SET, e.TableZoneSet, table=NUMBER, zone=NUMBER),
    _of(T.TABLE_PROPERTIES_SET, e.TablePropertiesSet, table=NUMBER, properties=_object(o.TableProperties)),
    _of(T.COLUMNS_ADDED, e.ColumnsAdded, table=NUMBER, group=NUMBER, columns=_many(_object(s.Column))),
    _of(T.COLUMNS_DROPPED, e.ColumnsDropped, table=NUMBER, columns=NUMBERS),
    _of(T.COLUMN_CHANGED, e.ColumnChanged, table=NUMBER, column=_object(s.Column)),
    _of(T.FAMILIES_ADDED, e.FamiliesAdded, table=NUMBER, group=NUMBER, families=_many(_object(s.Family))),
    _of(T.FAMILIES_DROPPED, e.FamiliesDropped, table=NUMBER, families=NUMBERS),
    _of(T.FAMILY_RENAMED, e.FamilyRenamed, table=NUMBER, family=_object(s.Family)),
    _of(T.MEMBERS_MOVED, e.MembersMoved, table=NUMBER, members=NUMBERS, group=NUMBER),
    _of(T.GROUP_ADDED, e.GroupAdded, table=NUMBER, group=GROUP),
    _of(T.GROUP_DROPPED, e.GroupDropped, table=NUMBER, group=NUMBER),
    _of(T.GROUP_OPTIONS_SET, e.GroupOptionsSet, table=NUMBER, group=NUMBER, options=_object(s.GroupOptions)),
    _of(T.INDEX_CREATED, i.IndexCreated, index=_object(o.Index)),
    _of(T.INDEX_STATUS_SET, i.IndexStatusSet, index=NUMBER, status=STATUS),
    _of(T.INDEX_REMOVED, i.IndexRemoved, index=NUMBER),
)


class SnapshotHead(msgspec.Struct, frozen=True):
    """What a snapshot holds besides its objects, which follow it."""

    version: int
    activation: int
    default_zone: int
    next_id: int


_WHOLE: Sequence[Serializer] = (
    _of(
        T.UPDATE,
        e.Update,
        version=NUMBER,
        activation=NUMBER,
        token=RAW,
        author=TEXT,
        entries=_many(_object(*get_args(e.Entry))),
    ),
    _of(T.SNAPSHOT_HEAD, SnapshotHead, version=NUMBER, activation=NUMBER, default_zone=NUMBER, next_id=NUMBER),
)

CATALOG_SERIALIZERS: SerializerRegistry = SerializerRegistry(
    [*_OBJECTS, *_ENTRIES, *_WHOLE, *SINCE_VERSION_1, *SINCE_VERSION_2]
)
