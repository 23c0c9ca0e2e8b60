"""A store that is only read: whatever would change it is refused before it begins."""

from __future__ import annotations

from typing import Any, NoReturn, cast

from stelae.model.errors import PermissionDenied
from stelae.service.backend import Backend

REFUSED = (
    "create",
    "alter",
    "drop",
    "recall",
    "truncate",
    "change_spaces",
    "write",
    "submit",
    "flush",
    "compact",
    "split",
    "join",
    "begin_load",
    "commit_load",
    "begin_compaction",
    "adopt",
)


class _ReadOnly:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        for name in REFUSED:
            setattr(self, name, self._refuse)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise PermissionDenied(f"the store {self._backend.place} was opened read-only")


def read_only(backend: Backend) -> Backend:
    """The same store, without what changes it."""
    return cast(Backend, _ReadOnly(backend))
