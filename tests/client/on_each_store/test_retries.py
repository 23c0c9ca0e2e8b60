"""What is tried again, for how long, and what is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

import stelae
from stelae.adapters.sqlite.metastore import SqliteMetastore
from stelae.client.calls.retries import say_more
from stelae.model.errors import StaleSchema, TabletAway
from tests.client.on_each_store.worlds import put_before


class SteppedClock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def wall_ms(self) -> int:
        return 0

    def monotonic_s(self) -> float:
        return self.now_s


class MiddleRng:
    def token(self, size_bytes: int) -> bytes:
        return bytes(size_bytes)

    def below(self, bound: int) -> int:
        return bound // 2

    def fraction(self) -> float:
        return 0.5


def test_a_last_try_without_time_does_not_hide_what_took_the_time() -> None:
    full, late, lost = stelae.Overloaded("full"), stelae.DeadlineExceeded("no time"), stelae.ConnectionLost("gone")
    assert say_more(late, full) is full
    assert say_more(late, None) is late
    told = say_more(late, lost)
    assert (type(told), str(told)) == (stelae.DeadlineExceeded, "no time; before that: gone")
    assert say_more(full, late) is full
    assert say_more(lost, full) is lost


def test_reads_are_tried_again_after_whatever_passes(db: stelae.Database, users: stelae.Table) -> None:
    users.put({"id": "ann", "age": 1})
    failing = put_before(db)
    passing = [stelae.Overloaded("full"), stelae.Unavailable("away"), TabletAway("moved")]
    calls: dict[str, Callable[[], Any]] = {
        "newest": lambda: users.get("ann"),
        "newest_many": lambda: users.get_many(["ann"]),
        "history": lambda: users.history("ann"),
        "now": db.now,
        "pin": users.scan,
        "scan": users.count,
        "find": lambda: db.table("users"),
        "names": db.tables,
        "stats": users.stats,
        "tablets": users.tablets,
    }
    for name, call in calls.items():
        before = failing.calls[name]
        failing.plans[name] = list(passing)
        assert call()
        assert failing.calls[name] >= before + len(passing)
        assert failing.plans[name] == []


@pytest.mark.parametrize(
    "error",
    [stelae.Overloaded("full"), TabletAway("moved"), StaleSchema("old"), stelae.Unavailable("away")],
    ids=repr,
)
def test_writes_are_tried_again_if_nothing_happened(
    db: stelae.Database, users: stelae.Table, error: stelae.StelaeError
) -> None:
    failing = put_before(db)
    calls: tuple[Callable[[], Any], ...] = (
        lambda: users.put({"id": "ann", "age": 1}),
        lambda: users.put({"id": "bob"}, if_absent=True),
        lambda: users.put_many([{"id": "ann", "age": 1}]),
        lambda: users.update("ann", lambda row: {"age": 2}),
        lambda: users.increment("ann", {"age": 1}),
        lambda: users.erase("bob"),
        lambda: users.erase_many(["bob"]),
    )
    for call in calls:
        failing.plans["write"] = [error, error]
        call()
        assert failing.plans["write"] == []
    assert users.get("ann", ["age"]) == {"id": "ann", "age": 3}
    assert not users.exists("bob")


@pytest.mark.parametrize("error", [TabletAway("it moved"), StaleSchema("it is old")], ids=repr)
def test_at_the_deadline_users_are_told_what_they_know(
    db: stelae.Database, users: stelae.Table, error: stelae.StelaeError
) -> None:
    """Where tablets are, and at which schema, is between clients and servers."""
    # Over a connection nothing can be asked at all in no time.
    timeout_s = 0 if db._session.backend.is_local else 0.5
    failing = put_before(db)
    db._session.patience = replace(db._session.patience, timeout_s=timeout_s)
    calls: dict[str, Callable[[], Any]] = {
        "newest": lambda: users.get("ann"),
        "write": lambda: users.put({"id": "ann"}),
        "scan": users.count,
        "stats": users.stats,
    }
    if timeout_s:
        del calls["write"]  # it asks for the schema anew, and that may be what there is no time for
    for name, call in calls.items():
        failing.plans[name] = [error] * 10_000
        with pytest.raises(stelae.Unavailable, match=str(error)) as caught:
            call()
        assert type(caught.value) is stelae.Unavailable
        assert "tried again" in caught.value.__notes__[0]


def test_a_full_disk_is_told_at_once(db: stelae.Database, users: stelae.Table) -> None:
    """Waiting would make no room."""
    failing = put_before(db)
    calls: tuple[Callable[[], Any], ...] = (
        lambda: users.put({"id": "ann"}),
        lambda: users.put_many([{"id": "ann"}]),
        lambda: users.increment("ann", {"age": 1}),
        lambda: users.erase("ann"),
    )
    for call in calls:
        failing.plans["write"] = [stelae.DiskFull("full")]
        before = failing.calls["write"]
        with pytest.raises(stelae.DiskFull) as caught:
            call()
        assert failing.calls["write"] == before + 1
        assert not hasattr(caught.value, "__notes__")


def test_a_full_disk_is_told_at_once_of_tables_too(
    db: stelae.Database, users: stelae.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.create_namespace("empty")
    db.create_zone("cold")
    db.create_table("gone", {"id": "string"}, [stelae.cells("c")])
    db.drop_table("gone")
    tried: list[int] = []

    async def full(*_: object) -> None:
        tried.append(1)
        raise stelae.DiskFull("full")

    monkeypatch.setattr(SqliteMetastore, "txn", full)
    calls: tuple[Callable[[], Any], ...] = (
        lambda: db.create_table("t", {"id": "string"}, [stelae.cells("c")]),
        lambda: db.alter_table("users", add={"profile": {"email": "string"}}),
        lambda: db.alter_table("users", rename="people"),
        lambda: db.drop_table("users"),
        lambda: db.recall_table("gone"),
        lambda: users.split("c"),
        lambda: db.create_namespace("more"),
        lambda: db.drop_namespace("empty"),
        lambda: db.create_zone("fast"),
        lambda: db.alter_zone("cold", tablet_bytes=2**26),
        lambda: db.drop_zone("cold"),
    )
    for call in calls:
        tried.clear()
        with pytest.raises(stelae.DiskFull) as caught:
            call()
        assert len(tried) == 1
        assert not hasattr(caught.value, "__notes__")


@pytest.mark.parametrize("error", [stelae.UnknownOutcome("lost"), stelae.PartialWrite("half", 1)], ids=repr)
def test_writes_that_may_have_happened_are_repeated_only_if_the_store_knows_them_again(
    db: stelae.Database, users: stelae.Table, error: stelae.StelaeError
) -> None:
    """That is where an answer can be lost: if other processes have it."""
    failing = put_before(db)
    is_known = isinstance(error, stelae.UnknownOutcome) and not failing.behind.is_local
    calls: tuple[Callable[[], Any], ...] = (
        lambda: users.put({"id": "ann"}),
        lambda: users.put_many([{"id": "ann"}]),
        lambda: users.erase("ann"),
    )
    for call in calls:
        failing.plans["write"] = [error]
        before = failing.calls["write"]
        if is_known:
            assert call() > 0
        else:
            with pytest.raises(type(error)):
                call()
        assert failing.calls["write"] == before + 1 + is_known
    failing.plans["create"] = [stelae.UnknownOutcome("lost")]
    with pytest.raises(stelae.UnknownOutcome):
        db.create_table("t", {"id": "string"}, [stelae.cells("c")])
    failing.plans["create"] = [stelae.Overloaded("full"), stelae.Unavailable("away")]
    db.create_table("t", {"id": "string"}, [stelae.cells("c")])


def test_without_patience_the_first_error_is_the_last(db: stelae.Database) -> None:
    table = db.create_table("t", {"id": "string"}, [stelae.cells("c")])
    db._session.patience = replace(db._session.patience, timeout_s=0.0)
    failing = put_before(db)
    failing.plans["newest"] = [stelae.Unavailable("away")] * 3
    with pytest.raises(stelae.Unavailable):
        table.get("ann")
    assert failing.calls["newest"] in (1, 2)  # the quick way, if the store is here, and the way that would repeat


def test_who_waits_is_told_of_the_end(db: stelae.Database, users: stelae.Table) -> None:
    failing = put_before(db)
    close = failing.behind.close

    def closing(*_: object, **__: object) -> None:
        db._session._ended.set()
        raise stelae.Unavailable("away")

    failing.newest = closing  # type: ignore[attr-defined]
    with pytest.raises(stelae.Closed):
        users.get("ann")
    close()
