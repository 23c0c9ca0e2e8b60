"""A damaged log is cut at its torn tail or named as corrupt; it never gives a wrong record."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.format.log.chain import read_log
from stelae.format.log.layout import GROUP_HEADER_BYTES, GROUP_MAGIC, LOG_VERSION, SEGMENT_HEADER_BYTES
from stelae.format.log.positions import SegmentId, segment_name, segment_of
from stelae.format.log.reader import read_segment
from stelae.format.log.records import NO_INDEX, LogRecord, SegmentContent, SegmentEnd
from stelae.format.log.writer import SegmentWriter
from stelae.model.errors import Corruption, InvalidArgument, UnsupportedFormat
from stelae.model.ids import Index, TabletId
from stelae.ports.logfiles import LogFileInfo
from tests.format.logs import WRITERS, log_record

FIRST = SegmentId(1_000)
NAME = segment_name(FIRST)
PAGE = 64
RANDOM_TRIES = 100_000


def record(n: int, payload: bytes) -> LogRecord:
    return log_record(1_000 + n, payload, client=2**63 + 5, sequence=n, index=n + 1)


class Log:
    """A segment of some groups, each synced before the next, and where each group begins."""

    def __init__(
        self,
        groups: list[list[LogRecord]],
        previous: SegmentEnd | None = None,
        first: int = FIRST,
        version: int = LOG_VERSION,
    ) -> None:
        writer = WRITERS[version](SegmentId(first), previous)
        self.data = writer.start()
        writer.mark_synced()
        self.starts: list[int] = []
        for group in groups:
            self.starts.append(len(self.data))
            self.data += writer.group(group)
            writer.mark_synced()
        self.records = [record for group in groups for record in group]
        if version == 1:
            self.records = [record._replace(index=NO_INDEX) for record in self.records]

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


GROUPS = [[record(10 * g + n, bytes([g, n]) * (3 + 11 * n)) for n in range(3)] for g in range(4)]
LOG = Log(GROUPS)
LOGS = pytest.mark.parametrize("log", [Log(GROUPS, version=1), LOG], ids=["version 1", "version 2"])


def test_reads_back_what_was_written() -> None:
    content = read_segment(NAME, LOG.data)
    last_indexes = {TabletId(2): Index(33)}
    records, last_txn = tuple(LOG.records), LOG.records[-1].txn
    assert content == SegmentContent(
        FIRST, 2, None, records, last_txn, last_indexes, is_plain=True, end=len(LOG.data), torn=False
    )
    assert segment_of(NAME) == FIRST


def test_version_1_is_read_for_ever() -> None:
    log = Log(GROUPS, version=1)
    content = read_segment(NAME, log.data)
    assert content == SegmentContent(
        FIRST, 1, None, tuple(log.records), log.records[-1].txn, {}, is_plain=True, end=len(log.data), torn=False
    )


@LOGS
def test_every_single_bit_flip(log: Log) -> None:
    for bit in range(8 * len(log.data)):
        data = bytearray(log.data)
        data[bit // 8] ^= 1 << (bit % 8)
        content = log.judge(bytes(data), range(bit // 8, bit // 8 + 1))
        assert content is None or bit // 8 >= log.starts[-1]


@LOGS
def test_every_truncation(log: Log) -> None:
    """Nothing in a truncated file says what was behind the cut: it is the true prefix, cut at a whole record."""
    for size in range(len(log.data)):
        content = read_segment(NAME, log.data[:size])
        assert list(content.records) == log.records[: len(content.records)]
        assert content.end <= size
        assert content.torn == (size not in (SEGMENT_HEADER_BYTES, *log.starts))


@LOGS
def test_every_truncation_below_what_the_next_segment_calls_synced_is_named(log: Log) -> None:
    for size in range(len(log.data)):
        with pytest.raises(Corruption) as caught:
            read_segment(NAME, log.data[:size], end=len(log.data))
        assert caught.value.offset is not None
        assert caught.value.offset <= size


@pytest.mark.parametrize("fill", [b"\x00", b"\xff", b"\xa5"])
@LOGS
def test_every_lost_page(log: Log, fill: bytes) -> None:
    for start in range(0, len(log.data), PAGE):
        lost = log.data[:start] + fill * len(log.data[start : start + PAGE]) + log.data[start + PAGE :]
        log.judge(lost, range(start, start + PAGE))


@LOGS
def test_every_lost_page_is_named_if_the_next_segment_says_where_this_one_ends(log: Log) -> None:
    for start in range(0, len(log.data), PAGE):
        lost = log.data[:start] + b"\x00" * len(log.data[start : start + PAGE]) + log.data[start + PAGE :]
        with pytest.raises(Corruption):
            read_segment(NAME, lost, end=len(log.data))


@LOGS
def test_every_pair_of_pages_swapped(log: Log) -> None:
    pages = [log.data[at : at + PAGE] for at in range(0, len(log.data) - PAGE, PAGE)]
    for i in range(len(pages)):
        for j in range(i + 1, len(pages)):
            swapped = [*pages]
            swapped[i], swapped[j] = swapped[j], swapped[i]
            lost = (range(at * PAGE, (at + 1) * PAGE) for at in (i, j))
            log.judge(b"".join(swapped) + log.data[len(pages) * PAGE :], *lost)


def test_random_bytes_are_no_log() -> None:
    chance = random.Random(20_240_506)
    for _ in range(RANDOM_TRIES):
        data = chance.randbytes(chance.randrange(200))
        content = read_segment(NAME, data)
        assert content.records == ()
        assert content.end == 0
        assert content.torn


def test_random_bytes_behind_a_whole_header_are_no_records() -> None:
    chance = random.Random(20_240_507)
    header = LOG.data[:SEGMENT_HEADER_BYTES]
    for _ in range(RANDOM_TRIES):
        content = read_segment(NAME, header + GROUP_MAGIC + chance.randbytes(chance.randrange(200)))
        assert content.records == ()
        assert content.end == SEGMENT_HEADER_BYTES
        assert content.torn


@LOGS
def test_random_bytes_after_a_true_prefix_change_nothing_in_it(log: Log) -> None:
    chance = random.Random(7)
    for _ in range(5_000):
        cut = chance.choice([SEGMENT_HEADER_BYTES, *log.starts, len(log.data)])
        content = read_segment(NAME, log.data[:cut] + chance.randbytes(chance.randrange(1, 150)))
        assert content.end == cut
        assert content.torn
        assert list(content.records) == log.records[: len(content.records)]


@LOGS
def test_many_random_damages_at_once(log: Log) -> None:
    chance = random.Random(11)
    for _ in range(5_000):
        data = bytearray(log.data)
        places = sorted(chance.randrange(len(data)) for _ in range(chance.randrange(1, 6)))
        for place in places:
            data[place] ^= chance.randrange(1, 256)
        try:
            content = read_segment(NAME, bytes(data))
        except Corruption:
            continue
        assert list(content.records) == log.records[: len(content.records)]
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


class Files:
    """Log files as the port has them, in memory and only for reading."""

    def __init__(self, **segments: bytes) -> None:
        self.segments = {segment_name(SegmentId(int(txn[1:]))): data for txn, data in segments.items()}

    def list(self) -> list[LogFileInfo]:
        return [LogFileInfo(name, len(data)) for name, data in sorted(self.segments.items())]

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        data = self.segments[name][offset:]
        return data if length is None else data[:length]


def payloads(**segments: bytes) -> list[list[bytes]]:
    contents = read_log(Files(**segments))  # type: ignore[arg-type]
    return [[bytes(record.payload) for record in content.records] for content in contents]


GOOD_THEN_FAILED = Log([[record(1, b"good")], [record(2, b"failed")]])
"""The second group's sync failed, though all of its bytes reached the disk."""
END = SegmentEnd(FIRST, GOOD_THEN_FAILED.starts[1])
NEXT = Log([[record(3, b"next")]], END, 3_000).data


