"""The lives of tables on a machine that refuses now and then: a full disk, a failed sync, a metastore that is away.

The same script as with crashes, but each time one effect fails instead, and whoever asked asks again. In the end all is
as if nothing had failed.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stelae.assembly.embedded import EmbeddedStore
from stelae.model.errors import (
    AlreadyExists,
    DiskFailed,
    DiskFull,
    InvalidArgument,
    InvalidSchema,
    NotFound,
    PartialWrite,
    Retryable,
    StelaeError,
    Unavailable,
    UnknownOutcome,
)
from stelae.sim.effects import Faults
from tests.assembly.scripts import SCRIPT, PlainStore, Step, check_store, check_whole
from tests.assembly.worlds import Machine
from tests.effort import tries

FAULTS: dict[str, tuple[Callable[[Machine, int], None], int]] = {
    "sync": (lambda machine, nth: machine.disk.fail("sync", DiskFailed, nth), 110),
    "append": (lambda machine, nth: machine.disk.fail("append", DiskFull, nth), 110),
    "segment": (lambda machine, nth: machine.disk.fail("create", DiskFull, nth), 50),
    "file": (lambda machine, nth: machine.blobs.fail("commit", DiskFull, nth), 60),
    "file-unknown": (lambda machine, nth: machine.blobs.fail("commit", Unavailable, nth), 60),
    "delete": (lambda machine, nth: machine.blobs.fail("delete", Unavailable, nth), 40),
    "read": (lambda machine, nth: machine.blobs.fail("open", Unavailable, nth), 40),
    "txn": (lambda machine, nth: machine.metastore.faults.arm("txn", Unavailable, nth), 60),
    "answer": (lambda machine, nth: machine.metastore.faults.arm("answer", UnknownOutcome, nth), 60),
}
"""How to let the nth of something fail, and about how many there are."""

ATTEMPTS_MAX = 4
DONE = (AlreadyExists, InvalidArgument, InvalidSchema, NotFound)
"""What is said of something that has happened already."""


def insist(machine: Machine, store: EmbeddedStore, step: Step) -> list[StelaeError]:
    """Until it is done; what was said meanwhile."""
    said: list[StelaeError] = []
    for _ in range(ATTEMPTS_MAX):
        try:
            step.act(machine, store)
        except DONE:
            if not said:
                raise
            return said
        except (Retryable, UnknownOutcome, PartialWrite) as error:
            said.append(error)
            if store.master.has_work:
                store.world.loop.run(store.master.tend())
        else:
            return said
    raise said[-1]


def run_with(fault: str, nth: int) -> int:
    machine = Machine(nth)
    store = machine.open()
    FAULTS[fault][0](machine, nth)
    plain, said = PlainStore(), 0
    for step in SCRIPT[:-1]:
        said += len(insist(machine, store, step))
        plain = step.then(plain)
    check_store(store, plain, plain, by_row=False)
    if store.master.has_work:
        store.world.loop.run(store.master.tend())
    check_whole(machine, store, replaced=True)
    machine.end("kill")
    machine.disk._faults = Faults()
    machine.blobs._faults = Faults()
    store = machine.open()
    check_store(store, plain, plain, by_row=False)
    check_whole(machine, store)
    store.close()
    machine.end("closed")
    return said


@pytest.mark.parametrize("fault", FAULTS)
def test_one_thing_fails(fault: str) -> None:
    count = FAULTS[fault][1]
    for nth in range(1, count, max(1, count // tries(3))):
        try:
            run_with(fault, nth)
        except Exception as error:
            error.add_note(f"with fault {fault!r} at number {nth}")
            raise


def test_faults_are_noticed() -> None:
    """A failed sync is somebody's error, and asking again is what mends it."""
    assert run_with("sync", 12) > 0
    assert run_with("txn", 20) > 0
