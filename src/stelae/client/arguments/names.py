"""What a name of a user's means: a key column, a value column, a cell, or a family.

A name is looked for exactly first, then without regard to case: names of key columns, columns and families share one
space in which case does not count, so at most one is meant. `family:qualifier` is split at the first colon; the family
is found as other names are, the qualifier stands for itself. A family that is not declared belongs to the wildcard, if
there is one, and may not have the name of a column.
"""

from __future__ import annotations

from typing import TypeAlias

from stelae.model.errors import InvalidArgument, nearest
from stelae.model.limits import DEFAULT_LIMITS, Limits
from stelae.model.mutation import Cell, WholeFamily
from stelae.model.schema import WILDCARD, CellsGroup, Column, ColumnsGroup, KeyColumn, TableSchema
from stelae.model.types import String
from stelae.model.values import coerce, show
from stelae.storage.checks.rules import check_family, check_size

_Declared: TypeAlias = KeyColumn | Column | WholeFamily
Meaning: TypeAlias = _Declared | Cell

OTHER_CELLS = WholeFamily(WILDCARD)
"""All families of the wildcard: what it maps is `family:qualifier` to bytes."""

_TEXT = String()


_MET_MAX = 10_000


class Names:
    """The names of one table: each is looked up once. May be kept, and used by many threads; of the names of cells,
    which have no end, it keeps a bounded number."""

    def __init__(self, schema: TableSchema, limits: Limits = DEFAULT_LIMITS) -> None:
        self.schema = schema
        self.limits = limits
        self._met: dict[str, Meaning] = {}
        self._folded: dict[str, _Declared] | None = None

    def meaning(self, name: object) -> Meaning:
        """InvalidArgument, with the nearest name, if there is no such thing. `click` alone is the family, `click:` its
        cell with an empty qualifier."""
        if not isinstance(name, str):
            raise InvalidArgument(f"the name of a column is text, not {show(name)}")
        found = self._met.get(name)
        if found is None:
            found = self._found(name)
            if len(self._met) >= _MET_MAX:
                self._met = {}
            self._met[name] = found
        return found

    def cell(self, name: object) -> Cell:
        """Of a name that can only be a cell's."""
        if not isinstance(name, str) or ":" not in name:
            raise InvalidArgument(f"{show(name)} is no cell: it is called family:qualifier")
        found = self.meaning(name)
        if not isinstance(found, Cell):
            raise InvalidArgument(f"{show(name)} is no cell")
        return found

    def family(self, name: str) -> str:
        """The family as it is declared; or as it is named, if it is the wildcard's."""
        try:
            group = self.schema.family_group(name)
        except InvalidArgument:
            group = None
        if group is not None and not group.wildcard:
            return name
        match self._without_case().get(name.casefold()):
            case WholeFamily(declared):
                return declared
            case KeyColumn() | Column() as column:
                raise InvalidArgument(f"family {name!r}: {column.name!r} is a column, and no family")
            case _ if group is None:
                families = [each.family for each in self._without_case().values() if isinstance(each, WholeFamily)]
                raise InvalidArgument(f"no family {name!r}{nearest(name, families)}")
            case _:
                check_family(self.schema, name, self.limits)
                return name

    def qualifier(self, family: str, given: object) -> str:
        where = f"qualifier of family {family!r}"
        text: str = coerce(_TEXT, given, where)
        check_size(where, len(text.encode()), self.limits.row_bytes_max)
        return text

    def _found(self, name: str) -> Meaning:
        family, colon, qualifier = name.partition(":")
        if colon:
            known = self.family(family)
            return Cell(known, self.qualifier(known, qualifier))
        for key in self.schema.key:
            if key.name == name:
                return key
        if name == WILDCARD and any(isinstance(group, CellsGroup) and group.wildcard for group in self.schema.groups):
            return OTHER_CELLS
        try:
            return self.schema.column(name)[1]
        except InvalidArgument:
            folded = self._without_case()
        found = folded.get(name.casefold())
        if found is None:
            declared = [each.family if isinstance(each, WholeFamily) else each.name for each in folded.values()]
            raise InvalidArgument(f"no column {name!r}{nearest(name, declared)}")
        return found

    def _without_case(self) -> dict[str, _Declared]:
        if self._folded is None:
            folded: dict[str, _Declared] = {key.name.casefold(): key for key in self.schema.key}
            for group in self.schema.groups:
                match group:
                    case ColumnsGroup():
                        folded |= {column.name.casefold(): column for column in group.columns}
                    case CellsGroup():
                        folded |= {family.name.casefold(): WholeFamily(family.name) for family in group.families}
            self._folded = folded
        return self._folded
