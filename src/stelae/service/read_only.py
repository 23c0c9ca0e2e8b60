"""A store that is only read: whatever would change it is refused before it begins. The table says what that is."""

from __future__ import annotations

from typing import NoReturn, cast

from stelae.model.errors import PermissionDenied
from stelae.service.backend import Backend
from stelae.service.table import OPERATIONS

_BESIDES = ("is_local", "quick", "place", "newest_cached", "wait_for_room", "close")
"""What a store has that is no operation."""


class ReadOnlyStore:
    """Each operation is the store's own, or refused."""

    def __init__(self, store: Backend) -> None:
        self._store = store
        own = [name for name, operation in OPERATIONS.items() if not operation.changes and name != "unpin"]
        for name in (*own, *_BESIDES):
            setattr(self, name, getattr(store, name))
        for name in (*(name for name, operation in OPERATIONS.items() if operation.changes), "submit"):
            setattr(self, name, self._refuse)

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise PermissionDenied(f"the store {self._store.place} was opened read-only")


def read_only(store: Backend) -> Backend:
    """The same store, without what changes it."""
    return cast(Backend, ReadOnlyStore(store))
