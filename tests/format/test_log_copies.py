"""Records that travel, and replicas that are kept whole: they come back as they were, or as Corruption."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.format.log.copies import (
    RecordCopy,
    ReplicaKept,
    copy_record,
    decode_copies,
    decode_kept,
    encode_copies,
    encode_kept,
    record_of,
)
from stelae.format.log.records import LogKind, LogRecord
from stelae.model.errors import Corruption
from stelae.model.ids import Epoch, Index, TableId, TabletId
from tests.effort import examples
from tests.format.logs import log_record

TABLE, TABLET = TableId(1), TabletId(2)
TRAVELLING = (LogKind.BLOCK, LogKind.CHANGE, LogKind.CONFIG)
NUMBERS = st.integers(0, 2**64 - 1)
RECORDS: st.SearchStrategy[LogRecord] = st.builds(
    log_record,
    NUMBERS,
    st.binary(max_size=40),
    kind=st.sampled_from(TRAVELLING),
    epoch=NUMBERS,
    index=NUMBERS,
    client=NUMBERS,
    sequence=NUMBERS,
)
KEPT: st.SearchStrategy[ReplicaKept] = st.builds(
    ReplicaKept,
    NUMBERS.map(Epoch),
    st.tuples(NUMBERS.map(Epoch), NUMBERS.map(Index)),
    NUMBERS.map(Index),
    st.binary(max_size=40),
    st.lists(RECORDS.map(copy_record), max_size=3).map(tuple),
    st.booleans(),
)


@given(RECORDS)
def test_a_record_travels_as_it_is(record: LogRecord) -> None:
    assert record_of(copy_record(record), TABLE, TABLET) == record
    seen = record._replace(payload=memoryview(bytes(record.payload)))
    assert copy_record(seen) == copy_record(record)


@given(st.lists(st.lists(RECORDS.map(copy_record), max_size=3), max_size=4))
def test_copies_of_several_tablets_come_back(parts: list[list[RecordCopy]]) -> None:
    data = encode_copies(parts)
    assert decode_copies(data) == parts
    assert decode_copies(memoryview(data)) == parts


@given(KEPT)
def test_a_whole_replica_comes_back(kept: ReplicaKept) -> None:
    data = encode_kept(kept)
    assert decode_kept(data, "here") == kept
    assert decode_kept(memoryview(data), "here") == kept


@given(RECORDS.filter(lambda record: bool(record.payload)), st.data())
def test_a_flipped_bit_of_a_payload_is_corruption(record: LogRecord, data: st.DataObject) -> None:
    payload = bytearray(record.payload)
    payload[data.draw(st.integers(0, len(payload) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    copy = msgspec.structs.replace(copy_record(record), payload=bytes(payload))
    with pytest.raises(Corruption, match=f"record {record.index} of tablet 2 is not what was written"):
        record_of(copy, TABLE, TABLET)


@pytest.mark.parametrize("kind", [0, *(int(kind) for kind in LogKind if kind not in TRAVELLING), 10, 255, -1])
def test_marks_do_not_travel(kind: int) -> None:
    copy = msgspec.structs.replace(copy_record(log_record(1)), kind=kind)
    with pytest.raises(Corruption, match="not what was written"):
        record_of(copy, TABLE, TABLET)


@pytest.mark.parametrize(
    "data", [b"", b"\x00", b"\xc1", b"\x91\x91\x91", b"junk", b"\x91\x91\x92\x01\x02", b"\xdd\xff\xff\xff\xff"]
)
def test_other_bytes_are_named(data: bytes) -> None:
    with pytest.raises(Corruption, match="copies of records cannot be read"):
        decode_copies(data)
    with pytest.raises(Corruption, match="of a replica cannot be read") as told:
        decode_kept(data, "over there")
    assert told.value.file == "over there"


def read_everything(data: bytes) -> None:
    """As whoever gets the bytes does. What can be read is written again as something that is read as the same."""
    try:
        parts = decode_copies(data)
        assert decode_copies(encode_copies(parts)) == parts
        for copy in (each for part in parts for each in part):
            record_of(copy, TABLE, TABLET)
    except Corruption:
        pass
    try:
        kept = decode_kept(data, "here")
        assert decode_kept(encode_kept(kept), "here") == kept
        for copy in kept.records:
            record_of(copy, TABLE, TABLET)
    except Corruption:
        pass


@settings(max_examples=examples(800))
@given(st.binary(max_size=60) | st.integers(0, 5_000).map(lambda depth: b"\x91" * depth))
def test_hostile_bytes_are_corruption_and_nothing_else(data: bytes) -> None:
    read_everything(data)


@settings(max_examples=examples(800))
@given(KEPT, st.lists(RECORDS.map(copy_record), max_size=3), st.data())
def test_bytes_that_were_damaged_are_corruption_or_something_else_that_is_whole(
    kept: ReplicaKept, copies: list[RecordCopy], data: st.DataObject
) -> None:
    encoded = bytearray(data.draw(st.sampled_from([encode_kept(kept), encode_copies([copies])])))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    read_everything(bytes(encoded))
    read_everything(bytes(encoded[: data.draw(st.integers(0, len(encoded)))]))
