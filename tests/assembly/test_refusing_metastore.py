"""Changes of tables where the metastore refuses: on a disk that is full or broken, and for longer than a caller waits.

All in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from stelae.assembly.embedded import EmbeddedStore
from stelae.model.declare import columns, declare
from stelae.model.errors import DiskFailed, DiskFull, StelaeError, Unavailable, UnknownOutcome
from stelae.service.deadlines import Deadline
from stelae.service.spaces import AlterZoneAsk, CreateNamespaceAsk, CreateZoneAsk, DropNamespaceAsk, DropZoneAsk
from stelae.service.tables import AlterAsk, CreateAsk
from tests.assembly.scripts import SCHEMA, row
from tests.assembly.worlds import Machine

Change = Callable[[EmbeddedStore, Deadline | None], object]

CHANGES: dict[str, Change] = {
    "create": lambda store, until: store.create(CreateAsk("new", SCHEMA, cuts=(row(5),)), deadline=until),
    "create in a namespace": lambda store, until: store.create(CreateAsk("far.new", SCHEMA), deadline=until),
    "add": lambda store, until: store.alter("t", AlterAsk(add={"data": {"c": "int32"}}), deadline=until),
    "rename": lambda store, until: store.alter("t", AlterAsk(rename="other"), deadline=until),
    "comment": lambda store, until: store.alter("t", AlterAsk(properties={"comment": "words"}), deadline=until),
    "drop": lambda store, until: store.drop("t", deadline=until),
    "recall": lambda store, until: store.recall("gone", deadline=until),
    "split": lambda store, until: store.split(store.find("t").id, row(3), deadline=until),
    "join": lambda store, until: store.join(store.find("t").id, row(5), deadline=until),
    "create namespace": lambda store, until: store.change_spaces(CreateNamespaceAsk("more"), deadline=until),
    "drop namespace": lambda store, until: store.change_spaces(DropNamespaceAsk("empty"), deadline=until),
    "create zone": lambda store, until: store.change_spaces(CreateZoneAsk("fast"), deadline=until),
    "alter zone": lambda store, until: store.change_spaces(AlterZoneAsk("cold", tablet_bytes=2**26), deadline=until),
    "drop zone": lambda store, until: store.change_spaces(DropZoneAsk("cold"), deadline=until),
}


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine(1)
    yield made
    made.end("kill")


def opened(machine: Machine) -> EmbeddedStore:
    store = machine.open()
    store.create(CreateAsk("t", SCHEMA, cuts=(row(5),)))
    store.create(CreateAsk("gone", declare({"id": "int64"}, [columns("data", {"a": "int32"})])))
    store.drop("gone")
    store.change_spaces(CreateNamespaceAsk("empty"))
    store.change_spaces(CreateZoneAsk("cold"))
    return store


def known(store: EmbeddedStore) -> object:
    return store.names(), store.spaces(), store.find("t"), store.tablets(store.find("t").id)


@pytest.mark.parametrize("error", [DiskFull, DiskFailed])
@pytest.mark.parametrize("change", CHANGES)
def test_a_disk_that_takes_nothing_is_told_at_once(machine: Machine, change: str, error: type[StelaeError]) -> None:
    store = opened(machine)
    before, tried, begun_s = known(store), machine.metastore.tried, machine.clock.monotonic_s()
    machine.metastore.refuses = error
    for _ in range(2):  # the second time, after one that failed
        with pytest.raises(error):
            CHANGES[change](store, None)
    assert machine.clock.monotonic_s() - begun_s < 0.01, "it waited for what does not mend itself"
    assert machine.metastore.tried - tried <= 3
    assert known(store) == before
    machine.metastore.refuses = None
    CHANGES[change](store, None)


@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_tried_again_until_the_deadline(machine: Machine, change: str) -> None:
    store = opened(machine)
    machine.metastore.refuses = Unavailable
    begun_s = machine.clock.monotonic_s()
    with pytest.raises(Unavailable):
        CHANGES[change](store, Deadline(machine.clock, 2.0))
    assert machine.clock.monotonic_s() - begun_s <= 2.01
    machine.metastore.refuses = None
    CHANGES[change](store, Deadline(machine.clock, 2.0))


@pytest.mark.parametrize("error", [DiskFull, Unavailable])
def test_who_does_not_know_goes_on_looking_until_the_deadline(machine: Machine, error: type[StelaeError]) -> None:
    store = opened(machine)
    machine.metastore.faults.arm("txn", UnknownOutcome, 1)
    machine.metastore.refuses = error
    begun_s = machine.clock.monotonic_s()
    with pytest.raises(UnknownOutcome):
        store.alter("t", AlterAsk(rename="other"), deadline=Deadline(machine.clock, 2.0))
    assert 1.9 < machine.clock.monotonic_s() - begun_s <= 2.01


def test_a_change_without_time_is_tried_once(machine: Machine) -> None:
    store = opened(machine)
    store.alter("t", AlterAsk(rename="other"), deadline=Deadline(machine.clock, 0.0))
    machine.metastore.refuses, tried = Unavailable, machine.metastore.tried
    with pytest.raises(Unavailable):
        store.alter("other", AlterAsk(rename="t"), deadline=Deadline(machine.clock, 0.0))
    assert machine.metastore.tried == tried + 1


def test_tablets_that_cannot_be_made_say_that_the_disk_is_full(machine: Machine) -> None:
    store = machine.open()
    machine.disk.fail("append", DiskFull)
    with pytest.raises(DiskFull, match="1 tablet is recorded, and made before the next change"):
        store.create(CreateAsk("t", SCHEMA))
    assert [table.name for table in [store.create(CreateAsk("t", SCHEMA, if_not_exists=True))]] == ["t"]
    assert len(store.tablets(store.find("t").id)) == 1
