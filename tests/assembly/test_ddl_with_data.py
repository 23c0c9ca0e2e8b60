"""Threads that write, read and scan while others make, change, cut, join, empty and drop tables, on a real directory.

No row that was acknowledged is lost, none is shown that was not written, and nobody meets an error that does not say
what to do next. Everything is bounded by counts; nothing waits for a time to pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from threading import Barrier, Event
from typing import Any

import pytest

from stelae.adapters.ownership import Ownership
from stelae.assembly.world import StoreSettings
from stelae.client.intake.mutations import blocks_of, key_of
from stelae.launch.local import LocalStore
from stelae.model.declare import columns, declare
from stelae.model.errors import (
    Closed,
    InvalidArgument,
    NotFound,
    PartialWrite,
    Retryable,
    SchemaChanged,
    StaleSchema,
    StelaeError,
    TabletAway,
)
from stelae.model.ids import Row, TableId
from stelae.model.predicate.plan import ScanPredicate
from stelae.model.predicate.selectors import ALL_COLUMNS
from stelae.service.scans import ScanAsk
from stelae.service.tables import AlterAsk, CreateAsk, TableInfo
from tests.effort import tries
from tests.master.covers import gaps

SCHEMA = declare({"id": "int64"}, [columns("data", {"n": "int64", "text": "string"})])
KEYS = 200
ATTEMPTS_MAX = 10_000


def row(key: int) -> Row:
    return key_of(SCHEMA, key)


def own(path: Path) -> LocalStore:
    ownership = Ownership.take(path, "")
    assert ownership is not None
    return LocalStore(path, ownership, StoreSettings())


@contextmanager
def opened(path: Path) -> Iterator[LocalStore]:
    store = own(path)
    try:
        yield store
    finally:
        store.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    with opened(tmp_path / "store") as made:
        yield made


def put(store: LocalStore, table: TableId, rows: list[dict[str, Any]]) -> None:
    """Under whatever schema the table has; columns that it does not have are left out."""
    for _ in range(ATTEMPTS_MAX):
        schema = store.info(table).schema
        names = {"id", *(column.name for column in schema.groups[0].columns)}  # type: ignore[union-attr]
        try:
            store.write(table, blocks_of(schema, [{k: v for k, v in each.items() if k in names} for each in rows]))
        except StaleSchema:
            continue
        return
    raise AssertionError("the schema was never the one it was said to be")


def scanned(store: LocalStore, info: TableInfo) -> dict[int, dict[str, Any]]:
    """At a snapshot that is held meanwhile, as clients do it: others compact."""
    found: dict[int, dict[str, Any]] = {}
    last = -1
    with closing(store.pin(None)) as pin:
        for batch in store.scan(info.id, ScanAsk(ScanPredicate(), pin.txn)):
            for each in batch.to_pylist():
                assert each["id"] > last, "rows come in the order of their keys, each once"
                last = each["id"]
                found[last] = each
    return found


@contextmanager
def meanwhile(*jobs: Callable[[], None]) -> Iterator[None]:
    """They run beside what is inside, until they end by themselves; what they raise is raised."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        running = [pool.submit(job) for job in jobs]
        yield
        for each in running:
            each.result()


@contextmanager
def meanwhile_until(*jobs: Callable[[Event], None]) -> Iterator[None]:
    """They run until the event is set, which is when the inside is over."""
    over = Event()
    with meanwhile(*(partial(job, over) for job in jobs)):
        try:
            yield
        finally:
            over.set()


