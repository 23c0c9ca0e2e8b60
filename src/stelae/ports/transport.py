"""Frames between processes: connections that carry them whole and in order, listeners, and how both are opened.

A frame is a value here; its bytes are `wire`'s business, and a world without bytes (a simulated one) may hand the value
over as it is. Addresses are text: `host:port`, the path of a local socket, or a name in a simulated world.

What arrives, and what that says:
- Frames of one connection arrive whole, in the order they were sent, each at most once. Nothing is sent twice: whoever
  repeats a request does so knowingly.
- A `send` that returned says that the frame is on its way, not that it arrived. Only an answer says that.
- When the peer dies or the network breaks, the frames that arrived whole are still received; then `receive` raises
  Unavailable, as does every `send` from the moment it is known. A stream that ends inside a frame is broken, too.
- A peer that was killed is noticed soon, as its system closes for it; one that lost its power, is cut off or stopped is
  silence. How long that goes unnoticed is not promised: requests have deadlines of their own.
- Sides that do not agree on who they are (certificates), or on whether they speak TLS, get PermissionDenied: from
  `connect`, or from the first `receive` or `send`.
- When the peer sends what is no frame, the frames before it are still received; then `receive` raises ProtocolError
  (`wire.faults`) and the connection is closed, as if by `close`, but without waiting.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from enum import IntEnum
from typing import NewType, Protocol

import msgspec

RequestId = NewType("RequestId", int)
Address = NewType("Address", str)


class FrameKind(IntEnum):
    """What a frame is to its request. The numbers are sent.

    A request has one answer or error; a request for a stream has any number of items, then an end or an error. A cancel
    comes from whoever asked, and says that no more of the answer is wanted.
    """

    REQUEST = 1
    ANSWER = 2
    ERROR = 3
    ITEM = 4
    END = 5
    CANCEL = 6


class Frame(msgspec.Struct, frozen=True):
    """One message of a request, with a body that nobody on the way looks into.

    `request_id` (64 bits, unsigned) is chosen by whoever asks, and not used again on the connection while answers may
    come; `method` may be empty in what answers. `flags` (16 bits) mean what the method says. A received frame's message
    and body are read-only views of memory that lives as long as either of them. A Struct, because a dataclass takes
    nine times as long to make, and one is made for each frame.
    """

    kind: FrameKind
    request_id: RequestId
    method: str = ""
    message: bytes | memoryview = b""
    body: bytes | memoryview = b""
    flags: int = 0

    def __repr__(self) -> str:
        sizes = f"message of {len(self.message)} bytes, body of {len(self.body)}"
        return f"Frame({self.kind.name} {self.request_id} {self.method!r}, {sizes}, flags {self.flags})"


class Connection(Protocol):
    """One way to one peer and back. Belongs to the event loop it was made on, and dies with its process."""

    @property
    def peer(self) -> str:
        """Who is there, for logs and messages: an address, a process. Never a key to decide by."""
        ...

    async def send(self, frame: Frame) -> None:
        """Put the frame on its way. Many tasks may send at once; frames leave whole, in the order of the calls.

        Waits while the peer reads too slowly: what was sent and not yet taken is bounded in bytes, and a frame larger
        than that bound waits until it can go alone. Cancelled, the frame goes whole or not at all, and the connection
        stays usable. The buffers of a frame are not changed by anyone after the call. A frame that is too large, or
        breaks a rule of `Frame`, raises InvalidArgument: nothing of it was sent, and the connection stays usable.
        """
        ...

    def send_now(self, frame: Frame) -> bool:
        """As `send`, if it need not wait, not for those who send already either; whether the frame is on its way."""
        ...

    def send_aside(self, frame: Frame) -> bool:
        """As `send_now`, from any thread: the loop need not be woken. False if it is the loop's to do, because others
        are on their way or the connection has ended: nothing was sent then. Its place among frames that the loop sends
        meanwhile is any."""
        ...

    async def receive(self) -> Frame | None:
        """The next frame; None, now and ever after, when the peer closed and everything it sent was received.

        For one task at a time. Cancelled, it loses no frame. What arrived and was not received is bounded, in frames
        and in bytes; beyond that the peer's `send` waits.
        """
        ...

    def take(self) -> Frame | None:
        """The next frame, if it has arrived already. None says nothing else: whether the connection has ended, and how,
        is told by `receive`."""
        ...

    def hear(self, come: Callable[[], None] | None) -> None:
        """Have `come` called, on the loop, whenever frames have arrived: so they can be taken (`take`) without a task
        that is woken for them. What is left then, and the end, is for `receive`; a task that waits there already may
        also be the first. None: nobody is called any more."""
        ...

    async def close(self) -> None:
        """Send what was accepted, as far as the peer takes it within a bounded time; then end. The peer receives that,
        then None.

        Waiting and later calls of `send` and `receive` raise Closed; frames that arrived and were not received are
        lost. Closing twice is no error; a second call waits for the first. Cancelled, it ends at once and drops what
        was not sent.
        """
        ...


class Listener(Protocol):
    """An address where connections come in."""

    @property
    def address(self) -> Address:
        """Where it listens, in a form that `connect` takes: with the port that was chosen if none was asked for."""
        ...

    def accept(self) -> AsyncIterator[Connection]:
        """Connections as they come, without end; the iterator ends when the listener is closed. For one task at a time.

        Connections that nobody has taken yet are bounded in number; beyond that `connect` waits or raises Unavailable.
        Giving up waiting for one (a cancelled `anext`) loses none. A connection that breaks before it is taken is taken
        all the same, and then says so.
        """
        ...

    async def close(self) -> None:
        """Take no more; connections that were not taken end, those that were live on. Closing twice is no error. Once
        it returns the address is free."""
        ...


class Transport(Protocol):
    """Opens connections and listeners. An address that makes no sense raises InvalidArgument, access refused by the
    system PermissionDenied. Neither side has said anything yet: what is said first is `wire.hello`'s."""

    async def connect(self, address: Address) -> Connection:
        """Unavailable if nobody listens there or nobody answers in a bounded time. Cancelled, nothing is left open."""
        ...

    async def listen(self, address: Address) -> Listener:
        """AlreadyExists if the address is taken by somebody alive; what a dead process left there is no obstacle.
        Connections wait from the moment this returns, whether `accept` was called or not."""
        ...
