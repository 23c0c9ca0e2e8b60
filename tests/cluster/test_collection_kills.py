"""Files are collected five times a second while rows are written, flushed, merged and loaded, tablets are split, and
real processes are killed with -9: nobody who reads ever misses a file, and in the end exactly those are there that the
shards need."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event

import stelae
from stelae.adapters.blobs.local import LocalBlobStore
from stelae.registry.control_operations import FILES_NEEDED
from stelae.storage.files.names import fragment_names
from tests.cluster.driver import backend_of, load
from tests.cluster.test_load_kills import SHARDS, forked, make_table, truncate, values
from tests.clusters import until
from tests.effort import HANG_S, tries

KILLS = 1
SPLITS = 6
ROWS = 1_000
BATCH = 50
AWAY = (stelae.Unavailable, stelae.UnknownOutcome, stelae.SnapshotTooOld)
"""What may be said to whoever asks; a missing file is NotFound, or Corruption."""


class Work:
    """Jobs that go on beside each other until they are told that it is over; what one of them fails with is raised."""

    def __init__(self, address: str, threads: ThreadPoolExecutor) -> None:
        self._address = address
        self._threads = threads
        self._is_over = Event()
        self._running: list[Future[None]] = []
        self.done: dict[str, int] = {}

    def begin(self, job: Callable[[stelae.Database, int], None]) -> None:
        """`job` is called again and again, with a number that grows."""
        self.done[job.__name__] = 0
        self._running.append(self._threads.submit(self._run, job))

    def _run(self, job: Callable[[stelae.Database, int], None]) -> None:
        with stelae.connect(self._address, timeout_s=HANG_S) as db:
            while not self._is_over.is_set():
                number = self.done[job.__name__] + 1
                try:
                    job(db, number)
                except AWAY:
                    continue
                self.done[job.__name__] = number

    def wait_for_more(self) -> None:
        """Until each has done something once more, or one has failed."""
        before = dict(self.done)
        until(lambda: all(self.done[name] > count for name, count in before.items()) or self._failed)

    @property
    def _failed(self) -> bool:
        return any(each.done() for each in self._running)

    def end(self) -> None:
        self._is_over.set()
        for each in self._running:
            each.result(HANG_S)


def write(db: stelae.Database, number: int) -> None:
    chance, table = random.Random(number), db.table("rows")
    table.put_many([{"id": chance.randrange(ROWS), "v": number} for _ in range(BATCH)])
    table.flush()
    if number % 3 == 0:
        table.compact()
    if number <= 2 * SPLITS and number % 2 == 0:
        with suppress(stelae.InvalidArgument):  # it was split there, and nobody was told
            table.split(ROWS * number // (2 * SPLITS + 1))


def look(db: stelae.Database, _: int) -> None:
    """Twice at one snapshot: meanwhile files take the place of others."""
    assert len(set(values(db.table("t")))) <= 1, "never a part"
    with db.snapshot() as snapshot:
        first, second = ([(row["id"], row["v"]) for row in db.table("rows").scan(at=snapshot)] for _ in range(2))
        assert first == second


def needed(db: stelae.Database) -> set[str]:
    """The names of all files that the shards say they need."""
    store = backend_of(db)
    names = store._routing.find_all(store._until(None))  # type: ignore[attr-defined]
    answers = [store._shards.get(name)._ask(FILES_NEEDED, None) for name in names]  # type: ignore[attr-defined]
    assert not any(each.holds for each in answers)
    return {name for each in answers for name in each.names}


def test_exactly_the_files_that_are_needed_are_there_in_the_end(tmp_path: Path) -> None:
    chance, blobs = random.Random(7), LocalBlobStore(tmp_path / "store")

    def load_again(db: stelae.Database, number: int) -> None:
        if number % 4 == 0:
            truncate(db)
        else:
            load(db, tmp_path, number, replaces=number % 2 == 0)

    with forked(tmp_path, collect_every_s=0.2) as cluster, stelae.connect(cluster.address, timeout_s=HANG_S) as db:
        make_table(db)
        db.create_table(
            "rows", {"id": "int64"}, [stelae.columns("g", {"v": "int64"})], splits=[ROWS // 3, 2 * ROWS // 3]
        )
        with ThreadPoolExecutor(3) as threads:
            work = Work(cluster.address, threads)
            try:
                for job in (write, load_again, look):
                    work.begin(job)
                for _ in range(tries(KILLS)):
                    work.wait_for_more()
                    victims = chance.sample(["master", *(f"shard-{number}" for number in range(SHARDS))], 2)
                    for victim in victims:
                        cluster.kill(victim)
                    for victim in victims:
                        cluster.begin(victim)
                work.wait_for_more()
            finally:
                work.end()
        until(lambda: db.check().problems == ())
        until(lambda: set(fragment_names(blobs)) == needed(db))
        assert fragment_names(blobs)
        until(lambda: db.check().counts["unneeded fragments"] == 0)
