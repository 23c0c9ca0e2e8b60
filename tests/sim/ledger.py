"""A small service on a simulated world, for tests of the world itself: it keeps numbers, and must lose none that it
said it has.

    server    puts each number into its log, syncs, and answers; started again, it reads its logs and goes on
    clients   send numbers until they are answered, over new connections if need be
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from zlib import crc32

from stelae.model.errors import StelaeError, Unavailable
from stelae.ports.logfiles import LogFile
from stelae.ports.metastore import PutKey
from stelae.ports.transport import Address, Connection, Frame, FrameKind, RequestId
from stelae.sim.nemesis import Nemesis, draw_swarm
from stelae.sim.world import ProcessPorts, SimWorld

ADDRESS = Address("ledger:1")
ANSWER_S_MAX = 3.0
PROGRESS_S_MAX = 300.0
CLIENTS = 2
NUMBERS = 20
_RECORD_BYTES = 8


@dataclass
class Ledger:
    """What the test knows: what was acknowledged, and how the server behaves. `syncs_late`: a planted bug."""

    syncs_late: bool = False
    acknowledged: dict[int, float] = field(default_factory=dict)

    async def serve(self, ports: ProcessPorts) -> None:
        known, file = await asyncio.wrap_future(ports.log_jobs.submit(_recover, ports))
        await _register(ports)
        listener = await ports.transport.listen(ADDRESS)
        queue: asyncio.Queue[tuple[Connection, Frame]] = asyncio.Queue(100)

        async def hear(connection: Connection) -> None:
            with suppress(Unavailable):
                while (frame := await connection.receive()) is not None:
                    await queue.put((connection, frame))
            await connection.close()

        async def accept() -> None:
            async with asyncio.TaskGroup() as group:
                async for connection in listener.accept():
                    group.create_task(hear(connection))

        accepting = asyncio.create_task(accept())
        try:
            while True:
                connection, frame = await queue.get()
                if frame.method == "all":
                    await _answer(connection, frame, b",".join(b"%d" % number for number in sorted(known)))
                    continue
                number = int(bytes(frame.message))
                if self.syncs_late:
                    await _answer(connection, frame)
                if number not in known:
                    await asyncio.wrap_future(ports.log_jobs.submit(_store, file, number))
                    known.add(number)
                if not self.syncs_late:
                    await _answer(connection, frame)
        finally:
            accepting.cancel()

    async def send(self, ports: ProcessPorts, numbers: range) -> None:
        for number in numbers:
            while number not in self.acknowledged:
                try:
                    await _ask(ports, "add", b"%d" % number)
                    self.acknowledged[number] = ports.loop.now_ns / 1e9
                except (StelaeError, TimeoutError):
                    await asyncio.sleep(ports.rng.fraction())
            await asyncio.sleep(ports.rng.fraction() * 0.2)
        await asyncio.Event().wait()

    async def disturbed(self, world: SimWorld, kinds: Sequence[str]) -> set[int]:
        """Faults while clients write; then all is healed, and everything must be acknowledged soon, and be there."""
        for number in range(CLIENTS):
            numbers = range(100 * number + 1, 100 * number + 1 + NUMBERS)
            world.add(f"client-{number}", partial(self.send, numbers=numbers))
        world.add("server", self.serve)
        for name in world.names:
            world.start(name)
        nemesis = Nemesis(world, draw_swarm(world.rng("swarm"), kinds, faults_max=12))
        await nemesis.run()
        nemesis.end()
        async with asyncio.timeout(PROGRESS_S_MAX):
            while len(self.acknowledged) < CLIENTS * NUMBERS:
                await asyncio.sleep(1)
        return await self.check(world, PROGRESS_S_MAX)

    async def check(self, world: SimWorld, within_s: float) -> set[int]:
        """Everything is healed: the server answers within that time, and has all that was acknowledged."""
        found: set[int] = set()

        async def ask(ports: ProcessPorts) -> None:
            while True:
                with suppress(Unavailable, TimeoutError):
                    answer = await _ask(ports, "all", b"")
                    found.update(int(number) for number in answer.split(b",") if number)
                    return
                await asyncio.sleep(0.1)

        world.add("judge", ask, restarts=False)
        async with asyncio.timeout(within_s):
            await world.start("judge").ended()
        lost = sorted(set(self.acknowledged) - found)
        assert not lost, f"acknowledged and lost: {lost}"
        return found


async def _register(ports: ProcessPorts) -> None:
    """In the metastore and in the object store, so that faults of these are met."""
    while True:
        try:
            await ports.metastore.txn([], [PutKey("server", ports.name.encode())])
            await asyncio.wrap_future(ports.jobs.submit(_mark, ports, f"lives/{ports.rng.below(2**40)}"))
            return
        except StelaeError:
            await asyncio.sleep(0.2)


def _mark(ports: ProcessPorts, name: str) -> None:
    for info in ports.blobs.list("lives/"):
        ports.blobs.delete(info.name)
    writer = ports.blobs.create(name)
    writer.write(ports.name.encode())
    writer.commit()


async def _ask(ports: ProcessPorts, method: str, message: bytes) -> bytes:
    async with asyncio.timeout(ANSWER_S_MAX):
        connection = await ports.transport.connect(ADDRESS)
        try:
            await connection.send(Frame(FrameKind.REQUEST, RequestId(1), method, message))
            answer = await connection.receive()
        finally:
            connection.shut()
    if answer is None:
        raise Unavailable("no answer")
    return bytes(answer.message)


async def _answer(connection: Connection, request: Frame, message: bytes = b"") -> None:
    with suppress(StelaeError):
        await connection.send(Frame(FrameKind.ANSWER, request.request_id, "", message))


def _store(file: LogFile, number: int) -> None:
    file.append(_record(number))
    file.sync()


def _record(number: int) -> bytes:
    data = number.to_bytes(4, "big")
    return data + crc32(data).to_bytes(4, "big")


def _recover(ports: ProcessPorts) -> tuple[set[int], LogFile]:
    """Read what is there, and write it anew: bytes that a kill left unsynced prove nothing."""
    known: set[int] = set()
    files = [info.name for info in ports.disk.list()]
    for name in files:
        known |= _numbers(ports.disk.read(name))
    next_number = int(files[-1]) + 1 if files else 0
    file = ports.disk.create(f"{next_number:08}")
    file.append(*(_record(number) for number in sorted(known)))
    file.sync()
    for name in files:
        ports.disk.delete(name)
    return known, file


def _numbers(data: bytes) -> set[int]:
    found: set[int] = set()
    for start in range(0, len(data) - _RECORD_BYTES + 1, _RECORD_BYTES):
        record = data[start : start + _RECORD_BYTES]
        if crc32(record[:4]) != int.from_bytes(record[4:], "big") or not any(record):
            return found
        found.add(int.from_bytes(record[:4], "big"))
    return found
