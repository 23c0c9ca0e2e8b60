"""Changes of a table that are prepared in tablets here and decided elsewhere: whoever reads, or writes on a condition,
at a txn at which such a change may have happened already is *in doubt*, and finds out first.

Of each change a *floor* may be known: it does not happen at or below it. While a change is prepared here, everything up
to its floor is certain; what lies above is not. A floor that is not known is that of the beginning of time.
"""

from __future__ import annotations

from collections.abc import Mapping

from stelae.model.errors import Unavailable
from stelae.model.hybrid import TXN_MIN, show_txn
from stelae.model.ids import TableId, Txn


class ChangeInDoubt(Unavailable):
    """Whether a change of the table happens at or below `txn` has to be found out first; nothing was written."""

    def __init__(self, message: str, txn: Txn) -> None:
        super().__init__(message)
        self.txn = txn


class Doubts:
    """Of one shard. Floors are noted and forgotten under the shard's lock; reading them takes none."""

    def __init__(self, unsettled: Mapping[TableId, tuple[str, ...]]) -> None:
        """`unsettled`: the changes that are prepared in tablets of each table, as the shard keeps it."""
        self.is_decided_here = True
        """Whether all that is prepared is decided by this shard's own log: then nobody is ever in doubt."""
        self._unsettled = unsettled
        self._floors: dict[str, Txn] = {}

    def about(self, table: TableId, at: Txn) -> tuple[str, ...]:
        """The changes of the table that may happen, or have happened, at or below the txn."""
        if self.is_decided_here:
            return ()
        return tuple(each for each in self._unsettled.get(table, ()) if at > self._floors.get(each, TXN_MIN))

    def check(self, table: TableId, at: Txn) -> None:
        """ChangeInDoubt if anything may happen at or below the txn."""
        if changes := self.about(table, at):
            raise ChangeInDoubt(
                f"whether change {changes[0]!r} of table {table} happens before {show_txn(at)} is not known here yet; "
                "try again",
                at,
            )

    def note_floor(self, change: str, floor: Txn) -> None:
        """The change does not happen at or below the floor."""
        self._floors[change] = max(floor, self._floors.get(change, TXN_MIN))

    def forget(self, change: str) -> None:
        """The change was committed or aborted: it raises doubts no more."""
        self._floors.pop(change, None)
