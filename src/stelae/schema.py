"""What a table's schema is made of: the values in `users.schema`, to be read.

users.schema.key          # (KeyColumn(id=1, name='id', type=String()),)
users.schema.groups[0]    # a ColumnsGroup or a CellsGroup

Tables are made and altered with texts ("int32 not null"); the text of each of these values is how it is declared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stelae.model.purge import AllOf, AnyOf, MaxAge, MaxHistory, PastPolicy
    from stelae.model.schema import CellsGroup, Column, ColumnsGroup, Family, GroupOptions, KeyColumn
    from stelae.model.types import (
        Array,
        Binary,
        Bool,
        Date,
        Decimal,
        Float,
        Int,
        Map,
        String,
        Struct,
        Timestamp,
        TimestampNtz,
        Vector,
    )

__all__ = [
    "AllOf",
    "AnyOf",
    "Array",
    "Binary",
    "Bool",
    "CellsGroup",
    "Column",
    "ColumnsGroup",
    "Date",
    "Decimal",
    "Family",
    "Float",
    "GroupOptions",
    "Int",
    "KeyColumn",
    "Map",
    "MaxAge",
    "MaxHistory",
    "PastPolicy",
    "String",
    "Struct",
    "Timestamp",
    "TimestampNtz",
    "Vector",
]

# The package imports this module at once, so that whoever pickles one of these values finds its class by name; what
# defines them is imported when it is first used.
_HOMES = {
    "AllOf": "stelae.model.purge",
    "AnyOf": "stelae.model.purge",
    "Array": "stelae.model.types",
    "Binary": "stelae.model.types",
    "Bool": "stelae.model.types",
    "CellsGroup": "stelae.model.schema",
    "Column": "stelae.model.schema",
    "ColumnsGroup": "stelae.model.schema",
    "Date": "stelae.model.types",
    "Decimal": "stelae.model.types",
    "Family": "stelae.model.schema",
    "Float": "stelae.model.types",
    "GroupOptions": "stelae.model.schema",
    "Int": "stelae.model.types",
    "KeyColumn": "stelae.model.schema",
    "Map": "stelae.model.types",
    "MaxAge": "stelae.model.purge",
    "MaxHistory": "stelae.model.purge",
    "PastPolicy": "stelae.model.purge",
    "String": "stelae.model.types",
    "Struct": "stelae.model.types",
    "Timestamp": "stelae.model.types",
    "TimestampNtz": "stelae.model.types",
    "Vector": "stelae.model.types",
}

if not TYPE_CHECKING:  # who checks types knows all names, and finds misspelt ones

    def __getattr__(name: str) -> Any:
        from importlib import import_module

        if name not in _HOMES:
            raise AttributeError(f"module 'stelae.schema' has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
