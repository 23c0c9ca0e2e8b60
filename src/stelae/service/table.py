"""All operations of a store, by name: those that are defined in `operations` and `job_operations`, and who is asked for
each in a cluster: a master for what `TableService` has and for what changes many tablets at one txn, shards for the
rest. Tickets are renewed and released where they were given out."""

from __future__ import annotations

from typing import Any

from stelae.service import job_operations, operations
from stelae.service.backend import TableService
from stelae.service.operations import Operation

OPERATIONS: dict[str, Operation[Any, Any]] = {
    each.name: each
    for module in (operations, job_operations)
    for each in vars(module).values()
    if isinstance(each, Operation)
}

TABLE_OPERATIONS = {name: each for name, each in OPERATIONS.items() if hasattr(TableService, name)}
TABLET_OPERATIONS = {name: each for name, each in OPERATIONS.items() if name not in TABLE_OPERATIONS}

_CHANGES = ("truncate", "begin_load", "commit_load")
_TICKETS = ("renew", "release")
MASTER_OPERATIONS = TABLE_OPERATIONS | {name: OPERATIONS[name] for name in (*_CHANGES, *_TICKETS)}
SHARD_OPERATIONS = {name: each for name, each in TABLET_OPERATIONS.items() if name not in _CHANGES}
