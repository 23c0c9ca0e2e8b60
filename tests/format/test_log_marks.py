"""Records of a log that hold no data: every kind comes back as it was, a payload takes its checksum along, and other
bytes are Corruption."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.format.log.marks import (
    KIND_OF,
    Dropped,
    EpochBegun,
    Hosted,
    JoinedOfTwo,
    SplitInTwo,
    StayMark,
    decode_mark,
    encode_mark,
)
from stelae.format.log.positions import SegmentId, position_at, segment_name
from stelae.format.log.reader import read_segment
from stelae.format.log.records import LogKind, LogRecord, SegmentContent
from stelae.format.log.writer import SegmentWriter
from stelae.model.errors import Corruption, InvalidArgument
from stelae.model.ids import Epoch, Index, Row, TabletId
from tests.format.logs import log_record

NUMBERS = st.integers(0, 2**64 - 1)
INDEXES, EPOCHS, TABLETS = NUMBERS.map(Index), NUMBERS.map(Epoch), NUMBERS.map(TabletId)
MARKS: st.SearchStrategy[StayMark] = st.one_of(
    st.builds(EpochBegun, st.lists(st.tuples(EPOCHS, INDEXES), max_size=5).map(tuple), INDEXES, st.booleans()),
    st.builds(Hosted, INDEXES, EPOCHS),
    st.just(Dropped()),
    st.builds(SplitInTwo, st.binary(max_size=40).map(Row), TABLETS, TABLETS),
    st.builds(JoinedOfTwo, TABLETS, TABLETS),
)


def segment_of_records(*records: LogRecord) -> SegmentContent:
    writer = SegmentWriter(SegmentId(9))
    return read_segment(segment_name(SegmentId(9)), writer.start() + writer.group(records))


@given(st.lists(MARKS, min_size=1, max_size=6))
def test_marks_come_back_as_they_were(marks: list[StayMark]) -> None:
    records = [log_record(0, encode_mark(mark), kind=KIND_OF[type(mark)]) for mark in marks]
    content = segment_of_records(*records)
    assert [decode_mark(record) for record in content.records] == marks
    assert not content.is_plain


def test_every_kind_but_data_is_a_mark() -> None:
    data = {LogKind.BLOCK, LogKind.CHANGE, LogKind.CONFIG, LogKind.REPLICA}
    assert data.isdisjoint(KIND_OF.values())
    assert {*KIND_OF.values(), *data} == set(LogKind)


@pytest.mark.parametrize("kind", KIND_OF.values())
@pytest.mark.parametrize("payload", [b"", b"\x00", b"\x93\x01", b"\xa3abc", b"junk"])
def test_other_bytes_are_named(kind: LogKind, payload: bytes) -> None:
    with pytest.raises(Corruption, match=f"{kind.name} of tablet 2 cannot be read"):
        decode_mark(log_record(0, payload, kind=kind))


def test_blocks_and_changes_of_tables_are_plain() -> None:
    block, of_table = log_record(1, index=1), log_record(2, kind=LogKind.CHANGE, tablet=0)
    assert segment_of_records(block, of_table).is_plain
    assert not segment_of_records(block, log_record(2, kind=LogKind.CHANGE, index=2)).is_plain


def test_a_payload_goes_from_log_to_log_without_being_summed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only headers are summed by whoever writes; what was flipped on the way is found by whoever reads."""
    (taken,) = segment_of_records(log_record(7, bytes(1_000), index=3)).records
    summed: list[int] = []
    real = SegmentWriter._record_header.__globals__["crc32c"]

    def counting(data: bytes, crc: int = 0) -> int:
        summed.append(len(data))
        return int(real(data, crc))

    monkeypatch.setattr("stelae.format.log.writer.crc32c", counting)
    other = SegmentWriter(SegmentId(10))
    data = other.start() + other.group([taken, taken._replace(payload=b"\x01" + taken.payload[1:])])
    assert summed
    assert max(summed) < 100
    content = read_segment(segment_name(SegmentId(10)), data)
    assert content.records == (taken,)
    assert content.torn


def test_txns_and_tablets_are_mixed_as_they_came() -> None:
    records = [
        log_record(txn, tablet=tablet, index=index)
        for txn, tablet, index in ((9, 1, 4), (3, 2, 1), (9, 1, 5), (1, 2, 2))
    ]
    content = segment_of_records(*records)
    assert list(content.records) == records
    assert content.last_txn == 9
    assert content.last_indexes == {1: 5, 2: 2}


def test_a_checksum_that_is_none_is_refused() -> None:
    writer = SegmentWriter(SegmentId(9))
    writer.start()
    with pytest.raises(InvalidArgument, match="its checksum of 32"):
        writer.group([log_record(1)._replace(checksum=2**32)])


def test_positions_sort_by_segment_and_then_by_offset() -> None:
    places = [(1, 0), (1, 2**32 - 1), (2, 0), (2, 44), (2**32 - 1, 2**32 - 1)]
    positions = [position_at(*place) for place in places]
    assert positions == sorted(set(positions))
    assert positions[-1] < 2**64
