"""Whatever a peer sends: the worst that happens is that its own connection ends, and it is told why in words."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from stelae.client.intake.mutations import blocks_of
from stelae.client.remote.writes import write_groups
from stelae.format.fragment.footer import FragmentFile, FragmentSeal, FragmentStats
from stelae.model.errors import InternalFault, ProtocolError, StelaeError
from stelae.model.ids import GroupId, Micros, Row, TableId, Txn
from stelae.model.predicate.parser import parse
from stelae.model.predicate.plan import TimeRange, plan
from stelae.model.predicate.selectors import ColumnSelector
from stelae.ports.transport import Frame, FrameKind, RequestId
from stelae.service import bodies
from stelae.service import job_operations as jobs
from stelae.service import messages as m
from stelae.service import operations as ops
from stelae.service.bodies import Bytes
from stelae.service.reports import CheckReport
from stelae.service.scans import ScanAsk
from stelae.service.spaces import (
    AlterZoneAsk,
    CreateNamespaceAsk,
    CreateZoneAsk,
    DropNamespaceAsk,
    DropZoneAsk,
    SpacesInfo,
)
from stelae.service.table import OPERATIONS
from stelae.service.tables import AlterAsk, CreateAsk, TableStats
from stelae.service.tickets import CompactionTicket, HeldTable, LoadedFile, LoadTicket
from stelae.tserver.serving.blocks import read_block
from stelae.tserver.serving.service import ServiceLimits
from stelae.wire.frames import FrameDecoder, encode_frame
from stelae.wire.hello import hello_frame
from stelae.wire.messages import read_error
from tests.client.fake_backend import CLIENT, FakeBackend, StoreWorld, served, table_info, until
from tests.client.samples import EVERYTHING, USERS, every_type
from tests.effort import HANG_S, tries
from tests.wire.samples import mutated

TABLE = TableId(7)
ROWS = [row | {"id": 10 * n + at} for n in range(3) for at, row in enumerate(every_type())]
SMALL = next(write_groups(TABLE, blocks_of(EVERYTHING, ROWS), None, must_show=False))
COLUMNAR = next(write_groups(TABLE, blocks_of(EVERYTHING, ROWS, small_rows_max=0), Txn(5), must_show=True))
CREATE = bodies.create_parts(CreateAsk("x.y", USERS, (Row(b"a"), Row(b"b")), "z"))
SCAN = bodies.scan_parts(TABLE, ScanAsk(plan(parse('"a" <= row < "n" and (age > 3 or name = "x")')), Txn(4)))
COLUMNS = (ColumnSelector("age", is_prefix=False), ColumnSelector("click:", is_prefix=True))
FILE = FragmentFile(
    "fragments/1.parquet",
    FragmentSeal(9, 8, 7, 6, 5),
    FragmentStats(3, 2, 1, 0, b"a", b"z", Txn(4), Txn(5), Micros(6), Micros(7)),
    Txn(8),
    Micros(9),
)
FILES = bodies.files_bytes((LoadedFile(GroupId(1), FILE), LoadedFile(GroupId(2), FILE)))

SAMPLES: dict[str, list[tuple[m.Request, Bytes]]] = {
    "find": [ops.FIND.ask("main.x")],
    "info": [ops.INFO.ask(TABLE)],
    "names": [ops.NAMES.ask()],
    "spaces": [ops.SPACES.ask()],
    "change_spaces": [ops.CHANGE_SPACES.ask(CreateZoneAsk("z", racks=("a",))), ops.CHANGE_SPACES.ask(DropZoneAsk("z"))],
    "create": [CREATE],
    "alter": [ops.ALTER.ask("x", AlterAsk(("a",), add={"g": {"k": "string"}}))],
    "drop": [ops.DROP.ask("x", True)],
    "recall": [ops.RECALL.ask("x", "y")],
    "split": [ops.SPLIT.ask(TABLE, Row(b"x"), None), ops.SPLIT.ask(TABLE, None, 3)],
    "join": [ops.JOIN.ask(TABLE, Row(b"x"))],
    "write": [(SMALL.message, SMALL.body), (COLUMNAR.message, COLUMNAR.body)],
    "truncate": [ops.TRUNCATE.ask(TABLE)],
    "now": [ops.NOW.ask()],
    "newest": [ops.NEWEST.ask(TABLE, Row(b"ann"), COLUMNS, None)],
    "newest_many": [ops.NEWEST_MANY.ask(TABLE, [Row(b"a"), Row(b"b")], COLUMNS, Txn(5))],
    "history": [ops.HISTORY.ask(TABLE, Row(b"ann"), COLUMNS, 3, None, TimeRange(0, 99))],
    "scan": [SCAN],
    "pin": [ops.PIN.ask(None)],
    "unpin": [ops.UNPIN.ask(0)],
    "flush": [ops.FLUSH.ask(TABLE)],
    "compact": [ops.COMPACT.ask(TABLE, True)],
    "tablets": [ops.TABLETS.ask(TABLE)],
    "stats": [ops.STATS.ask(TABLE)],
    "metrics": [ops.METRICS.ask()],
    "check": [ops.CHECK.ask()],
    "hold": [jobs.HOLD.ask(TABLE, Txn(4), 12.5)],
    "renew": [jobs.RENEW.ask("hold-1", 60.0)],
    "release": [jobs.RELEASE.ask("hold-1")],
    "begin_load": [jobs.BEGIN_LOAD.ask(TABLE, "a job", 3, 60.0)],
    "commit_load": [(m.CommitLoadMessage("load-1", True), FILES)],
    "begin_compaction": [jobs.BEGIN_COMPACTION.ask(TABLE, True, False, 60.0)],
    "adopt": [jobs.ADOPT.ask("compaction-1", 3, FILE), jobs.ADOPT.ask("compaction-1", 4, None)],
}
"""Of each operation, something that is asked of a real store."""

HELLO = b"".join(encode_frame(hello_frame(CLIENT, FrameKind.REQUEST)))


def frames() -> list[Frame]:
    """Half of them say until when, as real callers do."""
    asked = [(name, *sample) for name, samples in SAMPLES.items() for sample in samples]
    requests = [
        OPERATIONS[name].method.ask(
            RequestId(n), msgspec.structs.replace(message, left_ms=60_000) if n % 2 else message, body
        )
        for n, (name, message, body) in enumerate(asked, 1)
    ]
    return [*requests, Frame(FrameKind.CANCEL, RequestId(3)), Frame(FrameKind.CANCEL, RequestId(15))]


def test_every_operation_is_tried() -> None:
    assert SAMPLES.keys() == OPERATIONS.keys()
    for name, samples in SAMPLES.items():
        assert {type(message) for message, _ in samples} == {OPERATIONS[name].message}


def answers() -> dict[str, Any]:
    info = table_info(EVERYTHING)
    return {
        **dict.fromkeys(("find", "create", "alter", "recall"), info),
        **dict.fromkeys(("drop", "flush", "split", "join", "renew", "release"), None),
        **dict.fromkeys(("truncate", "now", "write", "pin", "commit_load"), Txn(3)),
        "names": ("a.b",),
        **dict.fromkeys(("spaces", "change_spaces"), SpacesInfo((), ())),
        "newest": {"a": 1},
        "newest_many": lambda _, rows, *__: [None] * len(rows),
        "history": None,
        "scan": [pa.record_batch({"n": [1, 2]})] * 2,
        "compact": [(1, 1)],
        "tablets": (),
        "stats": TableStats(1, 2, 3, 4, 5, 6, 7),
        "metrics": {"a": 1},
        "check": CheckReport((), {}),
        "hold": HeldTable("hold-1", Txn(4), Txn(2), "x", "/data", b"table", (b"config",), "token"),
        "begin_load": LoadTicket("load-1", TABLE, "x", "/data", "fragments/x", b"table", (Row(b""),)),
        "begin_compaction": CompactionTicket("compaction-1", TABLE, "/data", "fragments/x", b"table", ()),
        "adopt": True,
    }


@pytest.fixture
def world(tmp_path: Path) -> Iterator[StoreWorld]:
    """Nothing that goes wrong inside may go unseen."""
    backend = FakeBackend(tables={TABLE: table_info(EVERYTHING)}, answers=answers())
    seen: list[dict[str, Any]] = []

    async def watch() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))

    with served(tmp_path, backend, ServiceLimits(connections_max=8)) as world:
        world.loop.run(watch())
        yield world
        until(lambda: world.service.connections <= 1, world.loop)
        until(lambda: not backend.pins and not backend.scans, world.loop)
    assert seen == []


LAST = RequestId(2**40)
FAREWELL = b"".join(encode_frame(ops.NOW.method.ask(LAST, m.NothingMessage())))


def told(world: StoreWorld, data: bytes) -> list[Frame]:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(world.path)
        return converse(peer, data)


def converse(peer: socket.socket, data: bytes) -> list[Frame]:
    """Send it all and one request more; what comes back, up to the answer of that or the connection's end."""
    decoder, found = FrameDecoder(), list[Frame]()
    peer.settimeout(HANG_S)
    with suppress(BrokenPipeError, ConnectionResetError):
        peer.sendall(data + FAREWELL)
        if not _ends_with_farewell(data + FAREWELL):
            peer.shutdown(socket.SHUT_WR)
    with suppress(ConnectionResetError):
        while all(frame.request_id != LAST for frame in found) and (received := peer.recv(65536)):
            found += decoder.feed(received)
    assert decoder.fault is None
    return found