def test_what_a_failed_sync_left_behind_never_replays() -> None:
    assert payloads(t1000=GOOD_THEN_FAILED.data, t3000=NEXT) == [[b"good"], [b"next"]]


@pytest.mark.parametrize(
    "between",
    [
        None,
        b"",
        bytes(500),
        Log([], END, 2_000).data,
        Log([], END, 2_000).data[:20],
        Log([[record(2, b"failed too")]], END, 2_000).data,
    ],
    ids=["gone", "empty", "zeros", "header", "half a header", "whole"],
)
def test_a_segment_that_never_became_durable_is_passed_over_whatever_is_left_of_it(between: bytes | None) -> None:
    middle = {} if between is None else {"t2000": between}
    assert payloads(t1000=GOOD_THEN_FAILED.data, **middle, t3000=NEXT) == [[b"good"], [b"next"]]


def test_the_writer_names_the_last_durable_place() -> None:
    assert SegmentWriter(SegmentId(10)).durable_end is None
    first = SegmentWriter(SegmentId(10))
    first.start()
    first.mark_synced()
    end = first.durable_end
    assert end == SegmentEnd(SegmentId(10), SEGMENT_HEADER_BYTES)
    second = SegmentWriter(SegmentId(20), end)
    second.start()
    assert second.durable_end == end
    second.mark_synced()
    assert second.durable_end == SegmentEnd(SegmentId(20), SEGMENT_HEADER_BYTES)


