"""Small frames that go to the system together.

To give bytes to the system, and to wake whoever waits for them, costs more than to make a frame. So small frames that
are sent while those that came are heard go together, and so do those of one turn of the loop, while there are several
in a turn. A frame that comes alone does not wait for others, nor costs a turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

GATHERED_BYTES_MAX = 64 * 1024
"""What is gathered before it is sent; larger frames go by themselves."""
GATHERED_FRAMES_MAX = 32
"""So many are not kept waiting for more: the other side works on them while this one makes the next."""

Parts: TypeAlias = list[bytes | memoryview]
"""The bytes of one frame or of several, to be sent one after the other."""


def size_of(parts: Parts) -> int:
    return len(parts[0]) if len(parts) == 1 else sum([len(part) for part in parts])


class Gathering:
    """Of one connection, on one event loop. `write` gives bytes to the system."""

    __slots__ = ("_in_turn", "_is_busy", "_is_heard", "_loop", "_parts", "_sent_alone", "_write", "size_bytes")

    def __init__(self, loop: asyncio.AbstractEventLoop, write: Callable[[Parts], None]) -> None:
        self._loop = loop
        self._write = write
        self._parts: Parts = []
        self._sent_alone = 0
        """How many frames were sent by themselves since something came."""
        self._in_turn = 0
        """How many frames were gathered in this turn of the loop; 0: its end is not waited for."""
        self._is_busy = False
        """Several frames are sent for each time that something comes."""
        self._is_heard = False
        self.size_bytes = 0
        """Of the frames that are gathered and not sent yet."""

    def put(self, parts: Parts, size_bytes: int) -> None:
        """Send a frame now, or with others: when all that came was heard, or at the end of this turn of the loop."""
        if self.size_bytes + size_bytes > GATHERED_BYTES_MAX:
            self.send()
            self._write(parts)
            return
        if not self._is_heard:
            if not self._is_busy and not self._parts:
                self._sent_alone += 1
                self._is_busy = self._sent_alone > 1
                self._write(parts)
                return
            if not self._in_turn:
                self._loop.call_soon(self._end_turn)
            self._in_turn += 1
        self._parts += parts
        self.size_bytes += size_bytes
        if len(self._parts) >= GATHERED_FRAMES_MAX:
            self.send()

    def hear(self, come: Callable[[], None]) -> None:
        """Something came: what is sent while it is heard is sent when that is done."""
        self._is_heard = True
        try:
            come()
        finally:
            self._is_heard = False
            self.send()

    def note_come(self) -> None:
        self._sent_alone = 0

    def send(self) -> None:
        """Send all that was gathered, in one call of the system."""
        if self._parts:
            parts, self._parts, self.size_bytes = self._parts, [], 0
            self._write(parts if len(parts) == 1 else [b"".join(parts)])

    def _end_turn(self) -> None:
        self._is_busy = self._in_turn > 1
        self._in_turn = self._sent_alone = 0
        self.send()
