"""The first frames: both sides find the same version, or both say why there is none."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.model.errors import InvalidArgument, Overloaded, ProtocolError
from stelae.ports.transport import Frame, FrameKind, RequestId
from stelae.wire.faults import MessageRefused
from stelae.wire.hello import HELLO_ID, PROTOCOL_MAX, PROTOCOL_MIN, Hello, agree, hello_frame, read_hello
from stelae.wire.messages import HELLO_METHOD, error_frame
from tests.effort import tries
from tests.wire.samples import FAULTS, FRAMES, HELLO, mutated

FIELDS = {"version_min": 1, "version_max": 3, "product": "0.1.0", "store": "5f0c", "role": "owner"}


def speaking(first: int, last: int, role: str = "client") -> Hello:
    return Hello(version_min=first, version_max=last, product="9.9", store="", role=role)


def first_frame(fields: object) -> Frame:
    data = fields if isinstance(fields, bytes) else msgspec.msgpack.encode(fields)
    return Frame(FrameKind.REQUEST, HELLO_ID, HELLO_METHOD, data)


ranges = st.tuples(st.integers(1, 8), st.integers(1, 8)).map(lambda pair: (min(pair), max(pair)))


@given(ranges, ranges)
def test_the_newest_common_version_from_both_sides(mine: tuple[int, int], theirs: tuple[int, int]) -> None:
    common = set(range(mine[0], mine[1] + 1)) & set(range(theirs[0], theirs[1] + 1))
    one, other = speaking(*mine), speaking(*theirs)
    if common:
        assert agree(one, other) == agree(other, one) == max(common)
    else:
        for pair in ((one, other), (other, one)):
            with pytest.raises(ProtocolError, match="no protocol version in common"):
                agree(*pair)


def test_no_common_version_says_what_each_speaks() -> None:
    said = (
        r"this side \(owner, release 0.1.0\) speaks 1 to 3, the other \(client, release 9.9\) 4; update the older one"
    )
    with pytest.raises(ProtocolError, match=said):
        agree(HELLO, speaking(4, 4))


def test_this_release_agrees_with_itself() -> None:
    mine = speaking(PROTOCOL_MIN, PROTOCOL_MAX)
    assert agree(mine, mine) == PROTOCOL_MAX


@pytest.mark.parametrize("kind", [FrameKind.REQUEST, FrameKind.ANSWER])
def test_hellos_come_back(kind: FrameKind) -> None:
    assert read_hello(hello_frame(HELLO, kind), kind, FAULTS) == HELLO


def test_a_newer_hello_is_understood() -> None:
    newer = {"added": {"deep": [1, None]}, **FIELDS, "also": b"later"}
    assert read_hello(first_frame(newer), FrameKind.REQUEST, FAULTS) == HELLO


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version_min": 0}, "not a hello: Expected `int` >= 1"),
        ({"version_max": 2**31}, "not a hello: Expected `int` <= 2147483647"),
        ({"version_min": 4}, "not a hello: from version 4 to 3 there is none"),
        ({"role": 7}, "not a hello: Expected `str`, got `int`"),
        ({"store": "x" * 101}, "not a hello: Expected `str` of length <= 100"),
        ({"product": "x" * 101}, "not a hello: Expected `str` of length <= 100"),
        ({"role": "x" * 101}, "not a hello: Expected `str` of length <= 100"),
    ],
    ids=str,
)
def test_what_is_wrong_is_said(change: dict[str, object], message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        read_hello(first_frame({**FIELDS, **change}), FrameKind.REQUEST, FAULTS)


@pytest.mark.parametrize("field", FIELDS)
def test_nothing_is_left_out(field: str) -> None:
    with pytest.raises(ProtocolError, match=f"missing required field `{field}`"):
        read_hello(
            first_frame({name: value for name, value in FIELDS.items() if name != field}), FrameKind.REQUEST, FAULTS
        )


@pytest.mark.parametrize(
    "frame",
    [
        hello_frame(HELLO, FrameKind.ANSWER),
        FRAMES["request"],
        FRAMES["cancel"],
        Frame(FrameKind.REQUEST, RequestId(1), HELLO_METHOD, msgspec.msgpack.encode(FIELDS)),
        Frame(FrameKind.REQUEST, HELLO_ID, "hullo", msgspec.msgpack.encode(FIELDS)),
    ],
    ids=["from the wrong side", "request", "cancel", "id", "method"],
)
def test_something_else_comes_first(frame: Frame) -> None:
    with pytest.raises(ProtocolError, match=r"the first frame is a hello \(REQUEST\), not Frame\(") as caught:
        read_hello(frame, FrameKind.REQUEST, FAULTS)
    assert type(caught.value) is ProtocolError


def test_an_error_instead_of_a_hello_is_raised_as_it_is() -> None:
    with pytest.raises(Overloaded, match="too many connections"):
        read_hello(error_frame(HELLO_ID, Overloaded("too many connections"), FAULTS), FrameKind.ANSWER, FAULTS)


def test_deep_nesting() -> None:
    with pytest.raises(ProtocolError, match="not a hello: maximum recursion depth"):
        read_hello(first_frame(b"\x86\xa3new" + b"\x91" * 100_000), FrameKind.REQUEST, FAULTS)


def test_no_version_at_all_cannot_be_said() -> None:
    with pytest.raises(InvalidArgument, match="from version 3 to 2 there is none"):
        speaking(3, 2)


def test_mutated_hellos_are_a_hello_or_refused() -> None:
    chance = random.Random(8)
    refused = 0
    sample = msgspec.msgpack.encode(HELLO)
    for _ in range(tries(20_000)):
        try:
            hello = read_hello(first_frame(mutated(sample, chance)), FrameKind.REQUEST, FAULTS)
        except ProtocolError as error:
            assert not isinstance(error, MessageRefused)
            refused += 1
        else:
            assert 1 <= hello.version_min <= hello.version_max < 2**31
    assert tries(20_000) // 3 < refused < tries(20_000)
