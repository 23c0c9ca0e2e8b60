"""The clients of the remote bench: how a Python program asks each server. A get gives the value as bytes.

What is read and what is written are two tables, or two prefixes where there are no tables.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import Any

import pyarrow as pa
from java_client import start_java
from made_rows import BATCH
from remote_load import GET, AsyncCall, AsyncClient, Call, Client, Load, ThreadClient, check_value
from server_processes import client_module

import stelae
from stelae.adapters.etcd.messages import RANGE, TXN, Method, grpc_module, message

READ, WRITTEN, MANY, LARGE = "hot", "written", "many", "large"
_FIELDS = {"field0": "binary"}


# -- ours


class StelaeBulk(Client):
    """What is the same for all of ours. `open`: a database, blocking."""

    def __init__(self, endpoint: str, servers: Sequence[int]) -> None:
        super().__init__(endpoint, servers)
        self.db = self.open()
        for name in (READ, WRITTEN, MANY, LARGE):
            groups = [stelae.columns("g", _FIELDS)]
            self.db.create_table(name, key={"id": "binary"}, groups=groups, if_not_exists=True)

    def open(self) -> Any:
        return stelae.connect(self.endpoint)

    def fill(self, batch: pa.RecordBatch) -> None:
        table = self.db.table(READ)
        table.put_many(batch)
        table.compact()

    def put_many(self, rows: pa.Table) -> None:
        self.db.table(MANY).put_many(rows)

    def fill_large(self, rows: pa.Table) -> None:
        table = self.db.table(LARGE)
        for batch in rows.to_batches(max_chunksize=BATCH):
            table.put_many(batch)
        table.compact()

    def scan(self) -> pa.Table:
        return self.db.table(LARGE).scan().to_arrow()


class StelaeTasks(StelaeBulk, AsyncClient):
    @asynccontextmanager
    async def connect(self, what: str, callers: int) -> AsyncIterator[list[AsyncCall]]:
        async with await stelae.aio.connect(self.endpoint) as db:
            read, written = await db.table(READ), await db.table(WRITTEN)

            async def get(key: bytes, value: bytes) -> None:
                row = await read.get(key)
                check_value(row and row["field0"], value)

            async def put(key: bytes, value: bytes) -> None:
                await written.put({"id": key, "field0": value})

            yield [get if what == GET else put] * callers


class StelaeThreads(StelaeBulk, ThreadClient):
    @contextmanager
    def connect(self, what: str, callers: int) -> Iterator[list[Call]]:
        with stelae.connect(self.endpoint) as db:
            read, written = db.table(READ), db.table(WRITTEN)

            def get(key: bytes, value: bytes) -> None:
                row = read.get(key)
                check_value(row and row["field0"], value)

            def put(key: bytes, value: bytes) -> None:
                written.put({"id": key, "field0": value})

            yield [get if what == GET else put] * callers


class Embedded(StelaeBulk):
    def open(self) -> Any:
        return stelae.open(self.endpoint)

    def drive(self, what: str, callers: int, seconds: float) -> Load:
        raise NotImplementedError


# -- peers


class RedisTasks(AsyncClient):
    """A connection for each caller; redis-py's own parser is hiredis where that is installed."""

    def fill(self, batch: pa.RecordBatch) -> None:
        host, _, port = self.endpoint.partition(":")
        with client_module("redis", "redis").Redis(host, int(port)) as client:
            client.mset(dict(zip(*(column.to_pylist() for column in batch.columns), strict=True)))

    @asynccontextmanager
    async def connect(self, what: str, callers: int) -> AsyncIterator[list[AsyncCall]]:
        redis = client_module("redis.asyncio", "redis")
        host, _, port = self.endpoint.partition(":")

        def call_of(client: Any) -> AsyncCall:
            async def get(key: bytes, value: bytes) -> None:
                check_value(await client.get(key), value)

            async def put(key: bytes, value: bytes) -> None:
                await client.set(b"w" + key, value)

            return get if what == GET else put

        async with AsyncExitStack() as ends:
            clients = [redis.Redis(host=host, port=int(port), single_connection_client=True) for _ in range(callers)]
            yield [call_of(await ends.enter_async_context(client)) for client in clients]


