"""All operations of a store, by name: those that are defined in `operations` and `job_operations`."""

from __future__ import annotations

from typing import Any

from stelae.service import job_operations, operations
from stelae.service.operations import Operation
from stelae.wire.messages import Messages

OPERATIONS: dict[str, Operation[Any, Any]] = {
    each.name: each
    for module in (operations, job_operations)
    for each in vars(module).values()
    if isinstance(each, Operation)
}

STORE_MESSAGES = Messages(operation.method for operation in OPERATIONS.values())