class Rounds:
    """One table, and what was acknowledged of it: `newest` is the last number each row was given."""

    def __init__(self, store: LocalStore, rounds: int) -> None:
        self.store = store
        self.rounds = rounds
        self.info = store.create(CreateAsk("t", SCHEMA, (row(50), row(100))))
        self.newest = [0] * KEYS
        put(store, self.info.id, [{"id": key, "n": 0, "text": "0"} for key in range(KEYS)])

    def check(self, key: int, known: int, values: Any) -> None:
        assert values is not None, f"row {key} is not there"
        assert values["n"] >= known, f"row {key} has {values['n']}, and {known} was acknowledged"
        assert values.get("text", str(values["n"])) == str(values["n"]), f"row {key} is of two writes: {values}"

    def write(self, part: int) -> Callable[[], None]:
        def run() -> None:
            random = Random(part)
            for n in range(1, self.rounds + 1):
                keys = sorted(random.sample(range(part, KEYS, 3), 12))
                put(self.store, self.info.id, [{"id": key, "n": n, "text": str(n)} for key in keys])
                for key in keys:
                    self.newest[key] = n

        return run

    def read(self, over: Event) -> None:
        random, table = Random(7), self.info.id
        while not over.is_set():
            keys = random.sample(range(KEYS), 5)
            for key in keys:
                least = self.newest[key]
                self.check(key, least, self.store.newest(table, row(key), ALL_COLUMNS)[1])
            known = [self.newest[key] for key in keys]
            _, found = self.store.newest_many(table, [row(key) for key in keys], ALL_COLUMNS)
            for key, least, values in zip(keys, known, found, strict=True):
                self.check(key, least, values)

    def scan(self, over: Event) -> None:
        done = 0
        while not over.is_set() or not done:
            known = list(self.newest)
            try:
                found = scanned(self.store, self.store.info(self.info.id))
            except SchemaChanged:
                continue
            assert list(found) == list(range(KEYS))
            for key, values in found.items():
                self.check(key, known[key], values)
            done += 1

    def added(self) -> list[str]:
        group: Any = self.store.info(self.info.id).schema.groups[0]
        return [column.name for column in group.columns][2:]

    def cut(self) -> None:
        random, table = Random(3), self.info.id
        for number in range(self.rounds // 3):
            match random.randrange(4):
                case 0:
                    with suppress(InvalidArgument):  # a tablet begins there already
                        self.store.split(table, row(random.randrange(1, KEYS)))
                case 1:
                    tablets = self.store.tablets(table)
                    if len(tablets) > 1:
                        self.store.join(table, Row(random.choice(tablets[1:]).start))
                case 2:
                    self.store.flush(table)
                case _:
                    self.store.compact(table, erase_now=bool(number % 2))

    def alter(self) -> None:
        random = Random(4)
        for number in range(self.rounds // 4):
            names = self.added()
            match random.randrange(3) if names else 0:
                case 0:
                    self.store.alter("t", AlterAsk(add={"data": {f"more{number}": "int32"}}))
                case 1:
                    self.store.alter("t", AlterAsk(rename_columns={names[-1]: f"other{number}"}))
                case _:
                    self.store.alter("t", AlterAsk(drop=(names[0],)))

    def verify(self, over: Event) -> None:
        """Whatever is under way, nothing is wrong."""
        while not over.is_set():
            assert self.store.check().problems == ()

    def others(self) -> None:
        """Other tables come and go beside it."""
        rows = [{"id": key, "n": key, "text": str(key)} for key in range(40)]
        for number in range(self.rounds // 6):
            other = self.store.create(CreateAsk("other", SCHEMA, (row(20),)))
            put(self.store, other.id, rows)
            if number % 2:
                self.store.truncate(other.id)
                assert scanned(self.store, other) == {}
                put(self.store, other.id, rows)
            self.store.drop("other")
            recalled = self.store.recall("other", f"kept{number}")
            assert [each["n"] for each in scanned(self.store, recalled).values()] == list(range(40))
            self.store.drop(f"kept{number}")


def test_rows_survive_everything_that_is_done_to_their_table(store: LocalStore, tmp_path: Path) -> None:
    rounds = Rounds(store, tries(60))
    working = (*(rounds.write(part) for part in range(3)), rounds.cut, rounds.alter, rounds.others)
    with meanwhile_until(rounds.read, rounds.scan, rounds.verify), meanwhile(*working):
        pass
    final = scanned(store, store.info(rounds.info.id))
    assert {key: each["n"] for key, each in final.items()} == dict(enumerate(rounds.newest))
    assert gaps(store.master, store.catalog) == []
    store.close()
    with opened(tmp_path / "store") as again:
        assert scanned(again, again.find("t")) == final


def test_writes_of_many_tablets_are_whole_while_they_are_split_and_joined(store: LocalStore) -> None:
    """A write that spans tablets never ends half-way because one of them was split under it."""
    info = store.create(CreateAsk("t", SCHEMA, tuple(row(key) for key in range(20, KEYS, 20))))
    rounds = tries(150)

    def write() -> None:
        for n in range(rounds):
            put(store, info.id, [{"id": key, "n": n, "text": str(n)} for key in range(KEYS)])

    def cut(over: Event) -> None:
        random = Random(1)
        while not over.is_set():
            key = random.randrange(1, KEYS)
            with suppress(InvalidArgument):
                store.split(info.id, row(key))
                store.join(info.id, row(key))

    with meanwhile_until(cut), meanwhile(write, write):
        pass
    assert {each["n"] for each in scanned(store, info).values()} == {rounds - 1}


def test_dropping_and_recalling_under_readers_and_writers(store: LocalStore) -> None:
    """Whatever a writer was told is durable is there when the table is recalled, and there it stays."""
    info = store.create(CreateAsk("t", SCHEMA, (row(50),)))
    acknowledged: set[int] = set()
    refused: list[StelaeError] = []
    begun = Barrier(3)

    def write(over: Event) -> None:
        begun.wait()
        key = 0
        while not over.is_set():
            key += 1
            try:
                put(store, info.id, [{"id": key, "n": key, "text": str(key)}])
            except (NotFound, TabletAway) as error:
                refused.append(error)
            else:
                acknowledged.add(key)

    def read(over: Event) -> None:
        begun.wait()
        while not over.is_set():
            known = set(acknowledged)
            try:
                found = scanned(store, store.info(info.id))
            except (NotFound, TabletAway) as error:
                refused.append(error)
            else:
                assert known <= found.keys()

    with meanwhile_until(write, read):
        begun.wait()
        for number in range(tries(8)):
            if number % 3 == 1:
                store.flush(info.id)
            store.drop("t")
            store.recall("t")
    assert acknowledged <= scanned(store, store.info(info.id)).keys()
    assert all(isinstance(error, NotFound | Retryable) for error in refused)


def test_truncating_under_writers_hides_no_later_row(store: LocalStore) -> None:
    info = store.create(CreateAsk("t", SCHEMA, (row(50),)))
    written: list[tuple[int, int]] = []
    emptied: list[int] = []

    def write() -> None:
        schema = store.info(info.id).schema
        for key in range(tries(300)):
            txn = store.write(info.id, blocks_of(schema, [{"id": key, "n": key}]))
            written.append((key, txn))

    def empty() -> None:
        for number in range(tries(10)):
            emptied.append(store.truncate(info.id))
            if number % 2:
                store.compact(info.id)

    with meanwhile(write, empty):
        pass
    last = max(emptied)
    assert scanned(store, info).keys() == {key for key, txn in written if txn > last}


@pytest.mark.parametrize("seed", range(tries(6)))
def test_closing_under_everybody(tmp_path: Path, seed: int) -> None:
    """Writers, scanners and whoever changes tables end with Closed; what was acknowledged is there."""
    store = own(tmp_path)
    info = store.create(CreateAsk("t", SCHEMA, (row(50),)))
    acknowledged: set[int] = set()
    begun = Barrier(6)

    def until_closed(work: Callable[[int], None]) -> Callable[[], None]:
        def run() -> None:
            begun.wait()
            number = 0
            with suppress(Closed):
                while True:
                    work(number)
                    number += 1

        return run

    def write(number: int) -> None:
        put(store, info.id, [{"id": number, "n": number, "text": ""}])
        acknowledged.add(number)

    def submit(number: int) -> None:
        key = 1_000_000 + number
        try:
            store.submit(info.id, blocks_of(store.info(info.id).schema, [{"id": key, "n": 1}])).result()
        except StaleSchema:
            return
        acknowledged.add(key)

    def scan(number: int) -> None:
        with suppress(SchemaChanged):
            scanned(store, store.info(info.id))

    def change(number: int) -> None:
        name = f"other{number}"
        store.create(CreateAsk(name, SCHEMA, (row(3),)))
        store.alter(name, AlterAsk(add={"data": {"more": "int32"}}))
        store.drop(name)

    def keep(number: int) -> None:
        with suppress(InvalidArgument):
            store.split(info.id, row(10 + number))
        store.flush(info.id)
        store.compact(info.id)

    with meanwhile(*(until_closed(work) for work in (write, submit, scan, change, keep))):
        begun.wait()
        while len(acknowledged) < 5 + 10 * seed:
            store.now()
        store.close()
    with opened(tmp_path) as again:
        assert acknowledged <= scanned(again, again.find("t")).keys()
        assert gaps(again.master, again.catalog) == []


def test_a_write_that_is_half_refused_says_how_much_is_durable(store: LocalStore, monkeypatch: Any) -> None:
    info = store.create(CreateAsk("t", SCHEMA, (row(50),)))
    shard = store.server.shard
    second = store.tablets(info.id)[1].tablet
    plain = shard.apply

    def apply(tablet: Any, *args: Any, **options: Any) -> Any:
        if tablet == second:
            raise InvalidArgument("simulated")
        return plain(tablet, *args, **options)

    monkeypatch.setattr(shard, "apply", apply)
    with pytest.raises(PartialWrite) as caught:
        store.write(info.id, blocks_of(info.schema, [{"id": key, "n": key} for key in range(40, 60)]))
    assert caught.value.durable == 10
    assert list(scanned(store, info)) == list(range(40, 50))
