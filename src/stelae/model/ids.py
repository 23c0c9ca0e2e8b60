"""Identifiers: numbers and strings that the type checker keeps apart."""

from __future__ import annotations

from typing import NewType

TableId = NewType("TableId", int)
TabletId = NewType("TabletId", int)
GroupId = NewType("GroupId", int)
ColumnId = NewType("ColumnId", int)
SchemaVersion = NewType("SchemaVersion", int)
Epoch = NewType("Epoch", int)

Index = NewType("Index", int)
"""The place of a record among those of its tablet: 1, 2, 3..."""

ClientId = NewType("ClientId", int)
Sequence = NewType("Sequence", int)

Row = NewType("Row", bytes)
"""The encoded key: sorts as the typed key tuple does."""

Txn = NewType("Txn", int)
"""A hybrid timestamp: when a commit happened, unique and growing per tablet. See `hybrid`."""

Micros = NewType("Micros", int)
"""The user's time: microseconds since 1970-01-01 UTC."""

TS_MIN = Micros(-62_135_596_800_000_000)
TS_MAX = Micros(253_402_300_799_999_999)
"""User times lie in the years 1 to 9999, so that every reader of a fragment can show them."""
