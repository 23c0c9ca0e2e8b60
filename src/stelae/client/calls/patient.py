"""A store as programs use it that ask many things of it one by one: each operation is repeated by the session's own
loop while it fails for a while, until the session's deadline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from stelae.client.calls.session import Session
from stelae.service.backend import Backend
from stelae.service.deadlines import Deadline
from stelae.service.table import OPERATIONS

_NOT_REPEATED = ("scan", "unpin")
"""A scan goes on where it stopped (`calls.scans`); a pin lives as long as its connection."""


class PatientStore:
    """A store whose operations are repeated while they fail for a while, by a session, until its deadline."""

    def __init__(self, session: Session) -> None:
        self.place = session.place
        for name in OPERATIONS:
            if name not in _NOT_REPEATED:
                setattr(self, name, _by(session, name))


def _by(session: Session, name: str) -> Callable[..., Any]:
    def ask(*args: Any, deadline: Deadline | None = None, **kwargs: Any) -> Any:
        return session.ask(lambda backend, until: getattr(backend, name)(*args, deadline=deadline or until, **kwargs))

    return ask


def patient_store(session: Session) -> Backend:
    """The session's store, patiently."""
    return cast(Backend, PatientStore(session))