def _ends_with_farewell(data: bytes) -> bool:
    """Whether whoever reads this finds the last request, and no part of a frame that is longer than it should be."""
    decoder, found = FrameDecoder(), list[Frame]()
    with suppress(ProtocolError):
        found = decoder.feed(data)
    return not decoder.pending_bytes and (decoder.fault is not None or any(each.request_id == LAST for each in found))


def numbered(chosen: list[Frame]) -> list[bytes]:
    """Requests with ids of their own; cancels of whatever has theirs."""
    ids = [RequestId(at) if frame.kind is FrameKind.REQUEST else frame.request_id for at, frame in enumerate(chosen)]
    pairs = zip(chosen, ids, strict=True)
    return [b"".join(encode_frame(msgspec.structs.replace(frame, request_id=id_))) for frame, id_ in pairs]


def check_faults(found: list[Frame]) -> int:
    errors = [read_error(frame, ops.STORE_FAULTS) for frame in found if frame.kind is FrameKind.ERROR]
    assert not [error for error in errors if isinstance(error, InternalFault)]
    return len(errors)


def test_as_they_are_all_are_answered(world: StoreWorld) -> None:
    for frame in frames():
        if frame.kind is FrameKind.REQUEST:
            with socket.socket(socket.AF_UNIX) as peer:
                peer.connect(world.path)
                peer.sendall(HELLO + b"".join(encode_frame(frame)))
                decoder, kinds = FrameDecoder(), list[FrameKind]()
                while not {FrameKind.END, FrameKind.ERROR} & set(kinds) and kinds.count(FrameKind.ANSWER) < 2:
                    kinds += [each.kind for each in decoder.feed(peer.recv(65536))]
                assert (FrameKind.ERROR in kinds) == (frame.method == "unpin"), frame


