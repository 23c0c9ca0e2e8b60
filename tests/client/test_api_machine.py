"""The public API against a plain dict: whatever is done, in whatever order, reads see what a dict would hold."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import stelae
from stelae.launch.local import LocalStore
from tests.cluster_of_threads import Cluster
from tests.effort import examples

KEYS = st.sampled_from(["", "a", "ab", "b", "c", "ca", "d"])
COLUMNS = st.fixed_dictionaries(
    {}, optional={"n": st.integers(-5, 5) | st.none(), "text": st.sampled_from(["x", "y", "é"]) | st.none()}
)
CELLS = st.dictionaries(st.sampled_from(["f:a", "f:b", "g:a"]), st.binary(max_size=2), max_size=2)
ROWS = st.builds(lambda key, values, cells: {"k": key, **values, **cells}, KEYS, COLUMNS, CELLS)


class ApiMachine(RuleBasedStateMachine):
    """`model` holds what was written of each row; `past` what it held at some snapshots."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.begin()
        self.database = self.connect()
        groups = [stelae.columns("data", {"n": "int64", "text": "string"}), stelae.cells("cells", ["f", "g"])]
        self.table = self.database.create_table("t", {"k": "string"}, groups, splits=["b"])
        self.model: dict[str, dict[str, Any]] = {}
        self.past: list[tuple[int, dict[str, dict[str, Any]]]] = []
        self.column = "text"

    def begin(self) -> None:
        """Whatever has to be there before the store can be opened."""

    def connect(self) -> stelae.Database:
        return stelae.open(self.directory)

    def teardown(self) -> None:
        self.database.close()
        self.end()
        shutil.rmtree(self.directory)

    def end(self) -> None:
        """Of what `begin` began."""

    def shown(self, key: str, model: dict[str, dict[str, Any]] | None = None) -> dict[str, Any] | None:
        """A row as it must be read."""
        written = (self.model if model is None else model).get(key)
        return None if written is None else {"k": key, "n": None, self.column: None, **written}

    def put_in_model(self, row: dict[str, Any]) -> None:
        self.model.setdefault(row["k"], {}).update({name: value for name, value in row.items() if name != "k"})

    def named(self, row: dict[str, Any]) -> dict[str, Any]:
        return {self.column if name == "text" else name: value for name, value in row.items()}

    @rule(row=ROWS)
    def put(self, row: dict[str, Any]) -> None:
        row = self.named(row)
        self.table.put(row)
        self.put_in_model(row)

    @rule(rows=st.lists(ROWS, max_size=5))
    def put_many(self, rows: list[dict[str, Any]]) -> None:
        rows = [self.named(row) for row in rows]
        self.table.put_many(rows)
        for row in rows:
            self.put_in_model(row)

    @rule(row=ROWS)
    def put_if_absent(self, row: dict[str, Any]) -> None:
        row = self.named(row)
        try:
            self.table.put(row, if_absent=True)
        except stelae.AlreadyExists:
            assert row["k"] in self.model
        else:
            assert row["k"] not in self.model
            self.put_in_model(row)

    @rule(key=KEYS, other=KEYS, value=st.integers(0, 9))
    def put_if_unchanged(self, key: str, other: str, value: int) -> None:
        row = self.table.get(key)
        txn = self.database.now() if row is None else row.txn
        self.table.put({"k": other})
        self.put_in_model({"k": other})
        try:
            self.table.put({"k": key, "n": value}, if_unchanged_since=txn)
        except stelae.Conflict:
            assert key == other
        else:
            assert key != other
            self.put_in_model({"k": key, "n": value})

    @rule(key=KEYS)
    def erase(self, key: str) -> None:
        self.table.erase(key)
        self.model.pop(key, None)

    @rule(key=KEYS, family=st.sampled_from(["f", "g"]))
    def erase_family(self, key: str, family: str) -> None:
        """Of a row that something else keeps in place."""
        self.put({"k": key})
        self.table.erase(key, [f"{family}:"])
        row = self.model[key]
        self.model[key] = {name: value for name, value in row.items() if not name.startswith(f"{family}:")}

    @rule(start=KEYS, stop=KEYS)
    def erase_range(self, start: str, stop: str) -> None:
        gone = [key for key in self.model if start <= key < stop]
        assert self.table.erase_range(start, stop) == len(gone)
        for key in gone:
            del self.model[key]

    @rule(key=KEYS, values=COLUMNS, writes=st.booleans())
    def update(self, key: str, values: dict[str, Any], writes: bool) -> None:
        values = self.named(values)
        expected = self.shown(key)

        def change(row: Any) -> dict[str, Any] | None:
            assert row == expected
            return values if writes else None

        found = self.table.update(key, change)
        if writes:
            self.put_in_model({"k": key, **values})
        assert found == self.shown(key)

    @rule(key=KEYS, by=st.integers(-3, 3))
    def increment(self, key: str, by: int) -> None:
        before = self.model.get(key, {}).get("n") or 0
        assert self.table.increment(key, {"n": by}) == {"n": before + by}
        self.put_in_model({"k": key, "n": before + by})

    @rule(rows=st.lists(ROWS, max_size=4), keys=st.lists(KEYS, max_size=2), count_max=st.integers(1, 5))
    def batch(self, rows: list[dict[str, Any]], keys: list[str], count_max: int) -> None:
        with self.table.batch(count_max=count_max) as batch:
            for row in rows:
                batch.put(self.named(row))
                self.put_in_model(self.named(row))
            for key in keys:
                batch.erase(key)
                self.model.pop(key, None)

    @rule()
    def flush(self) -> None:
        self.table.flush()

    @rule(key=KEYS)
    def split(self, key: str) -> None:
        if key and all(tablet.start != key.encode() for tablet in self.table.tablets()):
            self.table.split(key)

    @rule()
    def rename_column(self) -> None:
        new = "words" if self.column == "text" else "text"
        self.database.alter_table("t", rename_columns={self.column: new})
        for models in (self.model, *(model for _, model in self.past)):
            for row in models.values():
                if self.column in row:
                    row[new] = row.pop(self.column)
        self.column = new

    @rule()
    def compact(self) -> None:
        self.table.compact()

    @rule()
    def truncate(self) -> None:
        self.database.truncate_table("t")
        self.model.clear()

    @rule()
    def drop_and_recall(self) -> None:
        self.database.drop_table("t")
        assert "t" not in self.database.tables()
        self.database.recall_table("t")
        self.table = self.database.table("t")

    @rule(is_second=st.booleans())
    def another_column(self, is_second: bool) -> None:
        """One that comes and goes, and holds nothing when it comes again."""
        name = "more" if is_second else "others"
        self.database.alter_table("t", add={"data": {name: "int64 not null default 7"}})
        self.table.put({"k": "zz", name: 8})
        assert dict(self.table.get("zz") or {})[name] == 8
        self.database.alter_table("t", drop=[name])
        self.table.erase("zz")

    @rule()
    def remember(self) -> None:
        self.past.append((self.database.now(), {key: dict(row) for key, row in self.model.items()}))

    @rule()
    def reopen(self) -> None:
        self.database.close()
        self.open_again()

    @rule()
    def end_at_once(self) -> None:
        """As a process that is killed ends: nothing is put in order."""
        store = self.database._session.backend
        if isinstance(store, LocalStore):
            store.abandon()
            self.database.close()
            self.open_again()

    def open_again(self) -> None:
        self.database = self.connect()
        self.table = self.database.table("t")

    @rule(start=st.none() | KEYS, stop=st.none() | KEYS, reverse=st.booleans(), limit=st.none() | st.integers(0, 9))
    def scan(self, start: str | None, stop: str | None, reverse: bool, limit: int | None) -> None:
        scan = self.table.scan(start=start, stop=stop, reverse=reverse, limit=limit)
        keys = sorted(key for key in self.model if (start or "") <= key and (stop is None or key < stop))
        expected = [self.shown(key) for key in (keys[::-1] if reverse else keys)][:limit]
        assert list(scan) == expected
        assert scan.to_arrow().num_rows == len(expected)

    @rule(low=st.integers(-5, 5))
    def scan_where(self, low: int) -> None:
        found = [row["k"] for row in self.table.scan(stelae.col("n") >= low)]
        assert found == sorted(key for key, row in self.model.items() if row.get("n") is not None and row["n"] >= low)

    @rule(
        columns=st.lists(st.sampled_from(["n", "text", "f:", "f:a", "g:", "k"]), min_size=1, max_size=3, unique=True),
        rows=st.sampled_from(["all", "having"]),
        reverse=st.booleans(),
        limit=st.none() | st.integers(0, 9),
    )
    def read_columns(self, columns: list[str], rows: str, reverse: bool, limit: int | None) -> None:
        """Every row that exists, with what it has of the columns; or those that have one of them."""
        asked = [self.column if name == "text" else name for name in columns if name != "k"]
        columns = asked or ["k"]

        def projected(key: str) -> dict[str, Any]:
            written = {n: v for n, v in self.model[key].items() if n in asked or f"{n.partition(':')[0]}:" in asked}
            return {"k": key, **{name: None for name in asked if ":" not in name}, **written}

        def appears(key: str) -> bool:
            return (
                rows == "all" or not asked or any(name in asked or f"{name[:1]}:" in asked for name in self.model[key])
            )

        found = {key: projected(key) for key in sorted(self.model) if appears(key)}
        expected = list(found.values())[:: -1 if reverse else 1][:limit]
        assert list(self.table.scan(columns=columns, rows=rows, reverse=reverse, limit=limit)) == expected
        keys = ["", "a", "ab", "b", "c", "ca", "d"]
        assert self.table.get_many(keys, columns, rows=rows) == [found.get(key) for key in keys]
        assert [self.table.get(key, columns, rows=rows) for key in keys] == [found.get(key) for key in keys]
        nulls = [row for key, row in found.items() if self.model[key].get("n") is None]
        assert list(self.table.scan("n is null", columns=columns, rows=rows)) == nulls
        assert self.table.count("n is null") == sum(row.get("n") is None for row in self.model.values())

    @rule(count=st.integers(1, 4), row=ROWS)
    def page(self, count: int, row: dict[str, Any]) -> None:
        """A write between pages is not in them."""
        expected = [self.shown(key) for key in sorted(self.model)]
        rows, token = self.table.scan().page(count)
        self.put(row)
        while token:
            assert rows
            more, token = self.table.scan(after=token).page(count)
            rows += more
        assert rows == expected

    @precondition(lambda self: self.past)
    @rule(data=st.data())
    def look_back(self, data: st.DataObject) -> None:
        txn, model = data.draw(st.sampled_from(self.past))
        assert list(self.table.scan(at=txn)) == [self.shown(key, model) for key in sorted(model)]
        for key in ("", "b", "ca"):
            assert self.table.get(key, at=txn) == self.shown(key, model)

    @invariant()
    def rows_are_those_of_the_model(self) -> None:
        keys = ["", "a", "ab", "b", "c", "ca", "d"]
        assert self.table.get_many(keys) == [self.shown(key) for key in keys]
        assert [self.table.get(key) for key in keys] == [self.shown(key) for key in keys]
        assert self.table.count() == len(self.model)


