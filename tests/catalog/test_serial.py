"""Catalog objects as bytes: every type has a serializer and a golden file, and bad bytes say what is wrong."""

from __future__ import annotations

import random
import typing

import msgspec
import pytest
from msgspec.structs import replace

from stelae.catalog import entries
from stelae.catalog.serial.registry import (
    PROTOCOL_VERSION,
    BadBytes,
    ObjectType,
    Serializer,
    SerializerRegistry,
)
from stelae.catalog.serial.snapshot import decode_snapshot, encode_snapshot
from stelae.catalog.serial.version1 import CATALOG_SERIALIZERS
from stelae.catalog.value import BrokenCatalog
from stelae.model.errors import InvalidArgument, UnsupportedFormat
from tests.catalog.samples import with_users
from tests.catalog.serial_samples import DIRECTORY, LATER_SAMPLES, SAMPLES, file_of, sample_of

STORED = CATALOG_SERIALIZERS.serializers


@pytest.mark.parametrize("serializer", STORED, ids=lambda s: f"{s.object_type.name}-{s.version}")
def test_golden_bytes_are_read_for_ever(serializer: Serializer) -> None:
    data = file_of(serializer.object_type, serializer.version).read_bytes()
    assert repr(CATALOG_SERIALIZERS.decode(data)) == repr(sample_of(serializer.object_type, serializer.version))


@pytest.mark.parametrize("serializer", STORED, ids=lambda s: f"{s.object_type.name}-{s.version}")
def test_what_is_written_today_is_the_golden_file_of_the_version_it_needs(serializer: Serializer) -> None:
    sample = sample_of(serializer.object_type, serializer.version)
    assert CATALOG_SERIALIZERS.encode(sample) == file_of(serializer.object_type, serializer.version).read_bytes()


def test_every_type_has_a_serializer_a_sample_and_golden_files() -> None:
    """A new type of entry or object fails here until it has all three."""
    assert {serializer.object_type for serializer in STORED} == set(ObjectType)
    assert set(SAMPLES) == set(ObjectType)
    assert {path.name for path in DIRECTORY.iterdir()} == {
        file_of(serializer.object_type, serializer.version).name for serializer in STORED
    }


def test_every_entry_can_be_written() -> None:
    kinds = typing.get_args(entries.Entry)
    assert len(kinds) > 20
    declared = [kind for kind in vars(entries).values() if isinstance(kind, type) and hasattr(kind, "apply")]
    assert set(declared) == set(kinds), "an entry is not in the union, or the other way round"
    assert set(kinds) <= {serializer.kind for serializer in STORED}


def serializer(version: int, type_: ObjectType = ObjectType.FAMILY) -> Serializer:
    return Serializer(type_, version, "0.1.0", str, lambda value: [value], lambda fields: fields[0])


