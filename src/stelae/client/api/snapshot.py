"""A moment of the whole database that stays readable for as long as it is held."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from stelae.client.api.handles import OfThisProcess
from stelae.model.errors import Closed
from stelae.model.hybrid import show_txn
from stelae.model.ids import Txn
from stelae.model.public import public
from stelae.service.backend import Pin


@public("Snapshot")
class Snapshot(OfThisProcess):
    """A pinned moment, to be given as `at=` to any read.

        with db.snapshot() as s:
            users.get("ann", at=s)

    Everything that was acknowledged before it was taken is in it, and nothing later. While it is open, no history that
    it needs is dropped; `close` lets go of it, as does leaving the `with`.
    """

    def __init__(self, pin: Pin) -> None:
        self._pin = pin
        self._is_closed = False

    @property
    def txn(self) -> Txn:
        """The snapshot as a number. `Closed` once it is let go: it may not be readable any more."""
        if self._is_closed:
            raise Closed(
                f"the snapshot of {show_txn(self._pin.txn)} is closed; at={self._pin.txn} may still be readable"
            )
        return self._pin.txn

    def __int__(self) -> int:
        return self.txn

    def __index__(self) -> int:
        return self.txn

    def close(self) -> None:
        """Let go of it. Closing twice is no error."""
        self._is_closed = True
        self._pin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._is_closed else ""
        return f"<Snapshot of {show_txn(self._pin.txn)}{state}>"
