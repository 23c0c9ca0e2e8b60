"""The table of operations says the same as the interface, and as a read-only store."""

from __future__ import annotations

import ast
import inspect
import re
from typing import Any

import pytest

from stelae.model.errors import PermissionDenied
from stelae.model.ids import Txn
from stelae.service import messages as m
from stelae.service.backend import Backend
from stelae.service.operations import PIN, SCAN, UNPIN, WRITE, Operation
from stelae.service.refusing import ReadOnlyStore
from stelae.service.table import OPERATIONS, TABLE_OPERATIONS, TABLET_OPERATIONS
from stelae.wire.faults import MessageRefused
from tests.client.asked import ASKED, BLOCKS, TABLE
from tests.client.fake_backend import FakeBackend, table_info
from tests.client.samples import USERS
from tests.tidy.sources import PACKAGE
from tests.tserver.serving.test_hostile import answers


def test_each_operation_is_a_method_with_a_deadline() -> None:
    for name in OPERATIONS.keys() - {"unpin"}:
        parameters = inspect.signature(getattr(Backend, name)).parameters
        assert parameters["deadline"].kind is inspect.Parameter.KEYWORD_ONLY, name
        assert parameters["deadline"].default is None, name


def test_masters_and_shards_share_the_operations() -> None:
    assert TABLE_OPERATIONS | TABLET_OPERATIONS == OPERATIONS
    assert not TABLE_OPERATIONS.keys() & TABLET_OPERATIONS.keys()
    assert {"find", "create", "split"} < TABLE_OPERATIONS.keys()
    assert {"write", "newest", "scan", "pin", "unpin", "hold", "metrics", "check"} < TABLET_OPERATIONS.keys()


def test_what_the_connection_has_a_part_in_is_known() -> None:
    by_hand = {name for name, operation in OPERATIONS.items() if operation.carry_out is None}
    assert by_hand == {WRITE.name, SCAN.name, PIN.name, UNPIN.name}


def test_what_reads_may_be_repeated() -> None:
    """What changes something may be, too, where doing it twice is doing it once."""
    assert all(operation.changes for operation in OPERATIONS.values() if not operation.is_repeatable)
    twice = {name for name, operation in OPERATIONS.items() if operation.changes and operation.is_repeatable}
    assert twice == {"flush", "compact", "begin_load", "commit_load", "begin_compaction"}


def test_every_message_says_how_much_time_is_left() -> None:
    for operation in OPERATIONS.values():
        assert issubclass(operation.message, m.Request)


README = (PACKAGE / "service" / "README.md").read_text("utf-8")
ELSEWHERE = {
    "unpin": ("service", "client", "assembly", "tserver"),  # asked by closing a pin
    "info": ("client/remote/tables",),  # whoever has rows of a table tells it, too
    "metrics": ("assembly",),  # a method there: the numbers of both halves
    "check": ("assembly",),
    "truncate": ("client/remote/cluster/store", "tserver/cluster"),  # in a cluster the master leads these
    "begin_load": ("tserver/cluster",),
    "commit_load": ("tserver/cluster",),
}
"""Where an operation does not stand as the others do."""


def _listed(column: int) -> list[list[str]]:
    """Of each step of "To add an operation" the files that it may be done in."""
    rows = re.findall(r"^\|(.*)\|(.*)\|(.*)\|$", README.partition("## To add an operation")[2], re.MULTILINE)[2:]
    return [files for row in rows if (files := re.findall(r"`([\w/]+/\w+\.py)`", row[column]))]


def _names_of(path: str) -> set[str]:
    """What a file defines: methods, attributes, operations."""
    found = set()
    for node in ast.walk(ast.parse((PACKAGE / path).read_text("utf-8"))):
        match node:
            case ast.FunctionDef(name=name):
                found.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store()):
                found.add(name)
            case ast.Call(args=[ast.Constant(value=str(name)), *_]):
                found.add(name)
            case _:
                pass
    return found


@pytest.mark.parametrize(
    ("column", "operations"), [(1, TABLE_OPERATIONS), (2, TABLET_OPERATIONS)], ids=["master", "shard"]
)
def test_an_operation_stands_where_the_readme_says(column: int, operations: dict[str, Operation[Any, Any]]) -> None:
    steps = _listed(column)
    assert len(steps) == 6 + column
    for files in steps:
        names = set[str]().union(*map(_names_of, files))
        missing = {name for name in operations.keys() - names if not files[0].startswith(ELSEWHERE.get(name, ("-",)))}
        assert missing == set(), files


def test_every_operation_is_asked_of_a_read_only_store() -> None:
    assert ASKED.keys() == OPERATIONS.keys() - {UNPIN.name}


@pytest.mark.parametrize("name", ASKED)
def test_a_read_only_store_refuses_what_changes(name: str) -> None:
    backend = FakeBackend({TABLE: table_info(USERS)}, {**answers(), "info": table_info(USERS)})
    store = ReadOnlyStore(backend)
    if not OPERATIONS[name].changes:
        plain = ASKED[name](backend, None)
        assert name == "pin" or ASKED[name](store, None) == plain
        return
    with pytest.raises(PermissionDenied, match="fake was opened read-only"):
        ASKED[name](store, None)
    assert backend.calls == []


def test_a_read_only_store_is_a_store() -> None:
    backend = FakeBackend({TABLE: table_info(USERS)}, {"now": Txn(4), "newest_cached": {"a": 1}})
    store: Backend = ReadOnlyStore(backend)
    assert (store.is_local, store.place, store.now()) == (True, "fake", 4)
    store.wait_for_room(1)
    store.close()
    with pytest.raises(PermissionDenied):
        store.submit(TABLE, BLOCKS)


@pytest.mark.parametrize(
    "message",
    [
        m.WriteMessage(1, None, (3, 4), client=7, sequences=(1,)),
        m.WriteMessage(1, None, (3,), client=7),
        m.WriteMessage(1, None, (3,), sequences=(1,)),
    ],
)
def test_each_block_of_a_write_has_a_number_or_none_has(message: m.WriteMessage) -> None:
    with pytest.raises(MessageRefused, match="numbers"):
        message.numbers()


def test_the_numbers_of_blocks() -> None:
    assert list(m.WriteMessage(1, None, (3, 4)).numbers()) == [None, None]
    numbers = m.WriteMessage(1, None, (3, 4), client=7, sequences=(5, 9), age_ms=2).numbers()
    assert [each and tuple(each) for each in numbers] == [(7, 5, 2), (7, 9, 2)]
