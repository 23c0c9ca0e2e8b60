"""Streams and snapshots of a store that another process has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from threading import Lock
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from stelae.client.remote.lines import Line, Lines, LineSettings, answered
from stelae.model.errors import StelaeError
from stelae.model.ids import Txn
from stelae.ports.transport import FrameKind, RequestId
from stelae.service.bodies import batch_from, schema_from
from stelae.service.messages import PIN, SCAN, UNPIN, PinMessage, ScanItem, ScanMessage, ScanPart, UnpinMessage
from stelae.wire.faults import ProtocolError
from stelae.wire.messages import WireMethod

Q = TypeVar("Q", bound=msgspec.Struct)
A = TypeVar("A", bound=msgspec.Struct)


class ItemStream(Iterator[tuple[A, bytes | memoryview]]):
    """The items of one request, on a line of its own until they end. Closed early, the rest is cancelled; dropped
    without that, the line is."""

    def __init__(
        self,
        lines: Lines,
        method: WireMethod[Q, A],
        message: Q,
        body: bytes | memoryview = b"",
        *,
        timeout_s: float | None,
    ) -> None:
        self._lines = lines
        self._method = method
        self._timeout_s = timeout_s
        self._line: Line | None = None
        self._request: RequestId
        self._line, self._request = lines.ask(method, message, body, timeout_s=timeout_s)

    def __next__(self) -> tuple[A, bytes | memoryview]:
        line = self._line
        if line is None:
            raise StopIteration
        try:
            frame = line.receive(self._timeout_s)
            if frame.kind is not FrameKind.END:
                return answered(self._method, frame)
        except BaseException:
            self._give_back()
            raise
        self._give_back()
        raise StopIteration

    def close(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            try:
                with suppress(StelaeError):
                    line.cancel(self._request, self._timeout_s)
            finally:
                self._lines.give(line)

    def _give_back(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            self._lines.give(line)

    def __del__(self) -> None:
        # Made only in part if asking failed.
        if getattr(self, "_line", None) is not None:
            self._give_back()


class RemoteScan(Iterator[pa.RecordBatch]):
    """Open from the moment it is made. The snapshot is pinned by whoever scans, on a line of its own."""

    def __init__(self, lines: Lines, message: ScanMessage, rows: bytes, timeout_s: float) -> None:
        self._items: ItemStream[ScanItem] = ItemStream(lines, SCAN, message, rows, timeout_s=timeout_s)
        self._schema: pa.Schema | None = None
        part, _ = self._whole()
        if part is not ScanPart.OPENED:
            raise self._broken(f"it begins with {part.name}")

    def __next__(self) -> pa.RecordBatch:
        while True:
            part, data = self._whole()
            match part:
                case ScanPart.SCHEMA:
                    self._schema = schema_from(data)
                case ScanPart.BATCH if self._schema is not None:
                    return batch_from(self._schema, data)
                case _:
                    raise self._broken(f"{part.name} where it has no place")

    def close(self) -> None:
        self._items.close()

    def _whole(self) -> tuple[ScanPart, bytes | memoryview]:
        item, data = next(self._items)
        if not item.more:
            return item.part, data
        parts = [data]
        for more, data in self._items:
            if more.part is not item.part:
                break
            parts.append(data)
            if not more.more:
                return item.part, b"".join(parts)
        raise self._broken(f"{item.part.name} broke off")

    def _broken(self, why: str) -> ProtocolError:
        self.close()
        return ProtocolError(f"a scan that makes no sense: {why}")


class RemotePin:
    """A snapshot that the owner of the store keeps readable while the connection to it lives."""

    def __init__(self, pins: RemotePins, line: Line, number: int, txn: Txn) -> None:
        self._pins = pins
        self._line = line
        self._number = number
        self._txn = txn
        self._is_open = True

    @property
    def txn(self) -> Txn:
        return self._txn

    @property
    def is_held(self) -> bool:
        """Not if the owner it was asked of is gone: another owner does not know of it."""
        return self._line.is_fit

    def close(self) -> None:
        was_open, self._is_open = self._is_open, False
        if was_open:
            self._pins.free(self._line, self._number)


class RemotePins:
    """All pins are on one line, which is given back when the last of them is closed. Safe for threads."""

    def __init__(self, lines: Lines, settings: LineSettings) -> None:
        self._lines = lines
        self._answer_s = settings.answer_s
        self._lock = Lock()
        self._line: Line | None = None
        self._count = 0

    def pin(self, at: Txn | None) -> RemotePin:
        with self._lock:
            line = self._line
            try:
                if line is None or not line.is_fit:
                    self._drop()
                    line, _ = self._lines.ask(PIN, PinMessage(at), timeout_s=self._answer_s)
                    self._line = line
                else:
                    line.ask(PIN, PinMessage(at), timeout_s=self._answer_s)
                pinned, _ = answered(PIN, line.receive(self._answer_s))
            except BaseException:
                self._drop_if_unfit()
                raise
            self._count += 1
            return RemotePin(self, line, pinned.pin, Txn(pinned.txn))

    def free(self, line: Line, number: int) -> None:
        """Of a line that is gone everything is free already."""
        with self._lock:
            if line is not self._line:
                return
            self._count -= 1
            try:
                with suppress(StelaeError):
                    line.ask(UNPIN, UnpinMessage(number), timeout_s=self._answer_s)
                    answered(UNPIN, line.receive(self._answer_s))
            finally:
                self._drop_if_unfit()

    def _drop_if_unfit(self) -> None:
        if self._line is not None and (not self._count or not self._line.is_fit):
            self._drop()

    def _drop(self) -> None:
        line, self._line, self._count = self._line, None, 0
        if line is not None:
            self._lines.give(line)


def joined_bodies(items: Iterator[tuple[Any, bytes | memoryview]]) -> bytes | memoryview:
    """The bodies of a stream as one."""
    parts = [data for _, data in items]
    return parts[0] if len(parts) == 1 else b"".join(parts)
