"""One connection to the owner of a store: its hello, its requests and what it holds. See `serving`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from stelae.model.errors import Closed, NotCached, StelaeError, Unavailable
from stelae.model.ids import TableId, Txn
from stelae.ports.transport import Connection, Frame, FrameKind, RequestId
from stelae.service import messages as m
from stelae.service.bodies import blocks_apart, checked_block, pieces
from stelae.tserver.serving.calls import CALLS, STREAMS, UPKEEP, WATCHED, OpenStream, newest_cached
from stelae.tserver.serving.jobs import HeldPins, begun
from stelae.tserver.serving.replies import Reply
from stelae.wire.faults import ProtocolError
from stelae.wire.hello import HELLO_ID, agree, hello_frame, read_hello
from stelae.wire.messages import WireMethod, end_frame, error_frame

if TYPE_CHECKING:
    from stelae.tserver.serving.service import StoreService

_OVER = (ProtocolError, Unavailable, Closed, TimeoutError)
"""What ends a connection, and nothing else."""

_RESULT = m.ProgressItem(0, 0, has_result=True)

_Work: TypeAlias = Callable[[], Coroutine[Any, Any, Frame | None]]


class _Request:
    """One under way. `stop` is done when no more of its answer is wanted, or can be given."""

    def __init__(self, frame: Frame) -> None:
        self.id = frame.request_id
        self.size_bytes = len(frame.message) + len(frame.body)
        self.stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None]

    def end(self) -> None:
        if not self.stop.done():
            self.stop.set_result(None)


class ServedConnection:
    def __init__(self, service: StoreService, connection: Connection) -> None:
        self._service = service
        self._connection = connection
        self._requests: dict[RequestId, _Request] = {}
        self._bytes = 0
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._written: asyncio.Future[None] | None = None
        """Done when the last write that came has been given to the backend."""
        self._pins = HeldPins(service.limits.pins_max)
        self._reading: asyncio.Task[None] | None = None
        self._is_leaving = False

    async def run(self) -> None:
        try:
            if await self._greeted():
                self._reading = asyncio.create_task(self._read())
                await asyncio.wait((self._reading,))
                if self._is_leaving:
                    await self._finish()
        finally:
            await self.end()

    def leave(self) -> None:
        """Ask no more; `run` ends when what is under way is answered, or has had its time."""
        self._is_leaving = True
        if self._reading is not None:
            self._reading.cancel()
        else:
            self._service.afterwards(self._connection.close())

    async def end(self) -> None:
        tasks = [request.task for request in self._requests.values()]
        for task in (*tasks, *((self._reading,) if self._reading is not None else ())):
            task.cancel()
        if self._pins:
            self._service.afterwards(self._free_pins())
        else:
            self._pins.close()
        if tasks:
            await asyncio.wait(tasks)
        with suppress(*_OVER):
            await self._connection.close()

    # -- hello

    async def _greeted(self) -> bool:
        service, connection = self._service, self._connection
        try:
            async with asyncio.timeout(service.limits.hello_s):
                frame = await connection.receive()
                if frame is None:
                    return False
                theirs = read_hello(frame, FrameKind.REQUEST, service.faults)
                agree(service.hello, theirs)
                if theirs.store not in ("", service.hello.store):
                    raise Unavailable(f"another store is served here: {service.hello.store!r}, not {theirs.store!r}")
                await connection.send(hello_frame(service.hello, FrameKind.ANSWER))
        except TimeoutError:
            return False
        except StelaeError as error:
            with suppress(*_OVER):
                await connection.send(error_frame(HELLO_ID, error, service.faults))
            return False
        return not self._is_leaving

    # -- requests

    async def _read(self) -> None:
        with suppress(*_OVER):
            while True:
                await self._has_room.wait()
                frame = await self._connection.receive()
                if frame is None:
                    return
                try:
                    await self._take(frame)
                except ProtocolError as error:
                    await self._send_error(frame.request_id, error)
                    return

    async def _take(self, frame: Frame) -> None:
        """ProtocolError: what cannot be answered, and ends the connection."""
        known = self._requests.get(frame.request_id)
        match frame.kind:
            case FrameKind.REQUEST if known is None:
                try:
                    method = m.STORE_MESSAGES.find(frame.method)
                    asked = method.read_request(frame)
                except StelaeError as error:
                    await self._send_error(frame.request_id, error)
                    return
                if method is not m.NEWEST or not await self._answered_from_cache(frame, asked):
                    self._begin(frame, method, asked)
            case FrameKind.REQUEST:
                raise ProtocolError(f"request {frame.request_id} is under way; its id cannot be another's")
            case FrameKind.CANCEL:
                if known is not None:
                    known.end()
            case FrameKind.ANSWER | FrameKind.ERROR | FrameKind.ITEM | FrameKind.END:
                raise ProtocolError(f"{frame!r}: a client asks and cancels, and does not answer")

    def _begin(self, frame: Frame, method: WireMethod[Any, Any], asked: Any) -> None:
        request = _Request(frame)
        self._requests[request.id] = request
        self._bytes += request.size_bytes
        self._see_room()
        request.task = asyncio.create_task(self._answer(request, self._work(request, frame, method, asked)))
        request.task.add_done_callback(lambda _: self._ended(request))

    def _work(self, request: _Request, frame: Frame, method: WireMethod[Any, Any], asked: Any) -> _Work:
        if method is m.WRITE:
            before, self._written = self._written, asyncio.get_running_loop().create_future()
            return partial(self._write, request, asked, frame.body, before, self._written)
        if method is m.PIN:
            return partial(self._pin, request, asked)
        if method is m.UNPIN:
            return partial(self._unpin, request, asked)
        if method.name in WATCHED:
            return partial(self._watch, request, method, asked)
        serve = self._stream if method.name in STREAMS else self._call
        return partial(serve, request, method, asked, frame.body)

    def _ended(self, request: _Request) -> None:
        del self._requests[request.id]
        self._bytes -= request.size_bytes
        self._see_room()

    def _see_room(self) -> None:
        limits = self._service.limits
        if len(self._requests) < limits.requests_max and self._bytes < limits.request_bytes_max:
            self._has_room.set()
        else:
            self._has_room.clear()

    async def _finish(self) -> None:
        """Let what is under way be answered; streams, which may be endless, are told to stop."""
        for request in self._requests.values():
            request.end()
        tasks = [request.task for request in self._requests.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=self._service.limits.close_s)

    # -- answers

    async def _answer(self, request: _Request, work: _Work) -> None:
        """Every request ends with one frame that says so, while there is a connection."""
        with suppress(*_OVER):
            try:
                last = await work()
                await self._connection.send(end_frame(request.id) if last is None else last)
            except Exception as error:  # noqa: BLE001 - whatever it is, the peer is told, or the connection is over
                await self._send_error(request.id, error)

    async def _send_error(self, request: RequestId, error: Exception) -> None:
        if isinstance(error, Closed):
            error = Unavailable(f"the process that has the store is closing it: {error}")
        elif not isinstance(error, StelaeError):
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"a request of {self._connection.peer} failed", "exception": error}
            )
        await self._connection.send(error_frame(request, error, self._service.faults))

    async def _answered_from_cache(self, frame: Frame, asked: m.NewestMessage) -> bool:
        if not self._service.backend.is_local:
            return False
        try:
            reply = newest_cached(self._service.backend, asked)
        except NotCached:
            return False
        except Exception as error:  # noqa: BLE001 - as for other requests
            await self._send_error(frame.request_id, error)
            return True
        await self._connection.send(m.NEWEST.answer(frame.request_id, *reply))  # type: ignore[arg-type]
        return True

    async def _call(
        self, request: _Request, method: WireMethod[Any, Any], asked: Any, body: bytes | memoryview
    ) -> Frame:
        def job() -> Reply:
            return CALLS[method.name](self._service.backend, asked, body)

        return method.answer(request.id, *await self._run(method.name, job))

    async def _run(self, method: str, job: Callable[[], Any]) -> Any:
        jobs = self._service.upkeep if method in UPKEEP else self._service.jobs
        return await jobs.run(job)

    async def _write(
        self,
        request: _Request,
        asked: m.WriteMessage,
        body: bytes | memoryview,
        before: asyncio.Future[None] | None,
        mine: asyncio.Future[None],
    ) -> Frame:
        backend, table = self._service.backend, TableId(asked.table)

        def submitted() -> Future[Txn]:
            schema = backend.info(table).schema
            blocks = [checked_block(schema, block) for block in blocks_apart(asked.sizes, body)]
            return backend.submit(table, blocks, None if asked.max_txn is None else Txn(asked.max_txn))

        try:
            if before is not None:
                await asyncio.wait((before,))
            under_way = await self._service.jobs.run(submitted)
        finally:
            if not mine.done():
                mine.set_result(None)
        # Not cancelled with the connection: the write goes on without it.
        txn = await asyncio.shield(asyncio.wrap_future(under_way))
        return m.WRITE.answer(request.id, m.TxnMessage(txn))

    async def _pin(self, request: _Request, asked: m.PinMessage) -> Frame:
        at = None if asked.at is None else Txn(asked.at)
        number, pin = await self._service.jobs.run(lambda: self._pins.add(lambda: self._service.backend.pin(at)))
        return m.PIN.answer(request.id, m.PinnedMessage(number, pin.txn))

    async def _unpin(self, request: _Request, asked: m.UnpinMessage) -> Frame:
        await self._service.jobs.run(lambda: self._pins.free(asked.pin))
        return m.UNPIN.answer(request.id, m.NothingMessage())

    async def _free_pins(self) -> None:
        await self._service.jobs.run_surely(self._pins.close)

    # -- streams

    async def _stream(
        self, request: _Request, method: WireMethod[Any, Any], asked: Any, body: bytes | memoryview
    ) -> Frame | None:
        stream = OpenStream(lambda: STREAMS[method.name](self._service.backend, asked, body), method, request.id)
        ahead = begun(self._service.jobs.run(stream.pull))
        is_over = False
        try:
            while await self._goes_on(request, ahead):
                is_over = True
                item = ahead.result()
                if item is None:
                    return None
                is_over = False
                ahead = begun(self._service.jobs.run(stream.pull))
                await self._connection.send(item)
        finally:
            ahead.cancel()
            if not is_over:
                self._service.afterwards(self._service.jobs.run_surely(stream.close))
        return self._stopped(request)

    async def _goes_on(self, request: _Request, ahead: asyncio.Task[Any]) -> bool:
        await asyncio.wait((ahead, request.stop), return_when=asyncio.FIRST_COMPLETED)
        return not request.stop.done()

    def _stopped(self, request: _Request) -> Frame | None:
        if not self._is_leaving:
            return None
        return error_frame(
            request.id, Unavailable("the process that has the store is closing it"), self._service.faults
        )

    async def _watch(self, request: _Request, method: WireMethod[Any, Any], asked: Any) -> Frame | None:
        """Long work that tells how far it is, and then what came of it. It goes on if nobody wants to know."""
        loop = asyncio.get_running_loop()
        newest: list[m.ProgressItem] = []
        """At most one: older news is no news."""
        is_told = asyncio.Event()

        def told(item: m.ProgressItem) -> None:
            newest[:] = [item]
            is_told.set()

        def progress(done: int, total: int) -> None:
            with suppress(RuntimeError):  # the loop is gone
                loop.call_soon_threadsafe(told, m.ProgressItem(done, total))

        def job() -> bytes:
            return WATCHED[method.name](self._service.backend, asked, progress)

        work = begun(self._run(method.name, job))
        for end in (work, request.stop):
            end.add_done_callback(lambda _: is_told.set())
        try:
            while not request.stop.done():
                await is_told.wait()
                is_told.clear()
                if newest:
                    await self._connection.send(method.answer(request.id, newest.pop()))
                    is_told.set()
                elif work.done():
                    for piece in pieces([work.result()]):
                        await self._connection.send(method.answer(request.id, _RESULT, piece))
                    return None
        finally:
            work.cancel()
        return self._stopped(request)
