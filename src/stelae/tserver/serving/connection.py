"""One connection to the owner of a store: its requests and what it holds. See `service`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from stelae.model.errors import Closed, ConnectionLost, NotCached, ProtocolError, StelaeError
from stelae.model.ids import Row, TableId, Txn
from stelae.ports.transport import Connection, Frame, FrameKind, RequestId
from stelae.service import messages as m
from stelae.service.bodies import Bytes, blocks_apart, pieces, scan_from, taken_columns
from stelae.service.deadlines import Deadline
from stelae.service.operations import NEWEST, PIN, SCAN, UNPIN, WRITE, Operation
from stelae.tserver.serving.answers import answer_frame, outcome_of
from stelae.tserver.serving.blocks import read_block
from stelae.tserver.serving.jobs import HeldPins, begin_task, wait_in_turn
from stelae.tserver.serving.news import News
from stelae.tserver.serving.outbox import Outbox
from stelae.tserver.serving.reading import OVER, RequestReader
from stelae.tserver.serving.requests import OpenRequest, OpenRequests
from stelae.tserver.serving.scans import ANSWER_BYTES_MAX, OpenStream, ScanPart, scan_parts_of
from stelae.wire.messages import end_frame, error_frame

if TYPE_CHECKING:
    from stelae.tserver.serving.service import StoreService

SMALL_BYTES = 64 * 1024
"""A write of so many bytes is checked and let in faster than a thread is woken for it."""

_Work: TypeAlias = Callable[[], Coroutine[Any, Any, Frame | None]]


class ServedConnection:
    def __init__(self, service: StoreService, connection: Connection) -> None:
        self._service = service
        self._connection = connection
        self._requests = OpenRequests(service.limits.requests_max, service.limits.request_bytes_max)
        self._written: asyncio.Future[None] | None = None
        """Done when the last write that came has been given to the backend."""
        self._pins = HeldPins(service.limits.pins_max)
        self._outbox = Outbox(connection)
        self._is_leaving = False
        self._answered: deque[OpenRequest] = deque()
        """Writes that were answered by another thread, and are still counted as under way here."""
        self._reader = RequestReader(connection, self._requests, self._outbox, self._take, self._refuse)

    async def run(self) -> None:
        door, is_in = self._service.door, False
        try:
            is_in = await door.let_in(self._connection)
            if is_in:
                await self._serve()
        finally:
            await self.end()
            if is_in:
                door.leave()

    async def _serve(self) -> None:
        if not self._is_leaving:
            await self._reader.run()
        if self._is_leaving:
            await self._requests.finish(self._service.limits.close_s)

    def leave(self) -> None:
        """Ask no more; `run` ends when what is under way is answered, or has had its time."""
        self._is_leaving = True
        self._forget_answered()
        if self._reader.has_begun:
            self._reader.stop()
        else:
            self._service.afterwards(self._connection.close())

    async def end(self) -> None:
        self._reader.stop()
        tasks = self._requests.cancel()
        self._outbox.close()
        if self._pins:
            self._service.afterwards(self._free_pins())
        else:
            self._pins.close()
        if tasks:
            await asyncio.wait(tasks)
        with suppress(*OVER):
            await self._connection.close()

    # -- requests

    def _refuse(self, request: RequestId, error: ProtocolError) -> None:
        self._outbox.put(self._error_frame(request, error))

    def _take(self, frame: Frame) -> None:
        """Answer what needs no waiting, and begin with the rest. ProtocolError: what cannot be answered, and ends the
        connection."""
        if self._answered:
            self._forget_answered()
        known = self._requests.get(frame.request_id)
        if known is not None and known.is_answered:  # whoever answered it has not said so yet
            self._requests.remove(known)
            known = None
        match frame.kind:
            case FrameKind.REQUEST if known is None:
                try:
                    method = self._service.messages.find(frame.method)
                    asked: m.Request = method.read_request(frame)
                    if self._service.hear is not None:
                        self._service.hear(asked, self._service.afterwards)
                except StelaeError as error:
                    self._outbox.put(self._error_frame(frame.request_id, error))
                    return
                operation = self._service.operations[method.name]
                if operation is NEWEST and self._answer_from_cache(frame, asked):
                    return
                if operation is WRITE and self._let_in(frame, asked):
                    return
                self._begin(frame, operation, asked)
            case FrameKind.REQUEST:
                raise ProtocolError(f"request {frame.request_id} is under way; its id cannot be another's")
            case FrameKind.CANCEL:
                if known is not None:
                    known.end()
            case FrameKind.ANSWER | FrameKind.ERROR | FrameKind.ITEM | FrameKind.END:
                raise ProtocolError(f"{frame!r}: a client asks and cancels, and does not answer")

    def _begin(self, frame: Frame, operation: Operation[Any, Any], asked: m.Request) -> None:
        request = OpenRequest(frame, self._deadline(asked))
        work = self._work(request, frame, operation, asked)
        request.task = asyncio.create_task(self._answer(request, work))
        self._requests.add(request)

    def _deadline(self, asked: m.Request) -> Deadline | None:
        return None if asked.left_ms is None else Deadline(self._service.clock, asked.left_ms / 1_000)

    def _let_in(self, frame: Frame, asked: Any) -> bool:
        """Give a small write to the store here and now: no thread has to be woken for it, and nothing of it waits for
        a file. Whether that was done. It is answered when it is durable."""
        is_next = self._written is None or self._written.done()
        if len(frame.body) > SMALL_BYTES or asked.max_txn is not None or asked.must_show or not is_next:
            return False
        if not self._service.backend.is_local:
            return False
        request = OpenRequest(frame, self._deadline(asked))
        self._requests.add(request)
        try:
            future = self._submit(asked, frame.body, request.deadline)
        except Exception as error:  # noqa: BLE001 - as for other requests
            future = Future()
            future.set_exception(error)
        self._service.undecided[request] = None
        future.add_done_callback(partial(self._decide, request))
        return True

    def _decide(self, request: OpenRequest, decided: Future[Txn]) -> None:
        """From any thread. A write that was alone is answered right here, and the loop sleeps on; what came together is
        answered together, by the loop."""
        service = self._service
        is_alone = len(service.undecided) == 1 and not service.decided.is_bringing
        service.undecided.pop(request, None)
        is_told = False
        try:
            is_told = is_alone and self._answer_aside(request, decided)
        finally:  # whatever is odd here, the loop answers it
            request.is_answered = is_told
            if not is_told:
                service.decided.bring((self, request, decided))
        if is_told:
            self._answered.append(request)
            if self._is_leaving:  # whoever waits for the last answer may have looked before this one was there
                service.decided.bring((self, request, None))

    def _answer_aside(self, request: OpenRequest, decided: Future[Txn]) -> bool:
        if self._is_leaving or not self._requests.has_room.is_set():
            return False
        if decided.exception() is not None or self._doubt() is not None:
            return False
        request.is_answered = True  # before it is sent: its id may be another's as soon as it is received
        frame = answer_frame(request.id, WRITE.result.encode(decided.result()))
        request.is_answered = self._connection.send_aside(frame)
        return request.is_answered

    def _forget_answered(self) -> None:
        while self._answered:
            self._requests.remove(self._answered.popleft())

    def answer_write(self, request: OpenRequest, decided: Future[Txn] | None) -> None:
        """A write that was let in is durable, or is not. None: it is answered."""
        if decided is None:
            self._forget_answered()
            return
        error: Exception | None
        try:
            txn, error = decided.result(), self._doubt()
        except Exception as failed:  # noqa: BLE001 - as for other requests
            txn, error = Txn(0), failed
        if error is None:
            frame = answer_frame(request.id, WRITE.result.encode(txn))
        else:
            frame = self._error_frame(request.id, error)
        self._outbox.put(frame, partial(self._requests.remove, request))

    def _work(self, request: OpenRequest, frame: Frame, operation: Operation[Any, Any], asked: Any) -> _Work:
        if operation is WRITE:
            before, self._written = self._written, asyncio.get_running_loop().create_future()
            return partial(self._write, request, asked, frame.body, before, self._written)
        if operation is PIN:
            return partial(self._pin, request, asked)
        if operation is UNPIN:
            return partial(self._unpin, request, asked)
        if operation is SCAN:
            return partial(self._scan, request, asked, frame.body)
        serve = self._carry_out_long if operation.is_long else self._carry_out
        return partial(serve, request, operation, asked, frame.body)

    # -- answers

    async def _answer(self, request: OpenRequest, work: _Work) -> None:
        """Every request ends with one frame that says so, while there is a connection."""
        with suppress(*OVER):
            try:
                last = await work()
                await self._connection.send(end_frame(request.id) if last is None else last)
            except Exception as error:  # noqa: BLE001 - whatever it is, the peer is told, or the connection is over
                await self._send_error(request.id, error)

    async def _send_error(self, request: RequestId, error: Exception) -> None:
        await self._connection.send(self._error_frame(request, error))

    def _error_frame(self, request: RequestId, error: Exception) -> Frame:
        return error_frame(request, self._report(error), self._service.faults)

    def _report(self, error: BaseException) -> BaseException:
        """What the peer is told of an error; what is nobody's doing is told here, too."""
        if isinstance(error, Closed):
            return ConnectionLost(f"the process that has the store is closing it: {error}")
        if not isinstance(error, StelaeError):
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"a request of {self._connection.peer} failed", "exception": error}
            )
        return error

    async def _send_result(self, request: OpenRequest, data: Bytes) -> Frame | None:
        """The last frame of an answer; what is too large for one frame is sent in pieces before it."""
        if len(data) <= ANSWER_BYTES_MAX:
            return answer_frame(request.id, data)
        for piece in pieces(data):
            await self._connection.send(WRITE.method.answer(request.id, m.Item(m.ItemKind.PIECE), piece))
        return None

    def _answer_from_cache(self, frame: Frame, asked: Any) -> bool:
        store = self._service.backend
        if not store.is_local:
            return False
        try:
            at = None if asked.at is None else Txn(asked.at)
            found = store.newest_cached(TableId(asked.table), Row(asked.row), taken_columns(asked.columns), at)
            data = NEWEST.result.encode(found)
        except NotCached:
            return False
        except Exception as error:  # noqa: BLE001 - as for other requests
            self._outbox.put(self._error_frame(frame.request_id, error))
            return True
        if len(data) > ANSWER_BYTES_MAX:
            return False
        self._outbox.put(answer_frame(frame.request_id, data))
        return True

    async def _carry_out(
        self, request: OpenRequest, operation: Operation[Any, Any], asked: Any, body: Bytes
    ) -> Frame | None:
        job = self._job(request, operation, asked, body, _tell_nobody)
        return await self._send_result(request, await self._service.places_for(operation).run(job, request.deadline))

    def _job(
        self,
        request: OpenRequest,
        operation: Operation[Any, Any],
        asked: Any,
        body: Bytes,
        progress: Callable[[int, int], None],
    ) -> Callable[[], Bytes]:
        carry_out = operation.carry_out
        if carry_out is None:
            raise ProtocolError(f"{operation.name} is not carried out by itself")
        backend, deadline = self._service.backend, request.deadline
        return lambda: operation.result.encode(carry_out(backend, asked, body, deadline, progress))

    async def _write(
        self,
        request: OpenRequest,
        asked: m.WriteMessage,
        body: Bytes,
        before: asyncio.Future[None] | None,
        mine: asyncio.Future[None],
    ) -> Frame:
        deadline = request.deadline
        async with wait_in_turn(before, mine, deadline):
            under_way = await self._service.jobs.run(lambda: self._submit(asked, body, deadline), deadline)
        # Not cancelled with the connection: the write goes on without it.
        txn = await asyncio.shield(asyncio.wrap_future(under_way))
        doubt = self._doubt()
        if doubt is not None:
            raise doubt
        return answer_frame(request.id, WRITE.result.encode(txn))

    def _doubt(self) -> StelaeError | None:
        """What a writer is told instead of the txn of its durable write, if nothing may be acknowledged now."""
        doubt = self._service.doubt
        return None if doubt is None else doubt()

    def _submit(self, asked: m.WriteMessage, body: Bytes, deadline: Deadline | None) -> Future[Txn]:
        store, table = self._service.backend, TableId(asked.table)
        schema = store.info(table, deadline=deadline).schema
        given = zip(blocks_apart(asked.sizes, body), asked.numbers(), strict=True)
        blocks = [read_block(schema, block, once=once) for block, once in given]
        max_txn = None if asked.max_txn is None else Txn(asked.max_txn)
        submitted: Future[Txn] = store.submit(table, blocks, max_txn, must_show=asked.must_show, deadline=deadline)
        return submitted

    async def _pin(self, request: OpenRequest, asked: m.PinMessage) -> Frame:
        at = None if asked.at is None else Txn(asked.at)

        def pin() -> bytes:
            number, pin = self._pins.add(lambda: self._service.backend.pin(at, deadline=request.deadline))
            return PIN.result.encode((number, pin.txn))

        return answer_frame(request.id, await self._service.jobs.run(pin, request.deadline))

    async def _unpin(self, request: OpenRequest, asked: m.UnpinMessage) -> Frame:
        await self._service.jobs.run(lambda: self._pins.free(asked.pin))
        return answer_frame(request.id, b"")

    async def _free_pins(self) -> None:
        await self._service.jobs.run_surely(self._pins.close)

    # -- streams

    async def _scan(self, request: OpenRequest, asked: m.ScanMessage, body: Bytes) -> Frame | None:
        store = self._service.backend

        def open_parts() -> Iterator[ScanPart]:
            return scan_parts_of(store.scan(TableId(asked.table), scan_from(asked, body), deadline=request.deadline))

        stream = OpenStream(open_parts, request.id)
        ahead = begin_task(self._service.jobs.run(stream.pull, request.deadline))
        is_over = False
        try:
            while await self._goes_on(request, ahead):
                item = ahead.result()
                if item is None:
                    is_over = True
                    return None
                again = None if request.deadline is None else request.deadline.anew()
                ahead = begin_task(self._service.jobs.run(stream.pull, again))
                await self._connection.send(item)
        finally:
            ahead.cancel()
            if not is_over:
                self._service.afterwards(self._service.jobs.run_surely(stream.close))
        return self._stopped(request)

    async def _goes_on(self, request: OpenRequest, ahead: asyncio.Task[Any]) -> bool:
        await asyncio.wait((ahead, request.stop), return_when=asyncio.FIRST_COMPLETED)
        return not request.stop.done()

    def _stopped(self, request: OpenRequest) -> Frame | None:
        if not self._is_leaving:
            return None
        return error_frame(
            request.id, ConnectionLost("the process that has the store is closing it"), self._service.faults
        )

    async def _carry_out_long(
        self, request: OpenRequest, operation: Operation[Any, Any], asked: Any, body: Bytes
    ) -> Frame | None:
        """Work that tells how far it is, or at least that it goes on, and then what came of it. It goes on if nobody
        wants to know. What is not safe to repeat is waited for when the service is closed, as writes are."""
        news = News(request.deadline)
        job = self._job(request, operation, asked, body, news.tell)
        work = begin_task(self._service.places_for(operation).run(job, request.deadline))
        news.wake_with(work, request.stop)
        try:
            while not request.stop.done() or (self._is_leaving and not operation.is_repeatable):
                item = await news.wait()
                if item is None and work.done():
                    return await self._send_result(request, outcome_of(work, operation))
                sign = m.Item(m.ItemKind.PROGRESS) if item is None else item
                await self._connection.send(operation.method.answer(request.id, sign))
        finally:
            work.cancel()
        return self._stopped(request)


def _tell_nobody(_: int, __: int) -> None:
    return
