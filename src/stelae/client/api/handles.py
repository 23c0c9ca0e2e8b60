"""What all handles of an open store have in common: they are of the process that opened it."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex

from stelae.model.errors import InvalidArgument


class OfThisProcess:
    """Cannot be pickled or copied: a handle holds locks, threads and a connection, which no other process has."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        kind = type(self)
        raise InvalidArgument(
            f"a {kind.__module__}.{kind.__name__} cannot be pickled or copied: it is of the process that opened the "
            "store. Send the path and the table's name, and open them there: stelae.open(path).table(name) shares the "
            "store with this process. For jobs on Spark there are stelae.spark.read, load and foreach_batch"
        )
