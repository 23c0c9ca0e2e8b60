"""Frames between processes for callers that block: the client's side of `transport`, without an event loop.

What arrives and in which order is as in `transport`, and so are the errors. Besides:
- A frame whose `send` raised did not arrive whole: the peer has not seen it, and never will. Only a frame that was sent
  may have been acted upon when its answer does not come.
- After a `send` that raised anything but InvalidArgument, or a `receive` that raised anything but DeadlineExceeded, the
  connection is of no use: close it.
"""

from __future__ import annotations

from typing import Protocol

from stelae.ports.transport import Frame


class BlockingConnection(Protocol):
    """For one caller at a time, in any thread; only `close` may come from elsewhere, at any time."""

    @property
    def peer(self) -> str:
        """Who is there, for messages."""
        ...

    def send(self, frame: Frame, timeout_s: float | None) -> None:
        """Returns when all of it is on its way. Unavailable if the peer is gone; DeadlineExceeded, which is one, if it
        does not take it in time."""
        ...

    def receive(self, timeout_s: float | None) -> Frame | None:
        """The next frame; None once the peer has closed. DeadlineExceeded if none is there in time, however slowly it
        comes: nothing of it is lost, and whoever has more time may go on waiting."""
        ...

    def is_quiet(self) -> bool:
        """Nothing came that was not received, and the peer has not closed as far as is known: fit for a request. Never
        so in a forked child: there the connection may only be closed, and the parent's is not touched by that."""
        ...

    def close(self) -> None:
        """At once. Whoever waits in `send` or `receive` gets Closed. Closing twice is no error."""
        ...


class BlockingConnector(Protocol):
    """Opens connections to one peer. Safe for threads."""

    @property
    def address(self) -> str:
        """Where it connects to, for messages."""
        ...

    def connect(self, timeout_s: float | None) -> BlockingConnection:
        """Unavailable if nobody listens there or nobody answers in time; PermissionDenied if the system refuses."""
        ...
