"""What is asked of a table by its name: one deadline for finding it and for the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from stelae.client.calls.steps import Ask, Steps
from stelae.model.ids import TableId
from stelae.service.backend import Backend
from stelae.service.deadlines import Deadline
from stelae.service.tables import TableInfo

T = TypeVar("T")


def of_named(name: str, job: Callable[[Backend, TableId, Deadline], T]) -> Steps[tuple[TableInfo, T]]:
    """The table of that name, and what the job gives for it. Each is repeated on its own."""
    info: TableInfo = yield Ask(lambda backend, until: backend.find(name, deadline=until))
    found: T = yield Ask(lambda backend, until: job(backend, info.id, until))
    return info, found