ApiMachine.TestCase.settings = settings(max_examples=examples(25), stateful_step_count=25)
TestApiMachine = ApiMachine.TestCase

OWNER = """
import sys
import stelae
db = stelae.open(sys.argv[1])
print("ready", flush=True)
sys.stdin.read()
db.close()
"""


class AttachedMachine(ApiMachine):
    """The same through another process, which is killed now and then: then this one takes over."""

    def __init__(self) -> None:
        super().__init__()
        self.owner: subprocess.Popen[str] | None = None
        self.hand_over()

    @precondition(lambda self: self.owner is None)
    @rule()
    def hand_over(self) -> None:
        self.database.close()
        self.owner = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(self.directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.owner.stdout is not None
        assert self.owner.stdout.readline() == "ready\n"
        self.open_again()
        assert not self.database._session.backend.is_local

    @precondition(lambda self: self.owner is not None)
    @rule()
    def kill_the_owner(self) -> None:
        self.end_owner()

    def end_owner(self) -> None:
        owner, self.owner = self.owner, None
        if owner is not None and owner.stdin is not None and owner.stdout is not None:
            owner.kill()
            owner.stdin.close()
            owner.stdout.close()
            owner.wait()

    def teardown(self) -> None:
        self.end_owner()
        super().teardown()


AttachedMachine.TestCase.settings = settings(max_examples=examples(3), stateful_step_count=20)
TestAttachedMachine = AttachedMachine.TestCase


class ClusterMachine(ApiMachine):
    """The same over TCP. Master and shard begin anew now and then, the shard without an orderly end, and the database
    that is connected to them goes on."""

    cluster: Cluster

    def begin(self) -> None:
        self.cluster = Cluster(self.directory)

    def connect(self) -> stelae.Database:
        return stelae.connect(self.cluster.address)

    def end(self) -> None:
        self.cluster.close()

    @rule()
    def restart_the_shard(self) -> None:
        self.cluster.end_shard()
        self.cluster.begin_shard()

    @rule()
    def kill_the_shard(self) -> None:
        self.cluster.abandon_shard()
        self.cluster.begin_shard()

    @rule()
    def restart_the_master(self) -> None:
        self.cluster.end_master()
        self.cluster.begin_master()


ClusterMachine.TestCase.settings = settings(max_examples=examples(8), stateful_step_count=20)
TestClusterMachine = ClusterMachine.TestCase