def test_a_log_may_begin_at_0() -> None:
    first = Log([[record(1, b"a")]], first=0).data
    second = Log([[record(2, b"b")]], SegmentEnd(SegmentId(0), len(first)), 5).data
    assert payloads(t0=first, t5=second) == [[b"a"], [b"b"]]


def chained(*firsts: int) -> dict[str, bytes]:
    segments: dict[str, bytes] = {}
    previous = None
    for first in firsts:
        segments[f"t{first}"] = Log([[record(first, b"%d" % first)]], previous, first).data
        previous = SegmentEnd(SegmentId(first), len(segments[f"t{first}"]))
    return segments


def test_a_missing_segment_is_named() -> None:
    segments = chained(1_000, 2_000, 3_000)
    assert payloads(**segments) == [[b"1000"], [b"2000"], [b"3000"]]
    assert payloads(t2000=segments["t2000"], t3000=segments["t3000"]) == [[b"2000"], [b"3000"]]
    with pytest.raises(
        Corruption, match=f"{segment_name(SegmentId(3_000))}: follows segment {segment_name(SegmentId(2_000))}"
    ):
        payloads(t1000=segments["t1000"], t3000=segments["t3000"])
    foreign = Log([[record(5, b"x")]], first=5_000).data
    with pytest.raises(Corruption, match="says that it is the first of the log"):
        payloads(**segments, t5000=foreign)


def test_a_damaged_header_in_the_middle_is_named_before_anything_is_given_out() -> None:
    segments = chained(1_000, 2_000, 3_000)
    for victim, found in (("t1000", 1_000), ("t2000", 2_000)):
        damaged = dict(segments)
        damaged[victim] = b"\x00" + segments[victim][1:]
        with pytest.raises(Corruption, match=f"{segment_name(SegmentId(found))}"):
            next(read_log(Files(**damaged)))  # type: ignore[arg-type]


def test_a_newest_segment_with_a_torn_header_holds_nothing() -> None:
    torn = Log([], SegmentEnd(FIRST, len(LOG.data)), 2_000).data[:20]
    assert len(payloads(t1000=LOG.data, t2000=torn)) == 1
    assert payloads(t2000=torn) == []
    assert payloads() == []


def test_a_segment_under_another_name_is_not_read() -> None:
    with pytest.raises(Corruption, match="not the header of this segment"):
        read_segment(segment_name(SegmentId(1_001)), LOG.data, end=len(LOG.data))


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
        segment_of(name)


@pytest.mark.parametrize("bad", [-1, 2**64])
def test_ids_that_do_not_fit_are_refused(bad: int) -> None:
    writer = SegmentWriter(FIRST)
    writer.start()
    with pytest.raises(InvalidArgument, match="64 bits"):
        writer.group([record(1, b"")._replace(tablet=TabletId(bad))])


def test_a_group_before_the_header_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="begins with its header"):
        SegmentWriter(FIRST).group([])
