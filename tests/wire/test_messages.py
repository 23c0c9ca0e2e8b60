"""Messages fit their method, or the one request is refused in words."""

from __future__ import annotations

import random
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from stelae.model.errors import InvalidArgument, NotFound
from stelae.ports.transport import Frame, FrameKind, RequestId
from stelae.wire.faults import MessageRefused
from stelae.wire.frames import FrameDecoder
from stelae.wire.messages import Messages, WireMethod, cancel_frame, end_frame, error_frame, read_error
from tests.effort import tries
from tests.wire.samples import (
    FAULTS,
    PUT,
    SCAN,
    TABLE_MESSAGES,
    PutAnswer,
    PutRequest,
    ScanBatch,
    frame_bytes,
    mutated,
)

ID = RequestId(7)
REQUEST = PutRequest(3, "users", (b"ann",), extra=[1, {"a": None}])


def sent(frame: Frame) -> Frame:
    (received,) = FrameDecoder().feed(frame_bytes(frame))
    return received


def test_a_request_and_its_answer() -> None:
    asked = sent(PUT.ask(ID, REQUEST, b"body", flags=2))
    assert (asked.kind, asked.request_id, asked.method, asked.body, asked.flags) == (
        FrameKind.REQUEST,
        7,
        "table.put",
        b"body",
        2,
    )
    method = TABLE_MESSAGES.find(asked.method)
    assert method is PUT
    assert method.read_request(asked) == REQUEST
    answered = sent(PUT.answer(ID, PutAnswer(12), b"more", flags=3))
    assert (answered.kind, answered.request_id, answered.body, answered.flags) == (FrameKind.ANSWER, 7, b"more", 3)
    assert PUT.read_answer(answered) == PutAnswer(12)


def test_a_stream_has_items_and_an_end() -> None:
    item = sent(SCAN.answer(ID, ScanBatch(5, b"t"), b"batch"))
    assert (item.kind, item.body, SCAN.has_stream, PUT.has_stream) == (FrameKind.ITEM, b"batch", True, False)
    assert SCAN.read_answer(item) == ScanBatch(5, b"t")
    assert (sent(end_frame(ID)).kind, end_frame(ID).request_id) == (FrameKind.END, 7)
    assert (sent(cancel_frame(ID)).kind, cancel_frame(ID).request_id) == (FrameKind.CANCEL, 7)


def test_an_error_answers() -> None:
    frame = sent(error_frame(ID, NotFound("no table 'x'"), FAULTS))
    assert (frame.kind, frame.request_id) == (FrameKind.ERROR, 7)
    assert repr(read_error(frame, FAULTS)) == "NotFound(\"no table 'x'\")"


def request_of(fields: object) -> Frame:
    data = fields if isinstance(fields, bytes) else msgspec.msgpack.encode(fields)
    return Frame(FrameKind.REQUEST, ID, "table.put", data)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tablet": "3", "table": "users"}, "table.put: Expected `int`, got `str` - at `\\$.tablet`"),
        ({"tablet": 0, "table": "users"}, "table.put: Expected `int` >= 1 - at `\\$.tablet`"),
        ({"tablet": 3, "table": "u" * 11}, "table.put: Expected `str` of length <= 10"),
        ({"tablet": 3, "table": "u", "rows": [b""] * 4}, "table.put: Expected `array` of length <= 3"),
        ({"tablet": 3}, "table.put: Object missing required field `table`"),
        ({"tablet": 3, "table": "forbidden"}, "table.put: no such table may be named"),
        ([3, "users"], "table.put: Expected `object`, got `array`"),
        (b"", "table.put: Input data was truncated"),
        (b"\x82\xa6tablet\x03\xa5table\xa1\xff", "table.put: 'utf-8' codec"),
        (msgspec.msgpack.encode(REQUEST) + b"\x00", "table.put: .*trailing characters"),
        (b"\x83\xa6tablet\x03\xa5table\xa1u\xa5extra" + b"\x91" * 100_000, "table.put: maximum recursion depth"),
        (b"\x83\xa6tablet\x03\xa5table\xa1u\xa3new" + b"\x91" * 100_000, "table.put: maximum recursion depth"),
        (b"\x83\xa6tablet\x03\xa5table\xa1u\xa5extra\xdd\xff\xff\xff\xff", "table.put: Input data was truncated"),
    ],
    ids=[
        *(
            "type",
            "bound",
            "text length",
            "list length",
            "missing",
            "own rule",
            "shape",
            "nothing",
            "utf-8",
            "trailing",
        ),
        *("deep", "deep where nobody looks", "long list"),
    ],
)
def test_what_does_not_fit_is_said(fields: object, message: str) -> None:
    with pytest.raises(MessageRefused, match=message):
        PUT.read_request(request_of(fields))


