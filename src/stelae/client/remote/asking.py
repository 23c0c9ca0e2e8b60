"""Asking another process for operations: each call takes a connection, asks, waits for the answer and gives it back.

What a caller meets when the other process is gone, or says what makes no sense, is in `answers`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar

from stelae.client.remote.answers import ItemStream, receive_result
from stelae.client.remote.lines import DEFAULT_LINE_SETTINGS, HasMoved, Lines, LineSettings
from stelae.ports.blocking import BlockingConnector
from stelae.ports.clock import Clock
from stelae.registry.peers import Sign, unsigned
from stelae.service.bodies import Bytes
from stelae.service.deadlines import Deadline
from stelae.service.messages import Request
from stelae.service.operations import Operation
from stelae.service.reports import Progress
from stelae.wire.handshake import Introduction, introduce
from stelae.wire.hello import Hello

P = ParamSpec("P")
R = TypeVar("R")


class Asker:
    """Safe for threads. A call without a deadline has that of `settings.answer_s`. `has_moved`: see `lines`."""

    def __init__(
        self,
        connector: BlockingConnector,
        hello: Hello | Introduction,
        clock: Clock,
        settings: LineSettings = DEFAULT_LINE_SETTINGS,
        sign: Sign = unsigned,
        has_moved: HasMoved | None = None,
    ) -> None:
        self.lines = Lines(connector, introduce(hello), settings, sign, has_moved)
        self._clock = clock
        self._settings = settings

    def sign_by(self, sign: Sign) -> None:
        """What this side says of itself from the next connection on."""
        self.lines.sign_by(sign)

    def ask(self, operation: Operation[P, R], deadline: Deadline | None, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.watch(operation, deadline, None, *args, **kwargs)

    def watch(
        self,
        operation: Operation[P, R],
        deadline: Deadline | None,
        progress: Progress | None,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """As `ask`; `progress` hears on the way how far long work is."""
        message, body = operation.ask(*args, **kwargs)
        return self.receive(operation, message, body, self.until(deadline), progress)

    def receive(
        self,
        operation: Operation[Any, R],
        message: Request,
        body: Bytes,
        deadline: Deadline,
        progress: Progress | None = None,
    ) -> R:
        """What comes of a message that was made before."""
        return receive_result(self.open_stream(operation, message, body, deadline), operation, progress)

    def begin(self, operation: Operation[Any, R], message: Request, body: Bytes, deadline: Deadline) -> Callable[[], R]:
        """Send a message; call what is returned, once, to wait for what comes of it."""
        return partial(receive_result, self.open_stream(operation, message, body, deadline), operation, None)

    def open_stream(
        self,
        operation: Operation[Any, Any],
        message: Request,
        body: Bytes,
        deadline: Deadline,
        *,
        each_anew: bool = False,
    ) -> ItemStream:
        return ItemStream(self.lines, operation, message, body, deadline, each_anew=each_anew)

    def until(self, deadline: Deadline | None) -> Deadline:
        """The caller's deadline, or the one for callers that have none."""
        return Deadline(self._clock, self._settings.answer_s) if deadline is None else deadline
