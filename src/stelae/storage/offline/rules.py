"""The rules of a table that are checked before a frame of rows is read, in the words that a put is refused with."""

from __future__ import annotations

from stelae.storage.checks.rules import missing_column, required_columns, shown_row

__all__ = ["missing_column", "required_columns", "shown_row"]
