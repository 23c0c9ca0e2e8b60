"""What one process has to itself on a metastore: nobody else changes it, so what is written there compares no more.

That holds of a part whose every transaction is refused once another process has taken this one's place, and of a whole
store that one process has open. Functions that write without a compare of their own ask for an `OwnStore`, so that
nobody hands them another one.
"""

from __future__ import annotations

from stelae.ports.metastore import Metastore
from stelae.registry.views.compared import ComparedStore
from stelae.registry.views.prefixed import PrefixedStore


class OwnStore(PrefixedStore):
    """A `Metastore`, or a part of one, that one process has to itself: made as one of those below."""


class OwnPart(OwnStore):
    """Of a metastore that many share: changed by one who compares that nobody has followed it."""

    def __init__(self, store: ComparedStore, prefix: str) -> None:
        super().__init__(store, prefix)


class OwnWhole(OwnStore):
    """All of a metastore: of a store in a directory, which the process that has it open has locked."""

    def __init__(self, store: Metastore) -> None:
        super().__init__(store, "")
