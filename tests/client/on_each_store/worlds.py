"""A backend that fails now and then, and counts what it is asked."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import stelae
from stelae.client.calls.session import Session
from stelae.service.backend import Backend


class FailingBackend:
    """Passes everything on, after raising the errors that are planned for a call."""

    def __init__(self, behind: Backend) -> None:
        self.behind = behind
        self.plans: dict[str, list[stelae.StelaeError]] = defaultdict(list)
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.behind, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            if self.plans[name]:
                raise self.plans[name].pop(0)
            return found(*args, **kwargs)

        return call


def put_before(database: stelae.Database) -> FailingBackend:
    """From now on, the database asks this backend."""
    failing: Any = FailingBackend(database._session.backend)
    take_place(database._session, failing)
    found: FailingBackend = failing
    return found


def take_place(session: Session, backend: Any) -> None:
    """The session asks this backend, also after looking for a store that other processes have."""
    session.backend = backend
    finder: Any = session._finder
    if finder is not None:
        finder._current = backend
