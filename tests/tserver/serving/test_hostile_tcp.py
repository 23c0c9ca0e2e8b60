"""Whatever a peer sends over TCP, once it is let in: of every operation, those between master and shards included."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from stelae.catalog.value import CatalogVersion
from stelae.format.log.copies import ReplicaKept, copy_record
from stelae.master.cluster import OPERATIONS as MASTER_ALL
from stelae.model.ids import Epoch, GroupId, Index, Row, TableId, TabletId, Txn
from stelae.model.ranges import RowRange
from stelae.ports.transport import Frame, FrameKind, RequestId
from stelae.registry import control as c
from stelae.registry import control_operations as ops
from stelae.registry.changes.asking import (
    CHANGE,
    AdoptChange,
    ChangeReport,
    ChangeRequest,
    DropChange,
    PrepareChange,
)
from stelae.registry.masters.draining import DRAIN, DrainedServers
from stelae.registry.masters.heartbeats import HEARTBEAT, Heartbeat, HeartbeatAnswer, Registration
from stelae.registry.masters.overview import OVERVIEW, ClusterOverview
from stelae.registry.masters.removing import REMOVE, LostTablets, RemovedServers
from stelae.registry.masters.unneeded import UNNEEDED, UnneededFiles
from stelae.registry.replication.appending import (
    APPEND,
    HOST,
    REPLICATION_OPERATIONS,
    AppendAnswer,
    AppendPart,
    RecordCopy,
)
from stelae.registry.replication.comparing import REPLICA_IMAGES
from stelae.registry.replication.members import CHANGE_MEMBERS, MembersNow, MembersWanted
from stelae.registry.tablet_records import TabletPhase, TabletRecord
from stelae.service import messages as m
from stelae.service.bodies import Bytes
from stelae.service.deadlines import Deadline
from stelae.service.table import OPERATIONS
from stelae.service.tickets import LoadedFile
from stelae.storage.replicas.comparing import RecordImage, ReplicaImage
from stelae.tserver.cluster import OPERATIONS as SHARD_ALL
from stelae.tserver.serving.service import ServiceLimits
from stelae.wire.frames import FrameDecoder, encode_frame
from tests.client.fake_backend import FakeBackend, table_info, until
from tests.client.samples import EVERYTHING
from tests.effort import HANG_S, tries
from tests.format.logs import log_record
from tests.tserver.serving.doors import TOKEN, DoorWorld, door_world, greet
from tests.tserver.serving.test_hostile import FILE, LAST, SAMPLES, TABLE, answers, check_faults, converse, numbered
from tests.wire.samples import mutated

CONTROL = {
    **ops.SHARD_CONTROL,
    **ops.MASTER_CONTROL,
    **REPLICATION_OPERATIONS,
    REPLICA_IMAGES.name: REPLICA_IMAGES,
    CHANGE_MEMBERS.name: CHANGE_MEMBERS,
}
ALL = {**OPERATIONS, **CONTROL}
CATALOG = CatalogVersion(3)
TABLET = TabletId(17)
REQUESTS: list[c.ControlRequest] = [
    c.CreateTablets((c.NewTablet(TABLET, TABLE, RowRange(b"", b"m")), c.NewTablet(TABLET, TABLE, RowRange(b"m")))),
    c.AlterTable(TABLE),
    c.UnloadTable(TABLE),
    c.LoadTable(TABLE),
    c.ProveTable(TABLE),
    c.DeleteTablets((TABLET, TabletId(18))),
    c.SplitTablet(TABLET, Row(b"m"), TabletId(18), TabletId(19)),
    c.JoinTablets(TABLET, TabletId(18), TabletId(19)),
    c.HostTablets((c.NewTablet(TABLET, TABLE, RowRange(b"")),)),
    c.HostReplicas((c.NewReplica(TABLET, TABLE, b"a config"),)),
    c.LeadTablets((c.Lead(TABLET, TABLE, 2, 3, ("n1/0@a", "n2/0@b"), 2, Txn(9)),)),
    c.AddReplicas(((TABLET, 2, "n3/0@c"),)),
    c.ResignTablets(((TABLET, 2),), True),
]
CHANGE_REQUESTS: list[ChangeRequest] = [
    PrepareChange(TABLE, "load-a", 2),
    AdoptChange(TABLE, "load-a", Txn(9), True),
    DropChange(TABLE, "load-a"),
]
COPY = copy_record(log_record(5, epoch=2, index=1))
KEPT = ReplicaKept(Epoch(2), (Epoch(1), Index(4)), Index(4), b"a config", (COPY,))
PART = AppendPart(TABLET, TABLE, 2, (1, 4), 3)
MEMBERS = ("n1/0@a", "n2/0@b")
REPORTED = (c.ReportedTablet(TABLET, TABLE, RowRange(b""), c.SERVING, 1),)  # type: ignore[arg-type]
CONTROL_SAMPLES: dict[str, list[tuple[m.Request, Bytes]]] = {
    "control": [ops.CONTROL.ask(request, CATALOG) for request in REQUESTS],
    "resize": [ops.RESIZE.ask(request, CATALOG) for request in REQUESTS[-2:]],
    "report": [ops.REPORT.ask(), ops.REPORT.ask(TABLE)],
    "choose_split": [
        ops.CHOOSE_SPLIT.ask(TABLE, Row(b"m"), None, CATALOG),
        ops.CHOOSE_SPLIT.ask(TABLE, None, TABLET, CATALOG),
    ],
    "look_at_sizes": [ops.LOOK_AT_SIZES.ask()],
    "split_tablet": [ops.SPLIT_TABLET.ask(TABLET, Row(b"m"))],
    "join_tablets": [ops.JOIN_TABLETS.ask(TABLET, TabletId(18))],
    "tablets_at_rest": [ops.TABLETS_AT_REST.ask()],
    "places": [ops.PLACES.ask()],
    "files_needed": [ops.FILES_NEEDED.ask()],
    "collect": [ops.COLLECT.ask(), ops.COLLECT.ask(True)],
    "unneeded_files": [UNNEEDED.ask()],
    "remove_servers": [REMOVE.ask("node-1", False), REMOVE.ask("node-1/0", True)],
    "drain_servers": [DRAIN.ask("node-1"), DRAIN.ask("node-1/0")],
    "heartbeat": [HEARTBEAT.ask(Heartbeat("n1/0", 1, 2, 3, 4, 1, REPORTED, (TABLET,), Registration("n1", "a:1")))],
    "locate": [ops.LOCATE.ask(TABLE)],
    "overview": [OVERVIEW.ask()],
    "change": [
        CHANGE.ask(CHANGE_REQUESTS[0], (LoadedFile(GroupId(1), FILE), LoadedFile(GroupId(2), FILE)), CATALOG),
        *(CHANGE.ask(request, (), CATALOG) for request in CHANGE_REQUESTS[1:]),
    ],
    "append": [APPEND.ask("a", (), ()), APPEND.ask("a", (PART, PART), ((COPY, COPY), ()))],
    "host": [HOST.ask("a", TABLE, TABLET, 2, KEPT)],
    "replica_images": [REPLICA_IMAGES.ask("a", [TABLET])],
    "change_members": [CHANGE_MEMBERS.ask([MembersWanted(TABLET, MEMBERS[0], 2, 3, MEMBERS)])],
}
REPORT = c.TabletReport("n1/0", REPORTED, is_full=True)
CONTROL_ANSWERS: dict[str, Any] = {
    **dict.fromkeys(("control", "resize", "report"), REPORT),
    "choose_split": ops.ChosenSplit(TABLET, Row(b"m")),
    **dict.fromkeys(("look_at_sizes", "split_tablet", "join_tablets"), None),
    "tablets_at_rest": ops.TabletsAtRest(3, (TabletRecord(TABLET, TABLE, RowRange(b""), TabletPhase.RUNNING),)),
    "places": ops.ClusterPlaces("a-store", (ops.ShardPlace("n1/0", "127.0.0.1:1", 1),)),
    "files_needed": ops.FilesNeeded(7, ("fragments/a",), ("fragments/b",), ("hold-a",)),
    "collect": (3, 4_000),
    "unneeded_files": UnneededFiles(3, 4_000, "a shard is away", 5.0),
    "remove_servers": RemovedServers(("node-1/0",), (LostTablets("t", 2),)),
    "drain_servers": DrainedServers(("node-1/0",), 3, 1),
    "heartbeat": HeartbeatAnswer(register=True, report_all=True, is_late=True, clock_off_ms=-5),
    "locate": ops.TableLocation(
        TABLE, ((Row(b""), "n1/0"), (Row(b"m"), "n1/1")), (ops.ShardPlace("n1/0", "127.0.0.1:1", 1),)
    ),
    "overview": ClusterOverview("m1", "m1", 1, 9_000, 3, 1, (), (), ()),
    "change": ChangeReport("n1/0", True, (RowRange(b"", b"m"),), Txn(8)),
    "append": (AppendAnswer(5), AppendAnswer(None, 3), AppendAnswer(None, 0, (1, 2))),
    "host": AppendAnswer(5),
    "replica_images": (ReplicaImage(2, 1, 2, (RecordImage(2, 2, 9),), 1, 7, ("fragments/a",)), None),
    "change_members": (MembersNow(TABLET, 4, MEMBERS), MembersNow(TABLET, refusal="it is led elsewhere")),
}


class ControlledBackend(FakeBackend):
    """Of a master and of a shard, too."""

    def control(
        self, request: c.ControlRequest, catalog: CatalogVersion, guard: int = 0, *, deadline: Deadline | None = None
    ) -> c.TabletReport:
        return self._told("control", request, catalog, guard, deadline=deadline)

    def change(
        self,
        request: ChangeRequest,
        files: Sequence[LoadedFile],
        catalog: CatalogVersion,
        guard: int = 0,
        *,
        deadline: Deadline | None = None,
    ) -> ChangeReport:
        return self._told("change", request, files, catalog, guard, deadline=deadline)

    def report(self, table: TableId | None = None, *, deadline: Deadline | None = None) -> c.TabletReport:
        return self._told("report", table, deadline=deadline)

    def files_needed(self, *, deadline: Deadline | None = None) -> ops.FilesNeeded:
        return self._told("files_needed", deadline=deadline)

    def heartbeat(self, beat: Heartbeat, *, deadline: Deadline | None = None) -> HeartbeatAnswer:
        return self._told("heartbeat", beat, deadline=deadline)

    def remove_servers(
        self, name: str, *, accepts_loss: bool = False, deadline: Deadline | None = None
    ) -> RemovedServers:
        return self._told("remove_servers", name, accepts_loss, deadline=deadline)

    def drain_servers(self, name: str, *, deadline: Deadline | None = None) -> DrainedServers:
        return self._told("drain_servers", name, deadline=deadline)

    def replica_images(
        self, log: str, tablets: Sequence[TabletId], *, deadline: Deadline | None = None
    ) -> tuple[ReplicaImage | None, ...]:
        return self._told("replica_images", log, tablets, deadline=deadline)

    def collect(self, *, for_good: bool = False, deadline: Deadline | None = None) -> tuple[int, int]:
        return self._told("collect", for_good, deadline=deadline)

    def unneeded_files(self, *, deadline: Deadline | None = None) -> UnneededFiles:
        return self._told("unneeded_files", deadline=deadline)

    def choose_split(
        self,
        table: TableId,
        at: Row | None,
        tablet: int | None,
        catalog: CatalogVersion,
        *,
        deadline: Deadline | None = None,
    ) -> ops.ChosenSplit:
        return self._told("choose_split", table, at, tablet, catalog, deadline=deadline)

    def look_at_sizes(self, *, deadline: Deadline | None = None) -> None:
        self._told("look_at_sizes", deadline=deadline)

    def split_tablet(self, tablet: TabletId, at: Row, *, deadline: Deadline | None = None) -> None:
        self._told("split_tablet", tablet, at, deadline=deadline)

    def join_tablets(self, left: TabletId, right: TabletId, *, deadline: Deadline | None = None) -> None:
        self._told("join_tablets", left, right, deadline=deadline)

    def tablets_at_rest(self, *, deadline: Deadline | None = None) -> ops.TabletsAtRest:
        return self._told("tablets_at_rest", deadline=deadline)

    def places(self, *, deadline: Deadline | None = None) -> ops.ClusterPlaces:
        return self._told("places", deadline=deadline)

    def locate(self, table: TableId, *, deadline: Deadline | None = None) -> ops.TableLocation:
        return self._told("locate", table, deadline=deadline)

    def append(
        self,
        log: str,
        parts: Sequence[AppendPart],
        copies: Sequence[Sequence[RecordCopy]],
        *,
        deadline: Deadline | None = None,
    ) -> tuple[AppendAnswer, ...]:
        return self._told("append", log, parts, copies, deadline=deadline)

    def host(
        self,
        log: str,
        table: TableId,
        tablet: TabletId,
        epoch: int,
        kept: ReplicaKept,
        *,
        deadline: Deadline | None = None,
    ) -> AppendAnswer:
        return self._told("host", log, table, tablet, epoch, kept, deadline=deadline)

    def change_members(
        self, wanted: Sequence[MembersWanted], *, deadline: Deadline | None = None
    ) -> tuple[MembersNow, ...]:
        return self._told("change_members", wanted, deadline=deadline)

    def overview(self, *, deadline: Deadline | None = None) -> ClusterOverview:
        return self._told("overview", deadline=deadline)


@pytest.fixture
def world() -> Iterator[DoorWorld]:
    """Nothing that goes wrong inside may go unseen."""
    backend = ControlledBackend(tables={TABLE: table_info(EVERYTHING)}, answers={**answers(), **CONTROL_ANSWERS})
    seen: list[dict[str, Any]] = []

    async def watch() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))

    with door_world(ServiceLimits(hello_s=HANG_S, connections_max=8), TOKEN, None, backend, ALL) as world:
        world.loop.run(watch())
        yield world
        until(lambda: world.service.connections <= 1, world.loop)
        until(lambda: not backend.pins and not backend.scans, world.loop)
    assert seen == []


def requests() -> list[Frame]:
    asked = [(name, *sample) for samples in (SAMPLES, CONTROL_SAMPLES) for name in samples for sample in samples[name]]
    return [ALL[name].method.ask(RequestId(n), message, body) for n, (name, message, body) in enumerate(asked, 1)]


def told(world: DoorWorld, said: bytes) -> list[Frame]:
    """Say it once let in, and one request more."""
    with world.peer() as peer:
        greet(peer, TOKEN)
        return converse(peer, said)


def test_every_operation_is_tried() -> None:
    assert ALL.keys() >= SHARD_ALL.keys() | MASTER_ALL.keys()
    assert CONTROL_SAMPLES.keys() == CONTROL.keys()
    assert {type(request) for request in REQUESTS} == set(c.ControlRequest.__args__)
    for name, samples in CONTROL_SAMPLES.items():
        assert {type(message) for message, _ in samples} == {CONTROL[name].message}
    assert any(body for _, body in CONTROL_SAMPLES["change"])


def test_as_they_are_those_between_servers_are_answered(world: DoorWorld) -> None:
    for name, samples in CONTROL_SAMPLES.items():
        for message, body in samples:
            asked = b"".join(encode_frame(CONTROL[name].method.ask(RequestId(1), message, body)))
            found = told(world, asked)
            assert FrameKind.ERROR not in {frame.kind for frame in found}, name
            assert LAST in {frame.request_id for frame in found}
    # Long ones are answered when they are done, whatever was asked after them. `resize` is carried out by `control`.
    until(lambda: {call[0] for call in world.backend.calls} >= CONTROL.keys() - {"resize"}, world.loop)


def test_mutated_messages_of_every_operation(world: DoorWorld) -> None:
    """Frames are right, so each mistake ends its own request, and the last one is answered. A soak says a million."""
    chance, good, refused = random.Random(1), requests(), 0
    other = world.attach(TOKEN)
    for _ in range(tries(500)):
        said = numbered([_wrong_inside(chance.choice(good), chance) for _ in range(40)])
        found = told(world, b"".join(said))
        refused += check_faults(found)
        assert LAST in {frame.request_id for frame in found}
        assert other.now() == 3
    assert refused > tries(500) * 8


def _wrong_inside(frame: Frame, chance: random.Random) -> Frame:
    """Of the operations between servers the message says all."""
    if frame.body and chance.random() < 0.7:
        return msgspec.structs.replace(frame, body=mutated(bytes(frame.body), chance))
    return msgspec.structs.replace(frame, message=mutated(bytes(frame.message), chance))


def test_mutated_frames_of_every_operation(world: DoorWorld) -> None:
    chance, good, answered = random.Random(2), requests(), 0
    other = world.attach(TOKEN)
    for _ in range(tries(500)):
        chosen = numbered(chance.choices(good, k=20))
        at = chance.randrange(len(chosen))
        chosen[at] = mutated(chosen[at], chance)
        found = told(world, b"".join(chosen))
        check_faults(found)
        answered += len(found)
        assert other.now() == 3
    assert answered > tries(500)


def test_a_stranger_reaches_nothing(world: DoorWorld) -> None:
    """Who has not proved the token is answered nothing but a refusal, whatever it asks for."""
    chance, good = random.Random(3), requests()
    for _ in range(tries(200)):
        said = b"".join(numbered(chance.choices(good, k=5)))
        with world.peer() as peer:
            with suppress(ConnectionError):
                peer.sendall(said)
                peer.shutdown(socket.SHUT_WR)
            decoder, found = FrameDecoder(), list[Frame]()
            with suppress(ConnectionError):
                while data := peer.recv(65536):
                    found += decoder.feed(data)
        assert {frame.kind for frame in found} <= {FrameKind.ERROR}
    assert world.backend.calls == []
    assert world.refusals == {"protocol": tries(200)}
