"""A table that a driver loads, overwrites and empties again and again, while a simulated cluster is disturbed: each
change puts one value into all of its rows, or takes them all away, so whoever reads it at a snapshot sees one value, or
none, everywhere."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

import stelae
from stelae.model.errors import Conflict, Retryable, SnapshotTooOld, UnknownOutcome
from stelae.sim.world import ProcessPorts
from tests.cluster.driver import backend_of
from tests.cluster.processes import sleep
from tests.tserver.loading import written

LOADED = "loaded"
SPLIT = "m"
KEYS = ("a", "f", "p", "x")
TRIES_MAX = 3
PAUSE_S = 0.3

Seen = tuple[int | None, ...]


@dataclass
class Marks:
    """`done`: by txn what all rows have from then on. `begun`: loads of which nobody knows whether they have happened;
    `is_unsure`: whether there is such a truncation."""

    done: dict[int, int | None] = field(default_factory=dict)
    begun: set[int] = field(default_factory=set)
    is_unsure: bool = False
    seen: dict[int, Seen] = field(default_factory=dict)
    _last: int = 0

    def make(self, db: stelae.Database, zone: str | None) -> None:
        groups = [stelae.columns("g", {"v": "int64"})]
        db.create_table(LOADED, key={"k": "string"}, groups=groups, splits=[SPLIT], zone=zone, if_not_exists=True)

    # -- what the driver does

    def change(self, db: stelae.Database, ports: ProcessPorts) -> None:
        """One change, tried a few times; then it is left alone. The driver may be killed at any of its steps."""
        self._last += 1
        number, kind = self._last, ports.rng.below(4)
        for _ in range(1 + ports.rng.below(TRIES_MAX)):
            with suppress(Retryable, UnknownOutcome, Conflict):
                if kind == 3:
                    self._empty(db)
                else:
                    self._load(db, ports, number, replaces=kind == 2)
                return
            sleep(PAUSE_S * ports.rng.fraction())

    def _empty(self, db: stelae.Database) -> None:
        was_unsure, self.is_unsure = self.is_unsure, True
        try:
            txn = int(db.truncate_table(LOADED))
        except Retryable:
            self.is_unsure = was_unsure
            raise
        self.is_unsure = was_unsure
        self._note(txn, None)

    def _load(self, db: stelae.Database, ports: ProcessPorts, number: int, *, replaces: bool) -> None:
        store = backend_of(db)
        ticket = store.begin_load(store.find(LOADED).id, f"load {number}")
        if ticket.committed is None:
            self.begun.add(number)
            files = [written(ports.blobs, ticket, f"{at:02x}", {key: number}) for at, key in enumerate(KEYS)]
            txn = store.commit_load(ticket.ticket, files, replaces=replaces)
        else:
            txn = ticket.committed
        self.begun.discard(number)
        self._note(txn, number)

    def _note(self, txn: int, value: int | None) -> None:
        known = self.done.setdefault(txn, value)
        assert known == value, f"two changes happened at {txn}: {known} and {value}"

    # -- what others see

    def look(self, db: stelae.Database) -> None:
        last = max(self.done, default=0)
        with db.snapshot() as snapshot:
            seen = self._read(db, snapshot.txn)
            assert snapshot.txn >= last, f"the newest snapshot, {snapshot.txn}, lacks a change at {last}"
            self._keep(snapshot.txn, seen)

    @staticmethod
    def _read(db: stelae.Database, txn: int) -> Seen:
        with db.table(LOADED).scan(at=txn) as scan:
            found = {row["k"]: row["v"] for row in scan}
        return tuple(found.get(key) for key in KEYS)

    def _keep(self, txn: int, seen: Seen) -> None:
        assert len(set(seen)) == 1, f"at {txn} the rows have {seen}: half of a change"
        before = self.seen.setdefault(txn, seen)
        assert before == seen, f"at {txn} the rows had {before}, and have {seen}"

    # -- in the end

    def judge(self, db: stelae.Database) -> None:
        """All is healed: what became of loads that were left alone, and every snapshot once more."""
        store = backend_of(db)
        table = store.find(LOADED).id
        while self.begun:
            number = min(self.begun)
            with suppress(Retryable, UnknownOutcome):
                ticket = store.begin_load(table, f"load {number}")
                if ticket.committed is None:
                    store.release(ticket.ticket)  # nobody else comes for it: it never happens
                else:
                    self._note(ticket.committed, number)
                self.begun.discard(number)
                continue
            sleep(PAUSE_S)
        for txn in sorted({*self.seen, *self.done, *(txn - 1 for txn in self.done)}):
            self._keep_surely(db, txn)

    def _keep_surely(self, db: stelae.Database, txn: int) -> None:
        while True:
            with suppress(Retryable, UnknownOutcome):
                with suppress(SnapshotTooOld):
                    self._keep(txn, self._read(db, txn))
                return
            sleep(PAUSE_S)

    def check(self) -> None:
        """At each snapshot that was read the rows have what was done last before it."""
        for txn, seen in self.seen.items():
            expected = next((self.done[at] for at in sorted(self.done, reverse=True) if at <= txn), None)
            is_right = seen[0] == expected or (self.is_unsure and seen[0] is None)
            assert is_right, f"at {txn} the rows have {seen[0]}, and not {expected}: {self.done}"