class PostgresTasks(AsyncClient):
    """A connection for each caller, statements that are prepared once, commits by themselves; COPY, in binary, for many
    rows."""

    def __init__(self, endpoint: str, servers: Sequence[int]) -> None:
        super().__init__(endpoint, servers)
        self._psycopg = client_module("psycopg", "psycopg[binary]")
        self._blocking = self._psycopg.connect(endpoint, autocommit=True)
        for name in (READ, WRITTEN, MANY, LARGE):
            self._blocking.execute(f"create table if not exists {name} (id bytea primary key, field0 bytea)")

    def fill(self, batch: pa.RecordBatch) -> None:
        self._copy(READ, pa.table(batch))

    def put_many(self, rows: pa.Table) -> None:
        self._copy(MANY, rows)

    def fill_large(self, rows: pa.Table) -> None:
        self._copy(LARGE, rows)
        self._blocking.execute(f"vacuum analyze {LARGE}")

    def _copy(self, table: str, rows: pa.Table) -> None:
        with self._blocking.cursor().copy(f"copy {table} from stdin (format binary)") as copy:
            copy.set_types(["bytea", "bytea"])
            for row in zip(*(column.to_pylist() for column in rows.columns), strict=True):
                copy.write_row(row)

    def scan(self) -> pa.Table:
        with self._blocking.cursor().copy(f"copy {LARGE} to stdout (format binary)") as copy:
            copy.set_types(["bytea", "bytea"])
            columns = list(zip(*copy.rows(), strict=True))
        return pa.table({"id": pa.array(columns[0], pa.binary()), "field0": pa.array(columns[1], pa.binary())})

    @asynccontextmanager
    async def connect(self, what: str, callers: int) -> AsyncIterator[list[AsyncCall]]:
        def call_of(connection: Any) -> AsyncCall:
            async def get(key: bytes, value: bytes) -> None:
                found = await connection.execute(f"select field0 from {READ} where id = %b", (key,), binary=True)
                (there,) = await found.fetchone()
                check_value(there, value)

            async def put(key: bytes, value: bytes) -> None:
                await connection.execute(
                    f"insert into {WRITTEN} values (%b, %b) on conflict (id) do update set field0 = excluded.field0",
                    (key, value),
                )

            return get if what == GET else put

        async with AsyncExitStack() as ends:
            calls = []
            for _ in range(callers):
                connection = await self._psycopg.AsyncConnection.connect(
                    self.endpoint, autocommit=True, prepare_threshold=0
                )
                calls.append(call_of(await ends.enter_async_context(connection)))
            yield calls


class PostgresArrow(PostgresTasks):
    """Its Arrow driver, which reads and writes COPY's bytes in C++: for many rows only."""

    def __init__(self, endpoint: str, servers: Sequence[int]) -> None:
        super().__init__(endpoint, servers)
        dbapi = client_module("adbc_driver_postgresql.dbapi", "adbc-driver-postgresql")
        parts = dict(part.split("=") for part in endpoint.split())
        self._arrow = dbapi.connect("postgresql://{user}@{host}:{port}/{dbname}".format(**parts))

    def put_many(self, rows: pa.Table) -> None:
        with self._arrow.cursor() as cursor:
            cursor.adbc_ingest(MANY, rows, mode="append")
        self._arrow.commit()

    def scan(self) -> pa.Table:
        with self._arrow.cursor() as cursor:
            cursor.execute(f"select id, field0 from {LARGE}")
            found = cursor.fetch_arrow_table()
        self._arrow.commit()
        return found


class EtcdTasks(AsyncClient):
    """gRPC's own asyncio, one channel, which holds all calls; reads are linearizable, as they are by default. A put is
    a transaction without a condition: one message, as etcd's own Put."""

    def fill(self, batch: pa.RecordBatch) -> None:
        grpc = grpc_module()
        with grpc.insecure_channel(self.endpoint) as channel:
            stub = stub_of(channel, TXN)
            rows = list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
            for at in range(0, len(rows), 100):
                stub(etcd_put(*rows[at : at + 100]))

    @asynccontextmanager
    async def connect(self, what: str, callers: int) -> AsyncIterator[list[AsyncCall]]:
        async with grpc_module().aio.insecure_channel(self.endpoint) as channel:
            ranges, txns = stub_of(channel, RANGE), stub_of(channel, TXN)
            range_of = message(RANGE.request)

            async def get(key: bytes, value: bytes) -> None:
                check_value((await ranges(range_of(key=key))).kvs[0].value, value)

            async def put(key: bytes, value: bytes) -> None:
                await txns(etcd_put((b"w" + key, value)))

            yield [get if what == GET else put] * callers


