"""Answers HTTP/1.1 with texts: for whoever collects metrics, and for nothing else.

A request is a few lines, and each connection is for one of them. Whoever sends more, or is slow, or is one too many, is
sent away: nobody who connects here can hold up the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple

from stelae.adapters.sockets.tcp import bind_tcp, listen_error
from stelae.model.errors import StelaeError

REQUEST_BYTES_MAX = 8_192
REQUEST_S_MAX = 10.0
"""For all of it: to ask, to be answered, and to read the answer."""
CONNECTIONS_MAX = 16

_TEXT = "text/plain; charset=utf-8"


class Page(NamedTuple):
    """`make` is called on a thread, for one request at a time."""

    content_type: str
    make: Callable[[], str]


class TextServer:
    """Serves pages by their paths, on the event loop that starts it."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self._pages = pages
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, address: str) -> str:
        """Where it serves: of port 0, the one that the system chose. AlreadyExists if somebody listens there."""
        bound, place = await bind_tcp(address)
        try:
            self._server = await asyncio.start_server(self._take, sock=bound, limit=REQUEST_BYTES_MAX)
        except OSError as error:
            bound.close()
            raise listen_error(error, address) from error
        return place

    async def close(self) -> None:
        """Whoever waits for an answer gets none. Closing twice is no error."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= CONNECTIONS_MAX or self._server is None:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(reader, writer), name="http")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_S_MAX):
                writer.write(await self._answer(reader))
                await writer.drain()
                writer.write_eof()
                while await reader.read(REQUEST_BYTES_MAX):  # until the other side has it all, and closes
                    continue
        except (TimeoutError, OSError):  # it is slow, or gone
            pass
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _reply(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request is too long")
        except asyncio.IncompleteReadError:
            return b""
        words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _reply(HTTPStatus.BAD_REQUEST, "this is not HTTP/1.1")
        method, target, _ = words
        if method not in ("GET", "HEAD"):
            return _reply(HTTPStatus.METHOD_NOT_ALLOWED, "only GET is answered", more="Allow: GET, HEAD\r\n")
        page = self._pages.get(target.partition("?")[0])
        has_body = method == "GET"
        if page is None:
            return _reply(HTTPStatus.NOT_FOUND, f"here is only {', '.join(self._pages)}", has_body=has_body)
        try:
            async with self._turn:
                text = await asyncio.to_thread(page.make)
        except StelaeError as error:
            return _reply(HTTPStatus.SERVICE_UNAVAILABLE, str(error), has_body=has_body)
        return _reply(HTTPStatus.OK, text, page.content_type, has_body=has_body)


def _reply(status: HTTPStatus, text: str, content_type: str = _TEXT, *, more: str = "", has_body: bool = True) -> bytes:
    body = text.encode() if status is HTTPStatus.OK else f"{text}\n".encode()
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n"
    head += f"Content-Length: {len(body)}\r\n{more}Connection: close\r\n\r\n"
    return head.encode() + (body if has_body else b"")
