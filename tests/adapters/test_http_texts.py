"""A small server of texts: what it answers, and whom it sends away."""

from __future__ import annotations

import asyncio
import socket
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from stelae.adapters import http_texts
from stelae.adapters.http_texts import CONNECTIONS_MAX, REQUEST_BYTES_MAX, Page, TextServer
from stelae.adapters.sockets.addresses import host_and_port
from stelae.model.errors import AlreadyExists, InvalidArgument, Unavailable
from tests.effort import HANG_S


def refuse() -> str:
    raise Unavailable("it is starting")


PAGES = {"/metrics": Page("text/plain; version=0.0.4", lambda: "a 1\n"), "/away": Page("text/plain", refuse)}


def served(test: Callable[[str], Awaitable[None]], address: str = "127.0.0.1:0") -> None:
    async def run() -> None:
        server = TextServer(PAGES)
        place = await server.start(address)
        try:
            await asyncio.wait_for(test(place), HANG_S)
        finally:
            await server.close()
            await server.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*host_and_port(place))

    asyncio.run(run())


async def exchange(place: str, sent: bytes) -> bytes:
    """All that comes until the other side ends the connection."""
    reader, writer = await asyncio.open_connection(*host_and_port(place))
    try:
        with suppress(ConnectionError):
            writer.write(sent)
            await writer.drain()
            return await reader.read()
        return b""
    finally:
        writer.close()


def fetch(url: str) -> Any:
    return urllib.request.urlopen(url, timeout=HANG_S)


def test_a_page() -> None:
    async def test(place: str) -> None:
        for url in (f"http://{place}/metrics", f"http://{place}/metrics?x=1"):
            answer = await asyncio.to_thread(fetch, url)
            assert answer.read() == b"a 1\n"
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4"
        with pytest.raises(urllib.error.HTTPError, match="404") as refused:
            await asyncio.to_thread(fetch, f"http://{place}/")
        assert refused.value.read() == b"here is only /metrics, /away\n"

    served(test)


@pytest.mark.parametrize(
    ("sent", "status", "words"),
    [
        (b"GET /metrics HTTP/1.0\r\n\r\n", b"200", b"a 1\n"),
        (b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"200", b""),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", b"405", b"only GET is answered\n"),
        (b"GET /metrics HTTP/2\r\n\r\n", b"400", b"this is not HTTP/1.1\n"),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"400", b"this is not HTTP/1.1\n"),
        (b"GET /away HTTP/1.1\r\n\r\n", b"503", b"it is starting\n"),
        (b"GET /" + b"x" * 2 * REQUEST_BYTES_MAX, b"431", b"the request is too long\n"),
    ],
)
def test_requests(sent: bytes, status: bytes, words: bytes) -> None:
    async def test(place: str) -> None:
        answer = await exchange(place, sent)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 " + status)
        assert b"\r\nConnection: close" in head
        assert body == words
        if b"HEAD" not in sent:
            assert b"\r\nContent-Length: %d\r\n" % len(words) in head + b"\r\n"

    served(test)


def test_one_that_says_nothing_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_texts, "REQUEST_S_MAX", 0.1)

    async def test(place: str) -> None:
        assert await exchange(place, b"GET /metr") == b""

    served(test)


def test_too_many_at_once_are_sent_away() -> None:
    async def test(place: str) -> None:
        silent = [await asyncio.open_connection(*host_and_port(place)) for _ in range(CONNECTIONS_MAX)]
        try:
            # The last one that is let in has been taken when the next is sent away.
            assert await exchange(place, b"GET /metrics HTTP/1.1\r\n\r\n") == b""
            silent[0][1].close()
            while not await exchange(place, b"GET /metrics HTTP/1.1\r\n\r\n"):
                continue
        finally:
            for _, writer in silent:
                writer.close()

    served(test)


def test_where_it_cannot_listen() -> None:
    async def run(address: str) -> None:
        await TextServer(PAGES).start(address)

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(AlreadyExists, match="another process listens there"):
            asyncio.run(run(f"127.0.0.1:{taken.getsockname()[1]}"))
    with pytest.raises(InvalidArgument, match="is not host:port"):
        asyncio.run(run("somewhere"))
