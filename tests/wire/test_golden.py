"""What a release has sent is read for ever, and today's frames are the same bytes: the other end may be older."""

from __future__ import annotations

import pytest

from stelae.model.errors import Corruption
from stelae.ports.transport import FrameKind
from stelae.wire.frames import FrameDecoder
from stelae.wire.hello import read_hello
from stelae.wire.messages import read_error
from tests.wire.samples import FAULTS, FRAMES, GOLDEN, HELLO, frame_bytes


@pytest.mark.parametrize("name", FRAMES)
def test_bytes_are_the_same(name: str) -> None:
    data = (GOLDEN / f"{name}.frame").read_bytes()
    assert FrameDecoder().feed(data) == [FRAMES[name]]
    assert frame_bytes(FRAMES[name]) == data


def test_every_kind_is_there() -> None:
    assert {frame.kind for frame in FRAMES.values()} == set(FrameKind)
    assert {file.name for file in GOLDEN.iterdir()} == {f"{name}.frame" for name in FRAMES}


def test_the_hello_and_the_error_say_the_same() -> None:
    (hello,) = FrameDecoder().feed((GOLDEN / "hello_answer.frame").read_bytes())
    assert read_hello(hello, FrameKind.ANSWER, FAULTS) == HELLO
    (error,) = FrameDecoder().feed((GOLDEN / "error.frame").read_bytes())
    said = read_error(error, FAULTS)
    assert isinstance(said, Corruption)
    assert (str(said), said.file, said.offset) == ("x.parquet at byte 4096: bad page", "x.parquet", 4096)
