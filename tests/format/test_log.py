"""A damaged log is cut at its torn tail or named as corrupt; it never gives a wrong record."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.format.log import (
    GROUP_HEADER_BYTES,
    LOG_VERSION,
    SEGMENT_HEADER_BYTES,
    LogKind,
    LogRecord,
    SegmentContent,
    SegmentEnd,
    SegmentWriter,
    first_txn_of,
    read_segment,
    read_segments,
    segment_name,
)
from stelae.model.errors import Corruption, InvalidArgument, UnsupportedFormat
from stelae.model.ids import ClientId, Epoch, Sequence, TableId, TabletId, Txn

FIRST = Txn(1_000)
NAME = segment_name(FIRST)
PAGE = 64
RANDOM_TRIES = 100_000


def record(n: int, payload: bytes) -> LogRecord:
    return LogRecord(
        LogKind.BLOCK, TableId(1), TabletId(2), Epoch(3), Txn(1_000 + n), ClientId(2**63 + 5), Sequence(n), payload
    )


class Log:
    """A segment of some groups, each synced before the next, and where each group begins."""

    def __init__(self, groups: list[list[LogRecord]], previous: SegmentEnd | None = None, first: Txn = FIRST) -> None:
        writer = SegmentWriter(first, previous)
        self.data = writer.start()
        writer.mark_synced()
        self.starts: list[int] = []
        for group in groups:
            self.starts.append(len(self.data))
            self.data += writer.group(group)
            writer.mark_synced()
        self.records = [record for group in groups for record in group]

    def judge(self, data: bytes, *lost: range) -> SegmentContent | None:
        """Bytes were lost in some places. Below an offset that a surviving group header calls synced, reading names a
        corruption in that group; above, it gives the true prefix."""
        damage = min(place.start for place in lost)
        whole = [
            start
            for start in self.starts
            if not any(place.start < start + GROUP_HEADER_BYTES and start < place.stop for place in lost)
        ]
        synced = max([0, *whole])
        try:
            content = read_segment(NAME, data)
        except Corruption as error:
            assert damage < synced, f"damage at {damage} is above {synced}, yet {error}"
            assert error.file == NAME
            assert error.offset is not None
            assert max([0, *(start for start in self.starts if start <= damage)]) <= error.offset <= damage
            assert f"at byte {error.offset}" in str(error)
            return None
        assert damage >= synced, f"damage at {damage} below {synced} went unnoticed"
        assert list(content.records) == self.records[: len(content.records)]
        assert data[: content.end] == self.data[: content.end]
        return content


LOG = Log([[record(10 * g + n, bytes([g, n]) * (3 + 11 * n)) for n in range(3)] for g in range(4)])


def test_reads_back_what_was_written() -> None:
    content = read_segment(NAME, LOG.data)
    assert content == SegmentContent(FIRST, None, tuple(LOG.records), len(LOG.data), torn=False)
    assert first_txn_of(NAME) == FIRST


def test_every_single_bit_flip() -> None:
    for bit in range(8 * len(LOG.data)):
        data = bytearray(LOG.data)
        data[bit // 8] ^= 1 << (bit % 8)
        content = LOG.judge(bytes(data), range(bit // 8, bit // 8 + 1))
        assert content is None or bit // 8 >= LOG.starts[-1]


def test_every_truncation() -> None:
    """Nothing in a truncated file says what was behind the cut: it is the true prefix, cut at a whole record."""
    for size in range(len(LOG.data)):
        content = read_segment(NAME, LOG.data[:size])
        assert list(content.records) == LOG.records[: len(content.records)]
        assert content.end <= size
        assert content.torn == (size not in (SEGMENT_HEADER_BYTES, *LOG.starts))


def test_every_truncation_below_what_the_next_segment_calls_synced_is_named() -> None:
    for size in range(len(LOG.data)):
        with pytest.raises(Corruption) as caught:
            read_segment(NAME, LOG.data[:size], end=len(LOG.data))
        assert caught.value.offset is not None
        assert caught.value.offset <= size


@pytest.mark.parametrize("fill", [b"\x00", b"\xff", b"\xa5"])
def test_every_lost_page(fill: bytes) -> None:
    for start in range(0, len(LOG.data), PAGE):
        lost = LOG.data[:start] + fill * len(LOG.data[start : start + PAGE]) + LOG.data[start + PAGE :]
        LOG.judge(lost, range(start, start + PAGE))


def test_every_lost_page_is_named_if_the_next_segment_says_where_this_one_ends() -> None:
    for start in range(0, len(LOG.data), PAGE):
        lost = LOG.data[:start] + b"\x00" * len(LOG.data[start : start + PAGE]) + LOG.data[start + PAGE :]
        with pytest.raises(Corruption):
            read_segment(NAME, lost, end=len(LOG.data))


def test_every_pair_of_pages_swapped() -> None:
    pages = [LOG.data[at : at + PAGE] for at in range(0, len(LOG.data) - PAGE, PAGE)]
    for i in range(len(pages)):
        for j in range(i + 1, len(pages)):
            swapped = [*pages]
            swapped[i], swapped[j] = swapped[j], swapped[i]
            lost = (range(at * PAGE, (at + 1) * PAGE) for at in (i, j))
            LOG.judge(b"".join(swapped) + LOG.data[len(pages) * PAGE :], *lost)


def test_random_bytes_are_no_log() -> None:
    chance = random.Random(20_240_506)
    for _ in range(RANDOM_TRIES):
        data = chance.randbytes(chance.randrange(200))
        content = read_segment(NAME, data)
        assert content.records == ()
        assert content.end == 0
        assert content.torn


def test_random_bytes_after_a_true_prefix_change_nothing_in_it() -> None:
    chance = random.Random(7)
    for _ in range(5_000):
        cut = chance.choice([SEGMENT_HEADER_BYTES, *LOG.starts, len(LOG.data)])
        content = read_segment(NAME, LOG.data[:cut] + chance.randbytes(chance.randrange(1, 150)))
        assert content.end == cut
        assert content.torn
        assert list(content.records) == LOG.records[: len(content.records)]


def test_many_random_damages_at_once() -> None:
    chance = random.Random(11)
    for _ in range(5_000):
        data = bytearray(LOG.data)
        places = sorted(chance.randrange(len(data)) for _ in range(chance.randrange(1, 6)))
        for place in places:
            data[place] ^= chance.randrange(1, 256)
        try:
            content = read_segment(NAME, bytes(data))
        except Corruption:
            continue
        assert list(content.records) == LOG.records[: len(content.records)]
        assert content.end <= places[0]


@given(st.lists(st.lists(st.binary(max_size=300), max_size=4), max_size=5))
def test_any_groups_come_back(payloads: list[list[bytes]]) -> None:
    log = Log([[record(n, payload) for n, payload in enumerate(group)] for group in payloads])
    assert list(read_segment(NAME, log.data).records) == log.records


def test_a_record_that_holds_a_log_does_not_confuse_the_reader() -> None:
    outer = Log([[record(1, LOG.data)], [record(2, b"x")]])
    data = bytearray(outer.data)
    data[outer.starts[1] + GROUP_HEADER_BYTES + 3] ^= 1
    content = read_segment(NAME, bytes(data))
    assert content.records == (record(1, LOG.data),)
    data[outer.starts[0] + GROUP_HEADER_BYTES + 200] ^= 1
    with pytest.raises(Corruption):
        read_segment(NAME, bytes(data))


def test_what_a_failed_sync_left_behind_never_replays() -> None:
    """The first segment's second group failed to sync, though all of its bytes reached the disk."""
    first = Log([[record(1, b"good")], [record(2, b"failed")]])
    end = SegmentEnd(FIRST, first.starts[1])
    second = Log([[record(3, b"next")]], previous=end, first=Txn(2_000))
    segments = [(NAME, first.data), (segment_name(Txn(2_000)), second.data)]
    contents = list(read_segments(segments))
    assert [content.records for content in contents] == [(record(1, b"good"),), (record(3, b"next"),)]
    assert contents[1].previous == end


