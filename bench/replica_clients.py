"""The clients of the replicas bench: those of the remote bench, of stores that keep several copies of each row.

Each can also put one row after the other, whatever happens to the members, and say which of them leads.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
from made_rows import key_of
from remote_clients import MANY, READ, WRITTEN, EtcdTasks, KuduThreads, PostgresTasks, StelaeTasks, etcd_put, stub_of
from remote_load import GET, Call, Client, ThreadClient
from server_processes import HOST, client_module
from spark_peers import PeerFailed

import stelae
from stelae.adapters.etcd.messages import TXN, grpc_module
from stelae.model.errors import Retryable, UnknownOutcome

LARGE_VALUE = 10_000
"""Bytes of a row that a member misses."""
_AT_ONCE = 64
_TXN_ROWS = 100
_FLUSHED = 1_000
_KEYS = 1_000
_CALL_S_MAX = 1.0
"""After it a call is repeated when a member was lost."""


class Copies(Client):
    """Of a store whose members may be lost."""

    @abstractmethod
    def put_once(self, key: bytes, value: bytes) -> bool:
        """Whether it is known to have happened."""

    def leader_port(self) -> int | None:
        """Where the member that leads listens; None if none does."""
        return None

    def watch(self, seconds: float) -> list[float]:
        """Put one row after the other for so long: when each was durable, by `time.monotonic`."""
        found, until_s, number = [], time.monotonic() + seconds, 0
        while time.monotonic() < until_s:
            if self.put_once(key_of(number % _KEYS), b"x" * 100):
                found.append(time.monotonic())
            number += 1
        return found


class StelaeCopies(StelaeTasks, Copies):
    """The endpoint: how to connect, and `replicas` and `min_replicas` of the zone that the tables lie in."""

    def __init__(self, endpoint: str, servers: Sequence[int]) -> None:
        said = json.loads(endpoint)
        Client.__init__(self, said["connect"], servers)
        self.db = stelae.connect(self.endpoint, timeout_s=60.0)
        self._hasty = stelae.connect(self.endpoint, timeout_s=_CALL_S_MAX)
        self.db.create_zone("copies", replicas=said["replicas"], min_replicas=said["min_replicas"])
        groups = [stelae.columns("g", {"field0": "binary"})]
        for name in (READ, WRITTEN, MANY):
            self.db.create_table(name, key={"id": "binary"}, groups=groups, zone="copies")

    def put_once(self, key: bytes, value: bytes) -> bool:
        try:
            self._hasty.table(WRITTEN).put({"id": key, "field0": value})
        except (Retryable, UnknownOutcome):
            return False
        return True


class EtcdMembers(EtcdTasks, Copies):
    """Asked is the member that leads."""

    def __init__(self, endpoint: str, servers: Sequence[int]) -> None:
        self._endpoints = endpoint.split(",")
        super().__init__(f"{HOST}:{leader_of(self._endpoints)}", servers)
        self._stubs = [stub_of(grpc_module().insecure_channel(each), TXN) for each in self._endpoints]

    def put_many(self, rows: pa.Table) -> None:
        asyncio.run(self._put_many(list(zip(*(column.to_pylist() for column in rows.columns), strict=True))))

    async def _put_many(self, rows: list[tuple[bytes, bytes]]) -> None:
        """As many transactions at once as put rows one by one, each of as many rows as fit."""
        limit = asyncio.Semaphore(_AT_ONCE)
        async with grpc_module().aio.insecure_channel(f"{HOST}:{leader_of(self._endpoints)}") as channel:
            txns = stub_of(channel, TXN)

            async def put(at: int) -> None:
                async with limit:
                    await txns(etcd_put(*rows[at : at + _TXN_ROWS]))

            await asyncio.gather(*map(put, range(0, len(rows), _TXN_ROWS)))

    def put_once(self, key: bytes, value: bytes) -> bool:
        try:
            self._stubs[0](etcd_put((key, value)), timeout=_CALL_S_MAX)
        except grpc_module().RpcError:
            self._stubs.append(self._stubs.pop(0))
            return False
        return True

    def leader_port(self) -> int | None:
        return leader_of(self._endpoints)


def etcd_status(endpoint: str) -> dict[str, Any] | None:
    """What the member says of itself; None if it does not answer."""
    connection = http.client.HTTPConnection(endpoint, timeout=_CALL_S_MAX)
    try:
        connection.request("POST", "/v3/maintenance/status", b"{}")
        found: dict[str, Any] = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    return found


def leader_of(endpoints: Sequence[str]) -> int:
    for endpoint in endpoints:
        said = etcd_status(endpoint)
        if said is not None and said.get("leader") == said["header"]["member_id"]:
            return int(endpoint.rpartition(":")[2])
    raise PeerFailed("none of its members leads")


class KuduCopies(KuduThreads, Copies):
    def put_many(self, rows: pa.Table) -> None:
        session = self._client.newSession()
        session.setFlushMode(self._kudu.client.SessionConfiguration.FlushMode.MANUAL_FLUSH)
        session.setMutationBufferSpace(_FLUSHED)
        for at, row in enumerate(zip(*(column.to_pylist() for column in rows.columns), strict=True), 1):
            session.apply(self._upsert(WRITTEN, *row))
            if at % _FLUSHED == 0:
                session.flush()
        session.flush()
        if session.countPendingErrors():
            raise PeerFailed(f"Kudu: {session.getPendingErrors().getRowErrors()[0]}")
        session.close()

    def put_once(self, key: bytes, value: bytes) -> bool:
        """After a call that failed it connects anew: its client goes on asking a leader that was stopped."""
        session = self._client.newSession()
        session.setTimeoutMillis(int(_CALL_S_MAX * 1e3))
        with suppress(self._jpype.JException):
            if not session.apply(self._upsert(WRITTEN, key, value)).hasRowError():
                return True
        self._client = self._new_client()
        with suppress(self._jpype.JException):
            self._tables[WRITTEN] = self._client.openTable(WRITTEN)
        return False

    def leader_port(self) -> int | None:
        (tablet,) = self._client.openTable(WRITTEN).getTabletsLocations(10_000)
        return int(tablet.getLeaderReplica().getRpcPort())


class CassandraCopies(ThreadClient, Copies):
    """`cassandra-driver`, a thread for each caller, which waits for a majority of the copies; many rows are as many
    statements, so many of them at once."""

    def __init__(self, endpoint: str, servers: Sequence[int]) -> None:
        super().__init__(endpoint, servers)
        said = json.loads(endpoint)
        cassandra = client_module("cassandra", "cassandra-driver")
        cluster = client_module("cassandra.cluster", "cassandra-driver")
        self._concurrent = client_module("cassandra.concurrent", "cassandra-driver")
        profile = cluster.ExecutionProfile(
            consistency_level=cassandra.ConsistencyLevel.QUORUM, request_timeout=10 * _CALL_S_MAX
        )
        self._session = cluster.Cluster(
            [(HOST, port) for port in said["ports"]],
            protocol_version=5,
            execution_profiles={cluster.EXEC_PROFILE_DEFAULT: profile},
        ).connect()
        copies = f"{{'class': 'SimpleStrategy', 'replication_factor': {said['replicas']}}}"
        self._session.execute(f"create keyspace bench with replication = {copies}")
        self._session.set_keyspace("bench")
        self._session.execute(f"create table {WRITTEN} (id blob primary key, field0 blob)")
        self._put = self._session.prepare(f"insert into {WRITTEN} (id, field0) values (?, ?)")
        self._put.is_idempotent = True

    def fill(self, batch: pa.RecordBatch) -> None:
        """Nothing is read."""

    def put_many(self, rows: pa.Table) -> None:
        pairs = list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
        self._concurrent.execute_concurrent_with_args(self._session, self._put, pairs, concurrency=2 * _AT_ONCE)

    @contextmanager
    def connect(self, what: str, callers: int) -> Iterator[list[Call]]:
        assert what != GET
        yield [lambda key, value: self._session.execute(self._put, (key, value))] * callers

    def put_once(self, key: bytes, value: bytes) -> bool:
        with suppress(Exception):
            self._session.execute(self._put, (key, value), timeout=_CALL_S_MAX)
            return True
        return False


class PostgresCopies(PostgresTasks, Copies):
    def put_once(self, key: bytes, value: bytes) -> bool:
        raise NotImplementedError


COPIES: dict[str, type[Copies]] = {
    "stelae": StelaeCopies,
    "etcd": EtcdMembers,
    "kudu": KuduCopies,
    "cassandra": CassandraCopies,
    "postgres": PostgresCopies,
}
