"""Scans of a store that another process has: batches as they come, on a connection of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from stelae.client.remote.answers import ItemStream
from stelae.model.errors import ProtocolError, StelaeError
from stelae.service.bodies import Bytes, batch_from, schema_from
from stelae.service.messages import ItemKind


class RemoteScan(Iterator[pa.RecordBatch]):
    """Open from the moment it is made."""

    def __init__(self, items: ItemStream) -> None:
        self._items = items
        self._schema: pa.Schema | None = None
        first = self._next_whole()
        if first is None or first[0] is not ItemKind.OPENED:
            raise self._broken(f"it begins with {'its end' if first is None else first[0].name}")

    def __next__(self) -> pa.RecordBatch:
        while (found := self._next_whole()) is not None:
            kind, data = found
            try:
                if kind is ItemKind.SCHEMA:
                    self._schema = schema_from(data)
                elif kind is ItemKind.BATCH and self._schema is not None:
                    return batch_from(self._schema, data)
                else:
                    raise self._broken(f"{kind.name} where it has no place")
            except ProtocolError as error:
                raise self._items.refuse(error) from error
        self._items.drop()
        raise StopIteration

    def close(self) -> None:
        self._items.close()

    def _next_whole(self) -> tuple[ItemKind, Bytes] | None:
        """The next item, the bodies of several that belong together as one; None after the last."""
        found = self._items.next_item()
        if found is None:
            return None
        item, data = found
        if item is None:
            raise self._broken("it is answered with one frame")
        parts, more = [data], item.more
        while more:
            found = self._items.next_item()
            if found is None or found[0] is None or found[0].kind is not item.kind:
                raise self._broken(f"{item.kind.name} broke off")
            parts.append(found[1])
            more = found[0].more
        return item.kind, parts[0] if len(parts) == 1 else b"".join(parts)

    def _broken(self, why: str) -> StelaeError:
        return self._items.refuse(ProtocolError(f"a scan that makes no sense: {why}"))