def stub_of(channel: Any, method: Method) -> Any:
    return channel.unary_unary(
        method.path,
        request_serializer=message(method.request).SerializeToString,
        response_deserializer=message(method.response).FromString,
    )


def etcd_put(*rows: tuple[bytes, bytes]) -> Any:
    put, op = message("PutRequest"), message("RequestOp")
    return message(TXN.request)(success=[op(request_put=put(key=key, value=value)) for key, value in rows])


class KuduThreads(ThreadClient):
    """Its Java client, in this process (JPype): a thread for each caller, which Python's lock does not hold up while
    it waits. There is no get: it is a scan for one key. A put is an upsert in a session that flushes each."""

    def __init__(self, endpoint: str, servers: Sequence[int]) -> None:
        super().__init__(endpoint, servers)
        said = json.loads(endpoint)
        self._jpype = start_java(said["jars"])
        self._kudu = self._jpype.JPackage("org").apache.kudu
        self._master = said["master"]
        self._client = self._new_client()
        self._replicas = said["replicas"]
        self._tables = {name: self._make(name) for name in (READ, WRITTEN)}

    def _new_client(self) -> Any:
        return self._kudu.client.KuduClient.KuduClientBuilder(self._master).build()

    def _make(self, name: str) -> Any:
        schema, client = self._kudu.Schema, self._kudu.client
        binary, columns = self._kudu.Type.BINARY, self._jpype.java.util.ArrayList()
        for column, is_key in (("id", True), ("field0", False)):
            columns.add(self._kudu.ColumnSchema.ColumnSchemaBuilder(column, binary).key(is_key).build())
        keys = self._jpype.java.util.ArrayList()
        keys.add("id")
        options = client.CreateTableOptions().setRangePartitionColumns(keys).setNumReplicas(self._replicas)
        return self._client.createTable(name, schema(columns), options)

    def fill(self, batch: pa.RecordBatch) -> None:
        session = self._client.newSession()
        session.setFlushMode(self._kudu.client.SessionConfiguration.FlushMode.MANUAL_FLUSH)
        session.setMutationBufferSpace(1_000)
        for at, row in enumerate(zip(*(column.to_pylist() for column in batch.columns), strict=True), 1):
            session.apply(self._upsert(READ, *row))
            if at % 1_000 == 0:
                session.flush()
        session.flush()
        session.close()

    def _upsert(self, table: str, key: bytes, value: bytes) -> Any:
        upsert = self._tables[table].newUpsert()
        row = upsert.getRow()
        row.addBinary("id", self._jpype.JArray.of(key, self._jpype.JByte))
        row.addBinary("field0", self._jpype.JArray.of(value, self._jpype.JByte))
        return upsert

    @contextmanager
    def connect(self, what: str, callers: int) -> Iterator[list[Call]]:
        with ExitStack() as ends:
            yield [self._get if what == GET else self._put_of(ends) for _ in range(callers)]

    def _get(self, key: bytes, value: bytes) -> None:
        table, predicate = self._tables[READ], self._kudu.client.KuduPredicate
        column = table.getSchema().getColumn("id")
        wanted = predicate.newComparisonPredicate(
            column, predicate.ComparisonOp.EQUAL, self._jpype.JArray.of(key, self._jpype.JByte)
        )
        scanner = self._client.newScannerBuilder(table).addPredicate(wanted).build()
        found = None
        while scanner.hasMoreRows():
            for row in scanner.nextRows():
                found = bytes(row.getBinaryCopy("field0"))
        check_value(found, value)

    def _put_of(self, ends: ExitStack) -> Call:
        session = self._client.newSession()
        session.setFlushMode(self._kudu.client.SessionConfiguration.FlushMode.AUTO_FLUSH_SYNC)
        ends.callback(session.close)

        def put(key: bytes, value: bytes) -> None:
            answer = session.apply(self._upsert(WRITTEN, key, value))
            if answer.hasRowError():
                raise SystemExit(f"Kudu: {answer.getRowError()}")

        return put


CLIENTS: dict[str, type[Client]] = {
    "stelae": StelaeTasks,
    "stelae-threads": StelaeThreads,
    "stelae-uvloop": StelaeTasks,
    "embedded": Embedded,
    "redis": RedisTasks,
    "postgres": PostgresTasks,
    "postgres-arrow": PostgresArrow,
    "etcd": EtcdTasks,
    "kudu": KuduThreads,
}