def test_a_missing_segment_is_named() -> None:
    logs = [Log([[record(1, b"a")]])]
    names = [NAME]
    for first in (Txn(2_000), Txn(3_000)):
        previous = SegmentEnd(first_txn_of(names[-1]), len(logs[-1].data))
        logs.append(Log([[record(2, b"b")]], previous, first))
        names.append(segment_name(first))
    segments = [(name, log.data) for name, log in zip(names, logs, strict=True)]
    assert len(list(read_segments(segments))) == 3
    assert len(list(read_segments(segments[1:]))) == 2
    with pytest.raises(Corruption, match=f"{names[2]}: follows segment {names[1]}"):
        list(read_segments([segments[0], segments[2]]))


def test_a_successor_with_a_torn_header_says_nothing() -> None:
    torn = Log([], SegmentEnd(FIRST, 10), Txn(2_000)).data[:20]
    contents = list(read_segments([(NAME, LOG.data), (segment_name(Txn(2_000)), torn)]))
    assert list(contents[0].records) == LOG.records
    assert contents[1].torn
    assert contents[1].records == ()


def test_a_segment_under_another_name_is_not_read() -> None:
    with pytest.raises(Corruption, match="not the header of this segment"):
        read_segment(segment_name(Txn(1_001)), LOG.data, end=len(LOG.data))


def test_a_newer_version_is_told_apart_from_damage() -> None:
    from crc32c import crc32c

    header = bytearray(LOG.data[:SEGMENT_HEADER_BYTES])
    header[8] = LOG_VERSION + 1
    header[-4:] = crc32c(bytes(header[:-4])).to_bytes(4, "little")
    with pytest.raises(UnsupportedFormat, match=f"version {LOG_VERSION + 1}"):
        read_segment(NAME, bytes(header) + LOG.data[SEGMENT_HEADER_BYTES:])


@pytest.mark.parametrize("name", ["", "x.log", "00000000000003e8", "00000000000003E8.log", "ffffffffffffffff.log"])
def test_other_names_are_no_segments(name: str) -> None:
    with pytest.raises(InvalidArgument):
        first_txn_of(name)


def test_a_group_before_the_header_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="begins with its header"):
        SegmentWriter(FIRST).group([])
