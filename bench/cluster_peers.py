"""The peers of the cluster bench, each with the client that a Python program has."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from cluster_calls import Calls
from java_client import start_java
from java_servers import OPEN
from server_processes import HOST, client_module
from spark_peers import PeerFailed

_WAIT_S = 600.0
_AT_ONCE = 128
_FLUSHED = 1_000
_CAUGHT = 1_000


class CassandraCalls(Calls):
    """`cassandra-driver`: prepared statements; many rows are as many statements, so many of them at once, which is what
    its documents say. Rows lie by the hash of their key: there are no tablets to choose."""

    has_tablets = False

    def __init__(self, endpoint: str) -> None:
        said = json.loads(endpoint)
        cluster = client_module("cassandra.cluster", "cassandra-driver")
        query = client_module("cassandra.query", "cassandra-driver")
        self._concurrent = client_module("cassandra.concurrent", "cassandra-driver")
        profile = cluster.ExecutionProfile(request_timeout=_WAIT_S, row_factory=query.tuple_factory)
        contacts = [(HOST, port) for port in said["ports"]]
        self._cluster = cluster.Cluster(
            contacts, protocol_version=5, execution_profiles={cluster.EXEC_PROFILE_DEFAULT: profile}
        )
        self._session = self._cluster.connect()
        copies = f"{{'class': 'SimpleStrategy', 'replication_factor': {said['replicas']}}}"
        self._session.execute(f"create keyspace if not exists bench with replication = {copies}")
        self._session.set_keyspace("bench")
        self._statements: dict[str, tuple[Any, Any]] = {}

    def create(self, name: str, splits: Sequence[int]) -> None:  # noqa: ARG002 - there are none
        self._session.execute(f"create table {name} (id bigint primary key, v text)")
        self._prepare(name)

    def _prepare(self, name: str) -> None:
        get = self._session.prepare(f"select v from {name} where id = ?")
        put = self._session.prepare(f"insert into {name} (id, v) values (?, ?)")
        self._statements[name] = (get, put)

    def alter(self, name: str) -> None:
        self._session.execute(f"alter table {name} add w bigint")

    def truncate(self, name: str) -> Callable[[], object]:
        return lambda: self._session.execute(f"truncate table {name}")

    def drop(self, name: str) -> None:
        self._session.execute(f"drop table {name}")

    def get(self, name: str, key: int) -> str | None:
        found = self._session.execute(self._statements[name][0], (key,)).one()
        return found and found[0]

    def put(self, name: str, key: int, value: str) -> None:
        self._session.execute(self._statements[name][1], (key, value))

    def get_many(self, name: str, keys: Sequence[int]) -> int:
        return sum(result.one() is not None for result in self._each(name, 0, [(key,) for key in keys]))

    def put_many(self, name: str, rows: pa.Table) -> None:
        list(self._each(name, 1, list(_pairs(rows))))

    def _each(self, name: str, which: int, arguments: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
        found = self._concurrent.execute_concurrent_with_args(
            self._session, self._statements[name][which], arguments, concurrency=_AT_ONCE
        )
        return (result for _, result in found)

    def scan(self, name: str) -> pa.Table:
        return _as_table(self._session.execute(f"select id, v from {name}"))

    def close(self) -> None:
        self._cluster.shutdown()

    def count(self, name: str) -> int:
        return int(self._session.execute(f"select count(*) from {name}").one()[0])


class KuduCalls(Calls):
    """Its Java client, in this process (JPype). There is no get: it is a scan for one key, and get_many one for a list
    of them. A put is an upsert in a session that flushes each; many rows are flushed by the thousand."""

    def __init__(self, endpoint: str) -> None:
        said = json.loads(endpoint)
        self._jpype = start_java(said["jars"])
        self._kudu = self._jpype.JPackage("org").apache.kudu
        client = self._kudu.client
        builder = client.KuduClient.KuduClientBuilder(said["master"])
        self._client = builder.defaultAdminOperationTimeoutMs(int(_WAIT_S * 1e3)).build()
        self._flushing = self._session(client.SessionConfiguration.FlushMode.MANUAL_FLUSH)
        self._flushing.setMutationBufferSpace(_FLUSHED)
        self._replicas = said["replicas"]
        self._tables: dict[str, Any] = {}

    def _session(self, mode: Any) -> Any:
        session = self._client.newSession()
        session.setFlushMode(mode)
        return session

    def create(self, name: str, splits: Sequence[int]) -> None:
        java, column = self._jpype.java.util, self._kudu.ColumnSchema.ColumnSchemaBuilder
        columns, keys = java.ArrayList(), java.ArrayList()
        columns.add(column("id", self._kudu.Type.INT64).key(True).build())
        columns.add(column("v", self._kudu.Type.STRING).nullable(True).build())
        keys.add("id")
        schema = self._kudu.Schema(columns)
        options = self._kudu.client.CreateTableOptions().setRangePartitionColumns(keys).setNumReplicas(self._replicas)
        for split in splits:
            row = schema.newPartialRow()
            row.addLong("id", split)
            options.addSplitRow(row)
        self._tables[name] = self._client.createTable(name, schema, options)

    def alter(self, name: str) -> None:
        options = self._kudu.client.AlterTableOptions().addNullableColumn("w", self._kudu.Type.INT64)
        self._client.alterTable(name, options)

    def truncate(self, name: str) -> None:  # noqa: ARG002 - it cannot
        return None

    def drop(self, name: str) -> None:
        self._client.deleteTable(name)

    def get(self, name: str, key: int) -> str | None:
        predicate = self._kudu.client.KuduPredicate
        wanted = predicate.newComparisonPredicate(
            self._tables[name].getSchema().getColumn("id"), predicate.ComparisonOp.EQUAL, self._jpype.JLong(key)
        )
        return next((value for _, value in self._rows(name, wanted)), None)

    def get_many(self, name: str, keys: Sequence[int]) -> int:
        wanted = self._jpype.java.util.ArrayList()
        for key in set(keys):
            wanted.add(self._jpype.java.lang.Long(key))
        column = self._tables[name].getSchema().getColumn("id")
        found = {key for key, _ in self._rows(name, self._kudu.client.KuduPredicate.newInListPredicate(column, wanted))}
        return sum(key in found for key in keys)

    def put(self, name: str, key: int, value: str) -> None:
        session = self._session(self._kudu.client.SessionConfiguration.FlushMode.AUTO_FLUSH_SYNC)
        answer = session.apply(self._upsert(name, key, value))
        if answer.hasRowError():
            raise PeerFailed(f"Kudu: {answer.getRowError()}")

    def _upsert(self, name: str, key: int, value: str) -> Any:
        upsert = self._tables[name].newUpsert()
        row = upsert.getRow()
        row.addLong(0, key)
        row.addString(1, value)
        return upsert

    def put_many(self, name: str, rows: pa.Table) -> None:
        for at, (key, value) in enumerate(_pairs(rows), 1):
            self._flushing.apply(self._upsert(name, key, value))
            if at % _FLUSHED == 0:
                self._flush()
        self._flush()

    def _flush(self) -> None:
        for answer in self._flushing.flush():
            if answer.hasRowError():
                raise PeerFailed(f"Kudu: {answer.getRowError()}")

    def _rows(self, name: str, *wanted: Any) -> Iterator[tuple[int, str]]:
        builder = self._client.newScannerBuilder(self._tables[name])
        for predicate in wanted:
            builder.addPredicate(predicate)
        scanner = builder.build()
        while scanner.hasMoreRows():
            for row in scanner.nextRows():
                yield int(row.getLong(0)), str(row.getString(1))

    def scan(self, name: str) -> pa.Table:
        return _as_table(self._rows(name))

    def close(self) -> None:
        self._client.close()

    def count(self, name: str) -> int:
        scanner = self._client.newScannerBuilder(self._tables[name]).setProjectedColumnNames(
            self._jpype.java.util.ArrayList()
        )
        scanner, found = scanner.build(), 0
        while scanner.hasMoreRows():
            found += scanner.nextRows().getNumRows()
        return found


class HBaseCalls(Calls):
    """Its Java client, in this process (JPype); keys are the eight bytes of the number."""

    def __init__(self, endpoint: str) -> None:
        said = json.loads(endpoint)
        self._jpype = start_java(said["jars"], *OPEN)
        self._hbase = self._jpype.JPackage("org").apache.hadoop.hbase
        settings = self._hbase.HBaseConfiguration.create()
        self._connection = self._hbase.client.ConnectionFactory.createConnection(settings)
        self._admin = self._connection.getAdmin()
        self._family, self._column = self._bytes(b"g"), self._bytes(b"v")
        self._tables: dict[str, Any] = {}

    def _bytes(self, value: bytes) -> Any:
        return self._jpype.JArray.of(value, self._jpype.JByte)

    def _key(self, key: int) -> Any:
        return self._bytes(key.to_bytes(8, "big"))

    def _keys(self, keys: Sequence[int]) -> Any:
        byte = self._jpype.JByte
        return self._jpype.JArray(self._jpype.JArray(byte))([self._key(key) for key in keys])

    def _name(self, name: str) -> Any:
        return self._hbase.TableName.valueOf(name)

    def create(self, name: str, splits: Sequence[int]) -> None:
        family = self._hbase.client.ColumnFamilyDescriptorBuilder.of("g")
        table = self._hbase.client.TableDescriptorBuilder.newBuilder(self._name(name)).setColumnFamily(family).build()
        if splits:
            self._admin.createTable(table, self._keys(splits))
            # Without it rows of many regions look for them one after the other, for minutes.
            self._connection.getRegionLocator(self._name(name)).getAllRegionLocations()
        else:
            self._admin.createTable(table)
        self._tables[name] = self._connection.getTable(self._name(name))

    def alter(self, name: str) -> None:
        """A family more: columns need not be declared."""
        family = self._hbase.client.ColumnFamilyDescriptorBuilder.of("w")
        self._admin.addColumnFamily(self._name(name), family)

    def truncate(self, name: str) -> Callable[[], object]:
        def run() -> None:
            self._admin.disableTable(self._name(name))
            self._admin.truncateTable(self._name(name), True)

        return run

    def drop(self, name: str) -> None:
        self._admin.disableTable(self._name(name))
        self._admin.deleteTable(self._name(name))

    def get(self, name: str, key: int) -> str | None:
        found = self._tables[name].get(self._hbase.client.Get(self._key(key)))
        return None if found.isEmpty() else self._value(found)

    def _value(self, result: Any) -> str:
        return bytes(result.getValue(self._family, self._column)).decode()

    def put(self, name: str, key: int, value: str) -> None:
        self._tables[name].put(self._put(key, value))

    def _put(self, key: int, value: str) -> Any:
        return self._hbase.client.Put(self._key(key)).addColumn(self._family, self._column, self._bytes(value.encode()))

    def get_many(self, name: str, keys: Sequence[int]) -> int:
        wanted = self._jpype.java.util.ArrayList()
        for key in keys:
            wanted.add(self._hbase.client.Get(self._key(key)))
        return sum(bool(self._value(each)) for each in self._tables[name].get(wanted) if not each.isEmpty())

    def put_many(self, name: str, rows: pa.Table) -> None:
        puts = self._jpype.java.util.ArrayList()
        for key, value in _pairs(rows):
            puts.add(self._put(key, value))
        self._tables[name].put(puts)

    def scan(self, name: str) -> pa.Table:
        return _as_table((int.from_bytes(bytes(row.getRow()), "big"), self._value(row)) for row in self._results(name))

    def close(self) -> None:
        self._connection.close()

    def count(self, name: str) -> int:
        return sum(1 for _ in self._results(name))

    def _results(self, name: str) -> Iterator[Any]:
        scanner = self._tables[name].getScanner(self._hbase.client.Scan().setCaching(_CAUGHT))
        try:
            yield from scanner
        finally:
            scanner.close()


def _pairs(rows: pa.Table) -> Iterator[tuple[int, str]]:
    return zip(rows.column("id").to_pylist(), map(str, rows.column("v").to_pylist()), strict=True)


def _as_table(rows: Iterable[tuple[int, str]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [(), ()]
    return pa.table({"id": pa.array(columns[0], pa.int64()), "v": pa.array(columns[1], pa.string())})


CALLS: dict[str, Callable[[str], Calls]] = {"kudu": KuduCalls, "cassandra": CassandraCalls, "hbase": HBaseCalls}
