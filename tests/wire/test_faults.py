"""Errors cross the wire as what they are, or as the nearest thing the other side knows."""

from __future__ import annotations

import inspect
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.model import errors
from stelae.model.errors import (
    Corruption,
    InvalidArgument,
    InvalidPredicate,
    PartialWrite,
    ProtocolError,
    Retryable,
    StelaeError,
    Unavailable,
)
from stelae.ports.metastore import Compacted, Revision
from stelae.wire.faults import TEXT_CHARS_MAX, FaultTable, MessageRefused
from tests.effort import examples, tries
from tests.wire.samples import mutated

PLAIN = FaultTable()
KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, StelaeError)]
SAMPLES = [
    *(kind("what was wrong") for kind in KINDS if kind not in (Corruption, InvalidPredicate, PartialWrite)),
    Corruption("bad", "file.parquet", 7),
    Corruption("bad", "file.parquet"),
    InvalidPredicate("bad", "a =\n ", 4),
    PartialWrite("half", 3),
    PartialWrite("half; full", 3, "full"),
    ProtocolError("no frame"),
    MessageRefused("no message"),
    StelaeError(),
]


class Moved(Unavailable):
    def __init__(self, message: str, where: str) -> None:
        super().__init__(message)
        self.where = where


class Torn(Corruption):
    """Has an attribute beside those of its parent."""

    def __init__(self, message: str, file: str, pages: int) -> None:
        super().__init__(message, file, 5)
        self.pages = pages