def test_mutated_frames(world: StoreWorld) -> None:
    """One stream of some requests, in any order, of which some bytes are wrong somewhere."""
    chance = random.Random(5)
    good, refused, answered = frames(), 0, 0
    other = world.attach()
    for _ in range(tries(1_200)):
        chosen = numbered(chance.choices(good, k=20))
        at = chance.randrange(len(chosen))
        chosen[at] = mutated(chosen[at], chance)
        hello = mutated(HELLO, chance) if chance.random() < 0.05 else HELLO
        found = told(world, hello + b"".join(chosen))
        refused += check_faults(found)
        answered += len(found)
        assert other.now() == 3
    assert answered > 5 * refused > tries(500)
    _check_calls(world.backend)


def test_mutated_messages_in_sound_frames(world: StoreWorld) -> None:
    """The frame is right, so the mistake ends the request alone: the last one is answered, too."""
    chance = random.Random(6)
    good, refused = [frame for frame in frames() if frame.kind is FrameKind.REQUEST], 0
    for _ in range(tries(600)):
        chosen = [_wrong_inside(chance.choice(good), chance) for _ in range(15)]
        found = told(world, HELLO + b"".join(numbered(chosen)))
        refused += check_faults(found)
        assert found[-1].request_id == LAST or LAST in {frame.request_id for frame in found}
    assert refused > tries(1_000)
    _check_calls(world.backend)


def _wrong_inside(frame: Frame, chance: random.Random) -> Frame:
    if frame.body and chance.random() < 0.7:
        return msgspec.structs.replace(frame, body=mutated(bytes(frame.body), chance))
    return msgspec.structs.replace(frame, message=mutated(bytes(frame.message), chance))


