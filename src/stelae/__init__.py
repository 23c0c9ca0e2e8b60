"""Stelae: a tablet store for Python and Spark."""

from stelae.model.declare import cells, columns
from stelae.model.errors import (
    AlreadyExists,
    Closed,
    Conflict,
    Corruption,
    InvalidArgument,
    InvalidSchema,
    NotFound,
    Overloaded,
    PartialWrite,
    PermissionDenied,
    Retryable,
    SnapshotTooOld,
    StelaeError,
    Unavailable,
)
from stelae.model.predicate.build import col

__version__ = "0.1.0.dev0"

__all__ = [
    "AlreadyExists",
    "Closed",
    "Conflict",
    "Corruption",
    "InvalidArgument",
    "InvalidSchema",
    "NotFound",
    "Overloaded",
    "PartialWrite",
    "PermissionDenied",
    "Retryable",
    "SnapshotTooOld",
    "StelaeError",
    "Unavailable",
    "cells",
    "col",
    "columns",
]