MORE = FaultTable({Moved: {"where": str}, Torn: {"pages": int}, Compacted: {"asked": int, "oldest": int}})


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_errors_come_back_whole(error: StelaeError) -> None:
    again = PLAIN.decode(PLAIN.encode(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.__dict__ == error.__dict__


@pytest.mark.parametrize(
    "error",
    [Moved("gone", "node 3"), Torn("bad", "x.log", 9), Compacted(Revision(3), Revision(8))],
    ids=lambda error: type(error).__name__,
)
def test_registered_errors_come_back_whole(error: StelaeError) -> None:
    again = MORE.decode(MORE.encode(error))
    assert type(again) is type(error)
    assert (str(again), again.__dict__) == (str(error), error.__dict__)


def test_an_unknown_class_is_the_nearest_that_is_known() -> None:
    """So that a newer server's errors are still retried."""
    error = Moved("gone", "node 3")
    for sender in (MORE, PLAIN):
        again = PLAIN.decode(sender.encode(error))
        assert type(again) is Unavailable
        assert isinstance(again, Retryable)
        assert str(again) == "Moved: gone"
        assert again.__dict__ == {}
    torn = PLAIN.decode(PLAIN.encode(Torn("bad", "x.log", 9)))
    assert type(torn) is Corruption
    assert (str(torn), torn.file, torn.offset) == ("Torn: x.log at byte 5: bad", "x.log", 5)


@pytest.mark.parametrize("kinds", [["NewThing"], ["NewThing", "StelaeError"], ["NewThing", "Exception", "object"]])
def test_a_class_nobody_knows_is_a_plain_error_with_its_name(kinds: list[str]) -> None:
    again = PLAIN.decode(msgspec.msgpack.encode({"kinds": kinds, "message": "what", "attributes": {}}))
    assert type(again) is StelaeError
    assert str(again) == "NewThing: what"


@pytest.mark.parametrize("error", [KeyError("secret"), MemoryError(), KeyboardInterrupt("secret")], ids=repr)
def test_a_foreign_error_is_named_and_nothing_more(error: BaseException) -> None:
    again = PLAIN.decode(PLAIN.encode(error))
    assert type(again) is errors.InternalFault
    assert str(again).endswith(f": {type(error).__name__}")
    assert "secret" not in str(again)


def test_a_foreign_error_is_named_with_its_module() -> None:
    assert str(PLAIN.decode(PLAIN.encode(msgspec.DecodeError("x")))).endswith(": msgspec.DecodeError")


@pytest.mark.parametrize(
    ("attributes", "kind"),
    [
        ({"text": "a", "position": 1}, InvalidPredicate),
        ({"text": "a", "position": 1, "later": "added"}, InvalidPredicate),
        ({"text": "a"}, InvalidArgument),
        ({"text": "a", "position": "1"}, InvalidArgument),
        ({"text": None, "position": 1}, InvalidArgument),
        ({"text": "a", "position": True}, InvalidArgument),
    ],
    ids=str,
)
def test_attributes_fit_or_the_class_is_not_made(attributes: dict[str, object], kind: type[StelaeError]) -> None:
    kinds = ["InvalidPredicate", "InvalidArgument", "StelaeError"]
    again = PLAIN.decode(msgspec.msgpack.encode({"kinds": kinds, "message": "bad", "attributes": attributes, "new": 1}))
    assert type(again) is kind
    assert str(again) == ("bad" if kind is InvalidPredicate else "InvalidPredicate: bad")
    assert again.__dict__ == ({"text": "a", "position": 1} if kind is InvalidPredicate else {})


def test_an_older_server_does_not_say_apart_why_a_write_ended_half_way() -> None:
    fault = {"kinds": ["PartialWrite", "StelaeError"], "message": "half; full", "attributes": {"durable": 3}}
    again = PLAIN.decode(msgspec.msgpack.encode(fault))
    assert isinstance(again, PartialWrite)
    assert (again.durable, again.why, str(again)) == (3, None, "half; full")


def test_attributes_that_cannot_be_sent_cost_the_class_and_nothing_more() -> None:
    for durable in (2**64, -(2**63) - 1, object(), [1]):
        again = PLAIN.decode(PLAIN.encode(PartialWrite("half", durable)))  # type: ignore[arg-type]
        assert (type(again), str(again)) == (StelaeError, "PartialWrite: half")
    for durable in (2**64 - 1, -(2**63)):
        again = PLAIN.decode(PLAIN.encode(PartialWrite("half", durable)))
        assert isinstance(again, PartialWrite)
        assert again.durable == durable


def test_long_texts_are_cut() -> None:
    exact, long = "é" * TEXT_CHARS_MAX, "é" * (TEXT_CHARS_MAX + 1)
    assert str(PLAIN.decode(PLAIN.encode(InvalidArgument(exact)))) == exact
    error = InvalidPredicate("bad", long * 10, 4)
    error.args = (long,)
    data = PLAIN.encode(error)
    assert len(data) < 5 * TEXT_CHARS_MAX
    again = PLAIN.decode(data)
    assert isinstance(again, InvalidPredicate)
    for text in (str(again), again.text):
        assert len(text) == TEXT_CHARS_MAX
        assert text == "é" * (TEXT_CHARS_MAX - 10) + " ... (cut)"


def test_long_texts_of_the_other_side_are_cut_too() -> None:
    said = {"kinds": ["X" * 1000], "message": "m" * 10**6, "attributes": {}}
    assert len(str(PLAIN.decode(msgspec.msgpack.encode(said)))) < TEXT_CHARS_MAX + 300


def test_text_that_utf8_cannot_hold_is_sent_all_the_same() -> None:
    again = PLAIN.decode(PLAIN.encode(InvalidPredicate("bad \ud800", "\udfff", 0)))
    assert isinstance(again, InvalidPredicate)
    assert again.text == "?"
    assert str(again).startswith("bad ?")


def test_a_long_family_is_cut_at_the_far_end() -> None:
    kind: type[StelaeError] = Unavailable
    for number in range(50):
        kind = type(f"Kind{number}", (kind,), {})
    assert str(PLAIN.decode(PLAIN.encode(kind("x")))) == "Kind49: x"


def test_names_are_unique() -> None:
    twin = type("NotFound", (StelaeError,), {})
    with pytest.raises(InvalidArgument, match="two classes are called NotFound"):
        FaultTable({twin: {}})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"kinds": [], "message": "x", "attributes": {}}),
        msgspec.msgpack.encode({"kinds": ["A"] * 33, "message": "x", "attributes": {}}),
        msgspec.msgpack.encode({"kinds": ["A"], "message": b"x", "attributes": {}}),
        msgspec.msgpack.encode({"kinds": ["A"], "message": "x", "attributes": {"a": [1]}}),
        msgspec.msgpack.encode({"kinds": ["A"], "message": "x", "attributes": {str(n): n for n in range(33)}}),
        msgspec.msgpack.encode({"kinds": ["A"], "message": "x", "attributes": {}}) + b"\x00",
        b"\x84\xa3new" + b"\x91" * 100_000,
    ],
    ids=["nothing", "no msgpack", "no kind", "kinds", "message", "attribute", "attributes", "trailing", "deep"],
)
def test_what_is_no_fault_is_refused(data: bytes) -> None:
    with pytest.raises(MessageRefused, match="not a fault: "):
        PLAIN.decode(data)


def test_mutated_faults_are_an_error_or_refused() -> None:
    chance = random.Random(7)
    samples = [PLAIN.encode(error) for error in SAMPLES]
    refused = 0
    for _ in range(tries(20_000)):
        try:
            error = PLAIN.decode(mutated(chance.choice(samples), chance))
        except MessageRefused:
            refused += 1
        else:
            assert str(error) or error.args
            assert set(error.__dict__) <= {"durable", "why", "file", "offset", "text", "position"}
    assert tries(20_000) // 3 < refused < tries(20_000)


@given(st.text(), st.text(), st.none() | st.integers(-(2**63), 2**63 - 1))
@settings(max_examples=examples(200))
def test_any_text_is_sent(message: str, file: str, offset: int | None) -> None:
    again = PLAIN.decode(PLAIN.encode(Corruption(message, file, offset)))
    assert isinstance(again, Corruption)
    assert again.offset == offset
    assert again.file == file.encode("utf-8", "replace").decode()
