"""Bytes of every released format version are read for ever, and today's writers still write them."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest

from stelae.format.block import decode_block, encode_block
from stelae.format.columnar import ColumnarBlock
from stelae.format.fragment.footer import FragmentSeal, FragmentSpec
from stelae.format.fragment.reader import FragmentReader
from stelae.format.log.copies import decode_kept
from stelae.format.log.marks import Dropped, EpochBegun, JoinedOfTwo, decode_mark
from stelae.format.log.positions import segment_name
from stelae.format.log.reader import read_segment
from tests.format.fragments import Memory, batch_of
from tests.golden import samples

V1, V2 = samples.HERE / "v1", samples.HERE / "v2"


def test_small_block() -> None:
    data = (V1 / "small.block").read_bytes()
    assert repr(decode_block(data)) == repr(samples.SMALL)
    assert encode_block(samples.SMALL) == data


def test_columnar_block() -> None:
    block = decode_block((V1 / "columnar.block").read_bytes())
    assert isinstance(block, ColumnarBlock)
    assert block.batch.equals(samples.COLUMNAR.batch, check_metadata=True)
    assert (block.schema_version, block.op, block.nulls_written) == (3, samples.COLUMNAR.op, True)


def test_segment_of_version_1() -> None:
    data = (V1 / "segment.log").read_bytes()
    content = read_segment(segment_name(samples.SEGMENT), data)
    assert content.records == samples.RECORDS_1
    assert (content.version, content.previous, content.torn) == (1, samples.PREVIOUS, False)
    assert samples.segment_1() == data


def test_segment() -> None:
    data = (V2 / "segment.log").read_bytes()
    content = read_segment(segment_name(samples.SEGMENT), data)
    assert content.records == samples.RECORDS
    assert (content.version, content.previous, content.torn) == (2, samples.PREVIOUS, False)
    assert samples.segment() == data
    marks = [decode_mark(content.records[at]) for at in (2, 5, 6, 7, 8)]
    assert marks == [samples.EPOCH, samples.HOSTED, Dropped(), samples.SPLIT, JoinedOfTwo(3, 4)]  # type: ignore[arg-type]


def test_marks_of_replicas() -> None:
    """Of before there was a field for doubts, and with it."""
    data = (V2 / "replicas.log").read_bytes()
    kept, old, doubtful, marked = read_segment(segment_name(samples.SEGMENT), data).records
    assert samples.replicas() == data
    assert decode_kept(kept.payload, "here") == samples.KEPT
    assert decode_kept(doubtful.payload, "here") == msgspec.structs.replace(samples.KEPT, may_lack=True)
    assert msgspec.msgpack.decode(kept.payload) == msgspec.msgpack.decode(doubtful.payload)[:-1]
    of_old, of_new = decode_mark(old), decode_mark(marked)
    assert isinstance(of_old, EpochBegun)
    assert isinstance(of_new, EpochBegun)
    assert (of_old.is_in_doubt, of_new.is_in_doubt, samples.EPOCH.is_in_doubt) == (True, True, False)
    assert (of_new.epochs, of_new.kept) == (samples.EPOCH.epochs, samples.EPOCH.kept)


@pytest.mark.parametrize(
    ("name", "spec", "rows"),
    [("profile", samples.PROFILE, samples.PROFILE_ROWS), ("events", samples.EVENTS, samples.EVENTS_ROWS)],
)
def test_fragment(name: str, spec: FragmentSpec, rows: dict[str, list[object]]) -> None:
    seal = msgspec.json.decode((V1 / f"{name}.seal.json").read_bytes(), type=FragmentSeal)
    reader = FragmentReader(Memory((V1 / f"{name}.parquet").read_bytes()), seal)
    reader.verify()
    assert reader.footer.spec == spec
    assert pa.concat_tables(reader.scan()).equals(pa.Table.from_batches([batch_of(spec, rows)]))


def test_every_sample_has_its_files() -> None:
    """And the metastore of layout 1, which `tests/adapters` reads."""
    others = {"profile.seal.json", "events.seal.json", "metastore.db"}
    assert {path.name for path in V1.iterdir()} == {*samples.FILES["v1"], *others}
    assert {path.name for path in V2.iterdir()} == set(samples.FILES["v2"])
