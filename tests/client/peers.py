"""Owners of a store that behave badly at the other end of a socket, each in its own way."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import pyarrow as pa

from stelae.ports.transport import Frame, FrameKind, RequestId
from stelae.service.bodies import batch_slices, schema_bytes
from stelae.service.messages import Item, ItemKind
from stelae.service.operations import PIN, SCAN
from stelae.wire.frames import FrameDecoder, encode_frame
from stelae.wire.hello import hello_frame
from tests.client.fake_backend import OWNER


class BadPeer:
    """Takes connections, each with a thread that does `serve` with it. `requests`: what it was asked."""

    def __init__(self, path: str, serve: Callable[[BadPeer, socket.socket], None]) -> None:
        self.stop = Event()
        self.requests: list[Frame] = []
        self._serve = serve
        self._taken: list[socket.socket] = []
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(path)
        self._listening.listen(128)
        self._threads = [Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                taken, _ = self._listening.accept()
                self._taken.append(taken)
                self._threads.append(Thread(target=self._run, args=(taken,), daemon=True))
                self._threads[-1].start()

    def _run(self, taken: socket.socket) -> None:
        with suppress(OSError):
            self._serve(self, taken)

    def asked(self, taken: socket.socket) -> Iterator[Frame]:
        """Says hello, then takes request after request."""
        taken.sendall(b"".join(encode_frame(hello_frame(OWNER, FrameKind.ANSWER))))
        decoder, hello = FrameDecoder(), True
        while data := taken.recv(65_536):
            for frame in decoder.feed(data):
                if not hello:
                    self.requests.append(frame)
                    yield frame
                hello = False

    def close(self) -> None:
        self.stop.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for taken in self._taken:
            with suppress(OSError):
                taken.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join()
        for taken in self._taken:
            taken.close()


def send(taken: socket.socket, frame: Frame) -> None:
    taken.sendall(b"".join(encode_frame(frame)))


def never_answer(peer: BadPeer, taken: socket.socket) -> None:
    for _ in peer.asked(taken):
        pass


def answer_byte_by_byte(peer: BadPeer, taken: socket.socket) -> None:
    """One byte of a long answer whenever the caller might think of giving up."""
    for frame in peer.asked(taken):
        for byte in b"".join(encode_frame(Frame(FrameKind.ANSWER, frame.request_id, body=bytes(100_000)))):
            taken.sendall(bytes([byte]))
            if peer.stop.wait(0.02):
                return


def stop_in_the_middle(peer: BadPeer, taken: socket.socket) -> None:
    """The beginning of a scan; of anything else that may come in pieces the first piece."""
    for frame in peer.asked(taken):
        if frame.method == SCAN.name:
            send_first_batch(taken, frame.request_id)
        elif frame.method != PIN.name:
            send(taken, SCAN.method.answer(frame.request_id, Item(ItemKind.PIECE), b"x"))


def send_first_batch(taken: socket.socket, request: RequestId) -> None:
    batch = pa.record_batch({"n": [1, 2]})
    send(taken, SCAN.method.answer(request, Item(ItemKind.OPENED)))
    send(taken, SCAN.method.answer(request, Item(ItemKind.SCHEMA), schema_bytes(batch.schema)))
    for part in batch_slices(batch):
        send(taken, SCAN.method.answer(request, Item(ItemKind.BATCH), part))


def never_greet(peer: BadPeer, _: socket.socket) -> None:
    peer.stop.wait()


@contextmanager
def bad_peer(directory: Path, serve: Callable[[BadPeer, socket.socket], None]) -> Iterator[tuple[str, BadPeer]]:
    path = str(directory / "b.sock")
    peer = BadPeer(path, serve)
    try:
        yield path, peer
    finally:
        peer.close()
