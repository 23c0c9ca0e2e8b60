"""A master that cannot begin to lead says why, and keeps no other from leading."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import stelae
from stelae.master.leadership import MasterIdentity
from stelae.master.terms import Term, Terms
from stelae.model.errors import Corruption, Deposed, StelaeError, Unavailable, UnsupportedFormat
from stelae.model.events import Event, LeadingFailed
from stelae.ports.metastore import PutKey
from stelae.registry.masters.guard import HeldGuard
from stelae.registry.tablet_records import tablet_key
from stelae.sim.rng import SimRng
from tests.cluster_of_threads import Cluster
from tests.effort import HANG_S
from tests.master.servers import Office

LEASE_S = 4.0
NEWER = UnsupportedFormat("catalog version 7: of a newer release")
DAMAGED = Corruption("is damaged", "tablets/7")


class Candidate:
    """One of several masters. `trouble`: what it meets when it begins, the last one for ever; `knows_tables`: what it
    knows by then all the same."""

    def __init__(self, office: Office, name: str, *trouble: StelaeError, knows_tables: bool = False) -> None:
        self.told: list[Event] = []
        self._trouble = list(trouble)
        identity, lease_s = MasterIdentity(name, name), LEASE_S
        self._parts: Any = SimpleNamespace(
            start=self._start,
            knows_tables=knows_tables,
            knows_tablets=False,
            replication=None,
            history=SimpleNamespace(look_s=1_000.0),
            look_undisturbed=self._nothing,
        )
        clock = office.clock
        self.terms = Terms(office.store, clock, SimRng(1), identity, lease_s, self._term, office.loop, self.told.append)

    def _term(self, held: HeldGuard) -> Term:
        servers: Any = SimpleNamespace(end=lambda: None, close=self._nothing)
        changes: Any = SimpleNamespace(tend=self._nothing)
        nothing: Any = None
        return Term(held, self._parts, servers, changes, nothing, nothing, self.told.append)

    async def _start(self) -> None:
        if self._trouble:
            raise self._trouble.pop(0) if len(self._trouble) > 1 else self._trouble[0]
        self._parts.knows_tables = self._parts.knows_tablets = True

    async def _nothing(self, *_: object) -> None:
        return None

    def failures(self) -> list[str]:
        return [each.words for each in self.told if isinstance(each, LeadingFailed)]


@pytest.fixture
def office() -> Iterator[Office]:
    made = Office()
    yield made
    made.close()


def test_one_that_does_not_know_the_tables_says_why_and_lets_another_lead(office: Office) -> None:
    old, new = Candidate(office, "old", NEWER), Candidate(office, "new")

    async def story() -> None:
        await old.terms.start("old:1")
        why = r"could not begin \(UnsupportedFormat: .*newer release\), and has not read yet which tables there are"
        with pytest.raises(Unavailable, match=why):
            old.terms.check_tables()
        await new.terms.start("new:1")
        await asyncio.sleep(LEASE_S)
        new.terms.check_tables()
        new.terms.check_tablets()
        with pytest.raises(Deposed, match=r"new led last; this one gave up leading: .*newer release"):
            old.terms.check_tables()
        await asyncio.sleep(5 * LEASE_S)
        new.terms.check_tablets()
        await asyncio.gather(old.terms.close(), new.terms.close())

    office.run(story())
    assert old.failures() == ["UnsupportedFormat: catalog version 7: of a newer release"]
    assert not new.failures()


def test_one_that_is_alone_tries_again_after_a_while(office: Office) -> None:
    alone = Candidate(office, "alone", NEWER, Unavailable("not now"))

    async def story() -> None:
        await alone.terms.start("alone:1")
        await asyncio.sleep(LEASE_S)
        assert alone.terms.guard is None
        alone._trouble[:] = []
        await asyncio.sleep(3 * LEASE_S)
        alone.terms.check_tablets()
        await alone.terms.close()

    office.run(story())


def test_what_passes_is_waited_for_and_told_to_whoever_asks(office: Office) -> None:
    alone = Candidate(office, "alone", Unavailable("the metastore is away"))

    async def story() -> None:
        await alone.terms.start("alone:1")
        await asyncio.sleep(5 * LEASE_S)
        with pytest.raises(Unavailable, match=r"could not begin .Unavailable: the metastore is away"):
            alone.terms.check_tables()
        alone._trouble.clear()
        await asyncio.sleep(2.0)
        alone.terms.check_tablets()
        await alone.terms.close()

    office.run(story())
    assert not alone.failures()


def test_one_that_knows_the_tables_keeps_the_lead(office: Office) -> None:
    one = Candidate(office, "one", DAMAGED, knows_tables=True)

    async def story() -> None:
        await one.terms.start("one:1")
        await asyncio.sleep(5 * LEASE_S)
        one.terms.check_tables()
        with pytest.raises(Unavailable, match=r"Corruption: tablets/7: is damaged.*which tablets there are"):
            one.terms.check_tablets()
        await one.terms.close()

    office.run(story())
    assert one.failures() == ["Corruption: tablets/7: is damaged"]


def test_a_damaged_record_of_one_table_keeps_the_rows_of_others_from_nobody(tmp_path: Path) -> None:
    """Also from programs that come when the master has begun anew, and cannot read it."""
    with Cluster(tmp_path) as cluster:
        with stelae.connect(cluster.address, timeout_s=HANG_S) as db:
            for name in "ab":
                db.create_table(name, {"id": "int64"}, [stelae.columns("g", {"v": "int64"})]).put({"id": 1, "v": 2})
        assert cluster.master is not None
        master = cluster.master.master
        (damaged,) = [
            each for each in master._terms.master().maps.all() if master.catalog.latest.tables[each.table].name == "a"
        ]
        key = tablet_key(damaged.table, damaged.tablet)
        master._run(master._metastore.txn([], [PutKey(key, b"{")]))
        cluster.end_master()
        master = cluster.begin_master().master
        with pytest.raises(Unavailable, match=f"could not begin .Corruption: {key}"):
            master._terms.check_tablets()
        with stelae.connect(cluster.address, timeout_s=HANG_S) as db:
            assert db.table("b").get(1) == {"id": 1, "v": 2}
            with pytest.raises(stelae.Corruption, match=key):
                db.table("a").get(1)
            with pytest.raises(stelae.Corruption, match=key):
                db.create_table("c", {"id": "int64"}, [stelae.columns("g", {"v": "int64"})])
