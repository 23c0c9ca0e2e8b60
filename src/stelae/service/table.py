"""All operations of a store, by name."""

from __future__ import annotations

from typing import Any

from stelae.service import job_operations as j
from stelae.service import operations as o
from stelae.wire.messages import Messages

OPERATIONS: dict[str, o.Operation[Any, Any]] = {
    operation.name: operation
    for operation in (
        *(o.FIND, o.INFO, o.NAMES, o.SPACES, o.CHANGE_SPACES, o.CREATE, o.ALTER, o.DROP, o.RECALL, o.SPLIT, o.JOIN),
        *(o.WRITE, o.TRUNCATE, o.NOW, o.NEWEST, o.NEWEST_MANY, o.HISTORY, o.SCAN, o.PIN, o.UNPIN),
        *(o.FLUSH, o.COMPACT, o.TABLETS, o.STATS, o.METRICS, o.CHECK),
        *(j.HOLD, j.RENEW, j.RELEASE, j.BEGIN_LOAD, j.COMMIT_LOAD, j.BEGIN_COMPACTION, j.ADOPT),
    )
}

STORE_MESSAGES = Messages(operation.method for operation in OPERATIONS.values())
