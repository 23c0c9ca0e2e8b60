"""What the cluster bench asks of a store: rows of a number and a text, tables, tables of many tablets.

Ours and each peer do it with the client that a Python program has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import pyarrow as pa

import stelae

GROUPS = [stelae.columns("g", {"v": "string"})]


class Calls(ABC):
    """A table has the key `id`, an int64, and `v`, a text. A put is durable when it returns."""

    has_tablets = True
    """Whether a table can be made of tablets that the caller chooses."""

    @abstractmethod
    def create(self, name: str, splits: Sequence[int]) -> None: ...

    @abstractmethod
    def alter(self, name: str) -> None:
        """A column more."""

    @abstractmethod
    def drop(self, name: str) -> None: ...

    @abstractmethod
    def get(self, name: str, key: int) -> str | None: ...

    @abstractmethod
    def put(self, name: str, key: int, value: str) -> None: ...

    @abstractmethod
    def get_many(self, name: str, keys: Sequence[int]) -> int:
        """How many were there."""

    @abstractmethod
    def put_many(self, name: str, rows: pa.Table) -> None: ...

    @abstractmethod
    def scan(self, name: str) -> pa.Table:
        """All rows, as Arrow."""

    @abstractmethod
    def truncate(self, name: str) -> Callable[[], object] | None:
        """What empties the table; None: there is no such thing."""

    @abstractmethod
    def close(self) -> None: ...

    def count(self, name: str) -> int:
        return int(self.scan(name).num_rows)


class StelaeCalls(Calls):
    def __init__(self, db: stelae.Database) -> None:
        self._db = db
        self._tables: dict[str, stelae.Table] = {}

    def create(self, name: str, splits: Sequence[int]) -> None:
        self._tables[name] = self._db.create_table(name, {"id": "int64"}, GROUPS, splits=list(splits))

    def alter(self, name: str) -> None:
        self._db.alter_table(name, add={"g": {"w": "int64"}})

    def truncate(self, name: str) -> Callable[[], object]:
        return lambda: self._db.truncate_table(name)

    def drop(self, name: str) -> None:
        self._db.drop_table(name)

    def get(self, name: str, key: int) -> str | None:
        row = self._tables[name].get(key)
        return None if row is None else row["v"]

    def put(self, name: str, key: int, value: str) -> None:
        self._tables[name].put({"id": key, "v": value})

    def get_many(self, name: str, keys: Sequence[int]) -> int:
        return sum(row is not None for row in self._tables[name].get_many(list(keys)))

    def put_many(self, name: str, rows: pa.Table) -> None:
        self._tables[name].put_many(rows)

    def scan(self, name: str) -> pa.Table:
        return self._tables[name].scan().to_arrow()

    def close(self) -> None:
        self._db.close()

    def count(self, name: str) -> int:
        return self._tables[name].count()
