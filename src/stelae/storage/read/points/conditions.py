"""What conditional writes are let in by: that their rows did not change after a snapshot, and that what they write will
be seen."""

from __future__ import annotations

from stelae.format.block import Block
from stelae.model.errors import Conflict, WouldBeHidden
from stelae.model.hybrid import TXN_MIN, micros_of, show_txn
from stelae.model.ids import TS_MIN, Row, Txn
from stelae.storage.files.fragments import Fragments
from stelae.storage.memory.insertion import rows_in
from stelae.storage.read.points.rows import last_txn
from stelae.storage.tablet.state import TabletState


class UndecidedConflict(Conflict):
    """The change at `txn` is not on disk yet, and a crash may take it back: nobody is told of it. To be asked again
    once it is decided."""

    def __init__(self, message: str, txn: Txn) -> None:
        super().__init__(message)
        self.txn = txn


def check_unchanged(
    state: TabletState,
    fragments: Fragments | None,
    block: Block,
    max_txn: Txn,
    horizon: Txn,
    visible: Txn,
) -> None:
    """Conflict if a row of the block changed after `max_txn`. `visible` was taken before the state: whatever is at or
    below it is on disk. Without `fragments`, only what is in memory is looked at."""
    horizon = max(horizon, state.purged_below)
    if max_txn < horizon:
        raise Conflict(
            f"it was read at {show_txn(max_txn)}, before the history that is kept, which begins at {show_txn(horizon)}"
        )
    if state.floors and state.floors[-1] > max_txn:
        raise _conflict(
            f"the table was emptied at {show_txn(state.floors[-1])}, after {show_txn(max_txn)}",
            state.floors[-1],
            visible,
        )
    for row in rows_in(block, state.active):
        latest = max((memory.last_txn(Row(row)) for memory in state.memories), default=TXN_MIN)
        if latest <= max_txn and fragments is not None:
            latest = last_txn(state, fragments, Row(row), max_txn)
        if latest > max_txn:
            raise _conflict(f"it changed at {show_txn(latest)}, after {show_txn(max_txn)}", latest, visible)


def check_shown(state: TabletState, txn: Txn) -> None:
    """WouldBeHidden if the tablet has a version with a later time than a commit at the txn, whatever row it is of."""
    files = (ref.file for _, refs in state.groups for ref in refs if ref.file is not None)
    in_files = max((max(file.stats.ts_max, file.ts or TS_MIN) for file in files), default=TS_MIN)
    latest = max([in_files, *[memory.ts_max for memory in state.memories]])
    if latest > micros_of(txn):
        raise WouldBeHidden(f"tablet {state.tablet} has versions with times up to {latest}, after {micros_of(txn)}")


def _conflict(words: str, txn: Txn, visible: Txn) -> Conflict:
    return Conflict(words) if txn <= visible else UndecidedConflict(words, txn)
