"""Requests that are sent and not answered yet, each with its time. One timer serves all of them: it goes off when the
first of them may be late, looks at all, and is set anew. To ask and be answered in time moves no timer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar

from stelae.model.errors import StelaeError
from stelae.ports.transport import RequestId
from stelae.service.bodies import Bytes
from stelae.service.operations import Operation

R = TypeVar("R")

Ended: TypeAlias = Callable[["OpenCall[Any]"], None]


class OpenCall(Generic[R]):
    """A request under way. `answer` may be cancelled by whoever waited for it; `ended` is called all the same, once,
    when the answer has come or cannot come any more. `parts`: what came of the answer so far. `seconds`: how long it
    may take; long work may take longer while it is heard of. `is_sent`: the connection has taken the request."""

    __slots__ = ("_ended", "answer", "is_open", "is_sent", "operation", "parts", "request", "seconds", "until_s")

    def __init__(
        self,
        request: RequestId,
        operation: Operation[Any, R],
        answer: asyncio.Future[Bytes],
        until_s: float,
        seconds: float,
        ended: Ended | None,
    ) -> None:
        self.request = request
        self.operation = operation
        self.answer = answer
        self.until_s = until_s
        self.seconds = seconds
        self.parts: list[Bytes] = []
        self.is_open = True
        self.is_sent = False
        self._ended = ended

    def end(self, result: Bytes | StelaeError) -> None:
        self.is_open = False
        if not self.answer.done():
            if isinstance(result, StelaeError):
                self.answer.set_exception(result)
            else:
                self.answer.set_result(result)
        if self._ended is not None:
            self._ended(self)


class OpenCalls:
    """Of one connection, for one event loop. `late` is called with each whose time is over, and must end it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, late: Callable[[OpenCall[Any]], None]) -> None:
        self._loop = loop
        self._late = late
        self._calls: dict[RequestId, OpenCall[Any]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._at_s = 0.0
        """When the timer is due."""

    def __bool__(self) -> bool:
        return bool(self._calls)

    def get(self, request: RequestId) -> OpenCall[Any] | None:
        return self._calls.get(request)

    def add(self, call: OpenCall[Any]) -> None:
        self._calls[call.request] = call
        if self._timer is None or call.until_s < self._at_s:
            self._set_timer(call.until_s)

    def remove(self, call: OpenCall[Any]) -> None:
        """Removing twice is no error."""
        self._calls.pop(call.request, None)

    def take_all(self) -> list[OpenCall[Any]]:
        """Take out and return all open calls: whoever does so ends them."""
        calls, self._calls = list(self._calls.values()), {}
        self._set_timer(None)
        return calls

    def _look(self) -> None:
        # The time that was waited for has come, though a clock that is read less finely may not say so yet.
        due_s, self._timer = max(self._at_s, self._loop.time()), None
        for call in [call for call in self._calls.values() if call.until_s <= due_s]:
            self._late(call)
        if self._calls:
            self._set_timer(min(call.until_s for call in self._calls.values()))

    def _set_timer(self, at_s: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if at_s is not None:
            self._at_s = at_s
            self._timer = self._loop.call_at(at_s, self._look)
