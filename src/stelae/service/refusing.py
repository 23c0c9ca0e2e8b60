"""Stores that refuse: one that is closed refuses everything, one that is only read whatever would change it.

They are written out, so that a type checker says what is missing. A test holds what a read-only store refuses to the
table of operations.
"""

from __future__ import annotations

from typing import NoReturn

from stelae.model.errors import Closed, PermissionDenied
from stelae.service.backend import Backend


class ClosedStore:
    """Stands where a store was: whatever is asked of it raises Closed."""

    def __init__(self, place: str) -> None:
        self._place = place
        self.find = self._refuse
        self.info = self._refuse
        self.names = self._refuse
        self.spaces = self._refuse
        self.change_spaces = self._refuse
        self.create = self._refuse
        self.alter = self._refuse
        self.drop = self._refuse
        self.recall = self._refuse
        self.split = self._refuse
        self.join = self._refuse
        self.write = self._refuse
        self.submit = self._refuse
        self.wait_for_room = self._refuse
        self.truncate = self._refuse
        self.now = self._refuse
        self.newest = self._refuse
        self.newest_cached = self._refuse
        self.newest_many = self._refuse
        self.history = self._refuse
        self.scan = self._refuse
        self.pin = self._refuse
        self.flush = self._refuse
        self.compact = self._refuse
        self.tablets = self._refuse
        self.stats = self._refuse
        self.hold = self._refuse
        self.renew = self._refuse
        self.release = self._refuse
        self.begin_load = self._refuse
        self.commit_load = self._refuse
        self.begin_compaction = self._refuse
        self.adopt = self._refuse
        self.metrics = self._refuse
        self.check = self._refuse
        self.close = self._refuse

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise Closed(f"the database {self._place} is closed: open it again")

    @property
    def is_local(self) -> bool:
        self._refuse()

    @property
    def quick(self) -> None:
        self._refuse()

    @property
    def place(self) -> str:
        self._refuse()


class ReadOnlyStore:
    """Reads are the store's own methods; whatever would change it raises PermissionDenied before it begins."""

    def __init__(self, store: Backend) -> None:
        self.is_local = store.is_local
        self.quick = store.quick
        self.place = store.place
        self.find = store.find
        self.info = store.info
        self.names = store.names
        self.spaces = store.spaces
        self.change_spaces = self._refuse
        self.create = self._refuse
        self.alter = self._refuse
        self.drop = self._refuse
        self.recall = self._refuse
        self.split = self._refuse
        self.join = self._refuse
        self.write = self._refuse
        self.submit = self._refuse
        self.wait_for_room = store.wait_for_room
        self.truncate = self._refuse
        self.now = store.now
        self.newest = store.newest
        self.newest_cached = store.newest_cached
        self.newest_many = store.newest_many
        self.history = store.history
        self.scan = store.scan
        self.pin = store.pin
        self.flush = self._refuse
        self.compact = self._refuse
        self.tablets = store.tablets
        self.stats = store.stats
        self.hold = store.hold
        self.renew = store.renew
        self.release = store.release
        self.begin_load = self._refuse
        self.commit_load = self._refuse
        self.begin_compaction = self._refuse
        self.adopt = self._refuse
        self.metrics = store.metrics
        self.check = store.check
        self.close = store.close

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise PermissionDenied(f"the store {self.place} was opened read-only")