def test_random_bytes(world: StoreWorld) -> None:
    chance = random.Random(7)
    other = world.attach()
    for _ in range(tries(400)):
        data = chance.randbytes(chance.randrange(200))
        found = told(world, HELLO + data if chance.random() < 0.5 else data)
        assert {frame.kind for frame in found} <= {FrameKind.ANSWER, FrameKind.ERROR}
        check_faults(found)
        assert other.now() == 3
    assert {call[0] for call in world.backend.calls} == {"now"}


SPACES_ASKS = (CreateNamespaceAsk, DropNamespaceAsk, CreateZoneAsk, AlterZoneAsk, DropZoneAsk)


def _check_calls(backend: FakeBackend) -> None:
    """What got through is what the types say, whatever was sent."""
    kinds = (
        str,
        int,
        float,
        bytes,
        tuple,
        *SPACES_ASKS,
        CreateAsk,
        AlterAsk,
        ScanAsk,
        TimeRange,
        FragmentFile,
        type(None),
    )
    for call in backend.calls:
        assert all(isinstance(argument, kinds) for argument in call[1:]), call


BODIES: dict[str, tuple[bytes, Callable[[bytes], Any]]] = {
    "create": (CREATE[1], lambda data: bodies.create_from(CREATE[0], data)),
    "scan": (SCAN[1], lambda data: bodies.scan_from(SCAN[0], data)),
    "rows": (bodies.rows_bytes([Row(b"a"), Row(b"bc")]), bodies.rows_from),
    "small": (bytes(SMALL.body), lambda data: read_block(EVERYTHING, data)),
    "columnar": (bytes(COLUMNAR.body), lambda data: read_block(EVERYTHING, data)),
    "values": (bodies.values_bytes(ROWS[0]), bodies.values_from),
    "found": (bodies.found_bytes((Txn(7), ROWS[0])), bodies.found_from),
    "many": (bodies.many_bytes((Txn(7), [*ROWS[:2], None])), bodies.many_from),
    "table": (bodies.info_bytes(table_info(EVERYTHING)), bodies.info_from),
    "files": (FILES, bodies.files_from),
    "file": (bodies.file_bytes(FILE), bodies.file_from),
}


@pytest.mark.parametrize("which", BODIES)
def test_mutated_bodies(which: str) -> None:
    data, read = BODIES[which]
    read(data)
    chance = random.Random(which)
    refused = 0
    for _ in range(tries(1_500)):
        try:
            read(mutated(data, chance))
        except StelaeError:
            refused += 1
    assert refused > tries(100)


def test_a_length_beyond_the_limit_ends_the_connection_at_once(world: StoreWorld) -> None:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(world.path)
        peer.settimeout(HANG_S)
        peer.sendall(HELLO + struct.pack("<II", 2**32 - 1, 100))
        while peer.recv(65536):
            pass


def test_who_reads_no_answers_is_not_read(world: StoreWorld) -> None:
    """Answers wait in bounded buffers, so requests do, too; others are served."""
    other = world.attach()
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(world.path)
        peer.sendall(HELLO)
        peer.setblocking(False)
        waiting, number, seen = b"", 0, -1
        while seen != len(_finds(world)):
            seen = len(_finds(world))
            with suppress(BlockingIOError):
                while True:
                    number += 1
                    waiting = waiting or b"".join(
                        encode_frame(ops.FIND.method.ask(RequestId(number), m.NameMessage("x")))
                    )
                    waiting = waiting[peer.send(waiting) :]
            for _ in range(200):
                other.now()
        assert 0 < seen < number
        assert seen * len(bodies.info_bytes(table_info(EVERYTHING))) < 8 * 2**20


def _finds(world: StoreWorld) -> list[Any]:
    return [call for call in world.backend.calls if call[0] == "find"]


def test_promises_cost_nothing(world: StoreWorld) -> None:
    """Many who announce the largest frame, and send little of it."""
    header = b"".join(encode_frame(ops.WRITE.method.ask(RequestId(1), SMALL.message, bytes(60 * 2**20))))[:4096]
    other = world.attach()
    peers = [socket.socket(socket.AF_UNIX) for _ in range(6)]
    for peer in peers:
        peer.connect(world.path)
        peer.sendall(HELLO + header)
    for _ in range(100):
        assert other.now() == 3
    assert world.service.connections == 7
    for peer in peers:
        peer.close()