@pytest.mark.parametrize(
    ("versions", "message"),
    [([1, 3], "there is a gap"), ([2], "there is a gap"), ([0, 1], "there is a gap"), ([1, 1], "version 1 twice")],
)
def test_the_registry_refuses_gaps(versions: list[int], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        SerializerRegistry([serializer(version) for version in versions])


def test_the_newest_serializer_that_is_needed_writes_and_all_read() -> None:
    old, new = serializer(1), serializer(2)
    both = SerializerRegistry([old, new])
    assert both.decode(SerializerRegistry([old]).encode("x")) == "x"
    assert both.encode("x")[4] == 2
    rarely = SerializerRegistry([old, replace(new, is_needed=lambda value: value == "new")])
    assert [rarely.encode(value)[4] for value in ("x", "new")] == [1, 2]
    many = SerializerRegistry([serializer(version) for version in range(1, 301)])
    assert many.decode(many.encode("y")) == "y"


UPDATE = CATALOG_SERIALIZERS.encode(SAMPLES[ObjectType.UPDATE])


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (b"", BadBytes, "end before the protocol version"),
        (b"\x00", BadBytes, "end before the protocol version"),
        (
            b"\x00\x09" + UPDATE[2:],
            UnsupportedFormat,
            f"protocol version 9; this release reads version {PROTOCOL_VERSION}",
        ),
        (UPDATE[:3], BadBytes, "end inside an object's header"),
        (UPDATE[:2] + b"\x7f\xff" + UPDATE[4:], UnsupportedFormat, "object type 32767 is not one this release knows"),
        (
            UPDATE[:4] + b"\x05" + UPDATE[5:],
            UnsupportedFormat,
            "UPDATE in serializer version 5; this release reads versions up to 1",
        ),
        (UPDATE[:4] + b"\xff\xff\xff\xff\xff", BadBytes, "end inside a serializer version"),
        (UPDATE[:-1], BadBytes, "UPDATE .serializer version 1. cannot be read"),
        (UPDATE[:5] + b"\x91\x01", BadBytes, "1 fields instead of 5"),
        (UPDATE[:5] + b"\x95\xa1x\x01\xc4\x00\xa0\x90", BadBytes, "expected int, found str"),
    ],
)
def test_bad_bytes_say_what_is_wrong(data: bytes, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        CATALOG_SERIALIZERS.decode(data)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (["zstd", 4096, False, True, None, [[None, -1]]], "-1 is not a txn"),
        (["zstd", 4096, False, True, None, [["max-history=1", "soon"]]], "'soon' is not a txn"),
        (["zstd", 4096, False, True, None, [[5, 1]]], "a purge policy is text"),
        (["zstd", 4096, False, True, None, [[None]]], "not enough values to unpack"),
        (["zstd", 4096, False, True, None, {}], "the fields are"),
        (["zstd", 4096, False, 1, None, []], "the fields are"),
        (["zstd", 4096, False, True, None], "not enough values to unpack"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_bad_past_policies_say_what_is_wrong(fields: list[object], message: str) -> None:
    options = LATER_SAMPLES[ObjectType.GROUP_OPTIONS, 2]
    header = CATALOG_SERIALIZERS.encode(options)[:5]
    with pytest.raises(BadBytes, match=message):
        CATALOG_SERIALIZERS.decode(header + msgspec.msgpack.encode(fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([18, "fast", 3, 2, 2, 5_000_000, [1]], "the fields are"),
        ([18, "fast", 3, 2, 2, 5_000_000, "a"], "the fields are"),
        ([18, "fast", 3, 2, True, 5_000_000, ["a"]], "the fields are"),
        ([18, "fast", 3, 2, 9, 5_000_000, ["a"]], "9 is not a valid Placement"),
        ([18, "fast", 3, 2, 2, 5_000_000], "not enough values to unpack"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_bad_zones_say_what_is_wrong(fields: list[object], message: str) -> None:
    header = CATALOG_SERIALIZERS.encode(LATER_SAMPLES[ObjectType.ZONE, 2])[:5]
    with pytest.raises(BadBytes, match=message):
        CATALOG_SERIALIZERS.decode(header + msgspec.msgpack.encode(fields))


def test_mutated_bytes_are_an_object_or_a_clear_error() -> None:
    chance = random.Random(4)
    samples = [CATALOG_SERIALIZERS.encode(each) for each in (*SAMPLES.values(), *LATER_SAMPLES.values())]
    refused = 0
    for _ in range(20_000):
        data = bytearray(chance.choice(samples))
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            CATALOG_SERIALIZERS.decode(bytes(data[: chance.randrange(len(data)) + 1]))
        except (BadBytes, UnsupportedFormat):
            refused += 1
    assert refused > 10_000


def test_snapshots() -> None:
    catalog = with_users()
    parts = list(encode_snapshot(catalog))
    assert decode_snapshot(parts) == catalog
    with pytest.raises(BadBytes):
        decode_snapshot([])
    with pytest.raises(BadBytes, match="begins with its head"):
        decode_snapshot(parts[1:])
    with pytest.raises(BadBytes, match="does not hold a Update"):
        decode_snapshot([*parts, UPDATE])
    without_zones = [part for part in parts if part[2:4] != b"\x00\x02"]
    assert decode_snapshot(without_zones) == catalog  # the default zone is in every catalog
    with pytest.raises(BrokenCatalog):
        decode_snapshot([*parts, CATALOG_SERIALIZERS.encode(SAMPLES[ObjectType.TABLE])])