class Edges(msgspec.Struct, frozen=True):
    amount: Decimal = Decimal(0)
    moment: datetime | None = None
    members: frozenset[Any] = frozenset()


@pytest.mark.parametrize(
    "fields",
    [
        {"amount": "1e"},
        {"amount": "1e9999999999999999999999"},
        {"moment": "2024-13-01T00:00:00Z"},
        {"moment": msgspec.msgpack.Ext(-1, b"\0\0\0\0" + b"\x7f" * 8)},
        {"members": [{}]},
    ],
    ids=["no number", "a huge one", "no time", "a late one", "no member of a set"],
)
def test_values_that_only_a_type_refuses(fields: dict[str, object]) -> None:
    method = WireMethod("edges", Edges, Edges)
    with pytest.raises(MessageRefused, match="edges: "):
        method.read_request(Frame(FrameKind.REQUEST, ID, "edges", msgspec.msgpack.encode(fields)))


@pytest.mark.parametrize("kind", FrameKind, ids=lambda kind: kind.name)
def test_only_the_right_kind_is_read(kind: FrameKind) -> None:
    readers: list[tuple[Any, FrameKind]] = [
        (PUT.read_request, FrameKind.REQUEST),
        (PUT.read_answer, FrameKind.ANSWER),
        (SCAN.read_request, FrameKind.REQUEST),
        (SCAN.read_answer, FrameKind.ITEM),
    ]
    for read, right in readers:
        wrong = f": {kind.name} where {right.name} was expected"
        with pytest.raises(MessageRefused, match="truncated" if kind is right else wrong):
            read(Frame(kind, ID))


def test_an_unknown_method_is_named_with_the_nearest() -> None:
    with pytest.raises(MessageRefused, match=r"there is no method 'table\.putt'; did you mean 'table\.put'\?"):
        TABLE_MESSAGES.find("table.putt")
    with pytest.raises(MessageRefused, match=r"there is no method ''$"):
        TABLE_MESSAGES.find("")
    assert TABLE_MESSAGES.names == ("table.put", "table.scan")


@pytest.mark.parametrize("name", ["", "Table.put", "table..put", "table.", "1put", "put it", "é", "hello", "a" * 65])
def test_names_of_methods(name: str) -> None:
    with pytest.raises(InvalidArgument, match="is not a method's name"):
        WireMethod(name, PutRequest, PutAnswer)
    assert WireMethod("a" * 64, PutRequest, PutAnswer).name == "a" * 64


class Changeable(msgspec.Struct):
    number: int = 0


def test_messages_are_frozen_and_methods_declared_once() -> None:
    with pytest.raises(InvalidArgument, match="x: Changeable is a message, so it is frozen"):
        WireMethod("x", Changeable, PutAnswer)
    with pytest.raises(InvalidArgument, match="x: Changeable"):
        WireMethod("x", PutRequest, Changeable)
    with pytest.raises(InvalidArgument, match=r"'table\.put' is declared twice"):
        Messages((PUT, SCAN, WireMethod("table.put", PutRequest, PutAnswer)))


def test_mutated_messages_fit_or_are_refused() -> None:
    chance = random.Random(9)
    sample = msgspec.msgpack.encode(REQUEST)
    refused = 0
    for _ in range(tries(20_000)):
        try:
            request = PUT.read_request(request_of(mutated(sample, chance)))
        except MessageRefused:
            refused += 1
        else:
            assert request.tablet >= 1
            assert len(request.table) <= 10
            assert len(request.rows) <= 3
    assert tries(20_000) // 3 < refused < tries(20_000)
