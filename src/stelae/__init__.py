"""Stelae: a tablet store for Python and Spark.

import stelae

with stelae.open("data") as db:
    db.create_table("users", key={"id": "string"}, groups=[stelae.columns("profile", {"name": "string"})])
    users = db.table("users")
    users.put({"id": "ann", "name": "Ann"})
    users.get("ann")
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stelae import schema
from stelae.model.errors import (
    AlreadyExists,
    ClockTooFarAhead,
    Closed,
    Conflict,
    ConnectionLost,
    Corruption,
    DeadlineExceeded,
    DiskFailed,
    DiskFull,
    InternalFault,
    InvalidArgument,
    InvalidPredicate,
    InvalidSchema,
    JobFailed,
    NotFound,
    OtherStore,
    Overloaded,
    PartialWrite,
    PermissionDenied,
    ProtocolError,
    Retryable,
    SchemaChanged,
    SnapshotTooOld,
    StelaeError,
    TokenMissing,
    TooMuchAtOnce,
    Unavailable,
    UnknownOutcome,
    UnsupportedFormat,
    WrongToken,
    nearest,
)

if TYPE_CHECKING:
    from stelae import aio
    from stelae.client.api.batch import Batch
    from stelae.client.api.database import Database
    from stelae.client.api.display import Description
    from stelae.client.api.rows import Row, Version
    from stelae.client.api.scan import Scan
    from stelae.client.api.snapshot import Snapshot
    from stelae.client.api.table import Table
    from stelae.model.declare import cells, columns
    from stelae.model.predicate.build import col
    from stelae.model.schema import TableSchema
    from stelae.service.reports import CheckReport, Problem
    from stelae.service.spaces import ZoneInfo
    from stelae.service.tables import TableStats, TabletInfo

__version__ = "0.1.0.dev0"

__all__ = [
    "AlreadyExists",
    "Batch",
    "CheckReport",
    "ClockTooFarAhead",
    "Closed",
    "Conflict",
    "ConnectionLost",
    "Corruption",
    "Database",
    "DeadlineExceeded",
    "Description",
    "DiskFailed",
    "DiskFull",
    "InternalFault",
    "InvalidArgument",
    "InvalidPredicate",
    "InvalidSchema",
    "JobFailed",
    "NotFound",
    "OtherStore",
    "Overloaded",
    "PartialWrite",
    "PermissionDenied",
    "Problem",
    "ProtocolError",
    "Retryable",
    "Row",
    "Scan",
    "SchemaChanged",
    "Snapshot",
    "SnapshotTooOld",
    "StelaeError",
    "Table",
    "TableSchema",
    "TableStats",
    "TabletInfo",
    "TokenMissing",
    "TooMuchAtOnce",
    "Unavailable",
    "UnknownOutcome",
    "UnsupportedFormat",
    "Version",
    "WrongToken",
    "ZoneInfo",
    "aio",
    "cells",
    "col",
    "columns",
    "connect",
    "open",
    "schema",
]

# Imported when they are first used: `import stelae` alone is quick.
_HOMES = {
    "Batch": "stelae.client.api.batch",
    "CheckReport": "stelae.service.reports",
    "Database": "stelae.client.api.database",
    "Description": "stelae.client.api.display",
    "Problem": "stelae.service.reports",
    "Row": "stelae.client.api.rows",
    "Scan": "stelae.client.api.scan",
    "Snapshot": "stelae.client.api.snapshot",
    "Table": "stelae.client.api.table",
    "TableSchema": "stelae.model.schema",
    "TableStats": "stelae.service.tables",
    "TabletInfo": "stelae.service.tables",
    "Version": "stelae.client.api.rows",
    "ZoneInfo": "stelae.service.spaces",
    "cells": "stelae.model.declare",
    "col": "stelae.model.predicate.build",
    "columns": "stelae.model.declare",
}

if not TYPE_CHECKING:  # who checks types knows all names, and finds misspelt ones

    def __getattr__(name: str) -> Any:
        from importlib import import_module

        if name == "aio":
            return import_module("stelae.aio")
        if name not in _HOMES:
            hint = nearest(name, __all__)
            raise AttributeError(f"module 'stelae' has no attribute {name!r}{hint}")
        found = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


def open(  # noqa: A001 - the package is where this name belongs
    path: str | os.PathLike[str],
    *,
    store: str | os.PathLike[str] | None = None,
    memory_bytes: int | None = None,
    read_only: bool = False,
    timeout_s: float = 30.0,
    create: bool = True,
) -> Database:
    """Open the database in a directory, which is made if it is not there; with `create=False`, `NotFound` if it is not.

        with stelae.open("data") as db:
            db.tables()

    `~` in the path is the user's home. `store` says where a new database keeps its fragments, its data proper:
    `s3://bucket/prefix`, `file:///dir` or a path; by default the directory. It is remembered, and need not be said
    again. `memory_bytes` bounds what the store keeps in memory. `read_only` refuses everything that writes.
    `timeout_s` is how long a call may take: until then it is tried again while the store is overloaded, or
    something is not there.
    """
    from stelae.adapters.pandas_later import leave_pandas_for_later

    leave_pandas_for_later()
    from stelae.adapters.clock import SystemClock
    from stelae.adapters.rng import SystemRng
    from stelae.client.api.database import Database
    from stelae.client.calls.retries import Patience
    from stelae.launch.embedded import open_session

    patience = Patience(SystemClock(), SystemRng(), timeout_s)
    return Database(
        open_session(
            path,
            patience,
            store=store,
            memory_bytes=memory_bytes,
            read_only=read_only,
            create=create,
            release=__version__,
        )
    )


def connect(
    masters: str,
    *,
    token: str | None = None,
    tls: Mapping[str, str | os.PathLike[str]] | bool | None = None,
    timeout_s: float = 30.0,
) -> Database:
    """Connect to a cluster: one or more masters as `host:port`, comma-separated.

        with stelae.connect("localhost:7100") as db:
            db.tables()

    The same database as `open` gives. `token` is the cluster's, if it has one: it is proved, and never sent. By default
    it is that of STELAE_TOKEN, or of the file STELAE_TOKEN_FILE. `tls` names PEM files: `{"ca": "ca.pem"}` of who
    signed the servers' certificates, and `cert` and `key` of this program's own if the servers want one; True trusts
    whom the system trusts; False speaks no TLS. By default the files are those of STELAE_TLS_CA, STELAE_TLS_CERT and
    STELAE_TLS_KEY. `timeout_s` is how long a call may take, this one included: until then it is tried again while
    nobody answers. `PermissionDenied` says what keeps this program out.
    """
    from stelae.adapters.pandas_later import leave_pandas_for_later

    leave_pandas_for_later()
    from stelae.adapters.clock import SystemClock
    from stelae.adapters.rng import SystemRng
    from stelae.client.api.database import Database
    from stelae.client.calls.retries import Patience
    from stelae.launch.access import find_access
    from stelae.launch.connecting import connect_session

    patience = Patience(SystemClock(), SystemRng(), timeout_s)
    return Database(connect_session(masters, patience, access=find_access(token, tls), release=__version__))
