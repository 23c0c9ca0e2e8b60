"""Servers of benches that run in Java: Cassandra, one or several members, and HBase with its own ZooKeeper.

Both come as jars; what they need is written into a directory that goes with them. Each syncs every commit.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from made_rows import place
from server_processes import HOST, Member, Server, client_module, find
from spark_peers import PeerFailed

from stelae.adapters.free_ports import choose_free

_HEAP = "1g"
_HEAP_HBASE = "4g"
"""A region that was written to takes 2 MB at once, and there are tables of 1,000 of them."""
_OPENED = (
    "java.base/java.io",
    "java.base/java.lang",
    "java.base/java.lang.module",
    "java.base/java.lang.reflect",
    "java.base/java.math",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.loader",
    "java.base/jdk.internal.math",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.module",
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.reflect",
    "java.base/jdk.internal.util.jar",
    "java.base/sun.nio.ch",
    "jdk.management/com.sun.management.internal",
)
_EXPORTED = (
    "java.base/java.lang.ref",
    "java.base/jdk.internal.misc",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.sql/java.sql",
    "jdk.unsupported/sun.misc",
)
OPEN = [f"--add-opens={each}=ALL-UNNAMED" for each in _OPENED]
"""What Java since 17 keeps to itself, and these use."""
_CASSANDRA = """\
cluster_name: bench
num_tokens: 1
allocate_tokens_for_local_replication_factor: 3
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
endpoint_snitch: SimpleSnitch
commitlog_sync: batch
listen_address: {host}
rpc_address: {host}
storage_port: {storage_port}
ssl_storage_port: {tls_port}
native_transport_port: {port}
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters:
      - seeds: "{host}:{seed_port}"
data_file_directories: [{own}/data]
commitlog_directory: {own}/commitlog
saved_caches_directory: {own}/caches
hints_directory: {own}/hints
cdc_raw_directory: {own}/cdc
memtable_heap_space: 256MiB
memtable_offheap_space: 256MiB
key_cache_size: 50MiB
auto_bootstrap: false
"""
_QUIET = """\
<configuration>
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%-5level %date %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="OUT"/></root>
</configuration>
"""
_QUIET_HBASE = """\
log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%p %d %m%n
"""


@contextmanager
def serve_cassandra(home: Path | None, members: int = 1) -> Iterator[Server]:
    """`home`: where the jars of cassandra-all lie, anywhere below. The endpoint: the ports, and how many have a row."""
    jars = _jars_of(home, "cassandra", "cassandra-all")
    client_module("cassandra.cluster", "cassandra-driver")
    agent = [f"-javaagent:{jar}" for jar in jars if Path(jar).name.startswith("jamm-")]
    with place("cassandra") as directory, ExitStack() as ends:
        ports = choose_free(HOST, 3 * members)
        made = []
        for number in range(members):
            port, storage_port, tls_port = ports[3 * number : 3 * number + 3]
            own = directory / f"member-{port}"
            member = Member(
                [
                    *(find("java", "a JDK of release 17 has it"), *agent, f"-Xms{_HEAP}", f"-Xmx{_HEAP}", "-Xss512k"),
                    *OPEN,
                    *(f"--add-exports={each}=ALL-UNNAMED" for each in _EXPORTED),
                    "-Djdk.attach.allowAttachSelf=true",
                    "-Dcassandra-foreground=yes",
                    f"-Dcassandra.config=file://{own / 'cassandra.yaml'}",
                    f"-Dcassandra.storagedir={own}",
                    "-Dcassandra.ring_delay_ms=3000",
                    "-Dcassandra.skip_wait_for_gossip_to_settle=0",
                    f"-Dlogback.configurationFile={own / 'logback.xml'}",
                    f"-Djava.io.tmpdir={own}",
                    *("-cp", os.pathsep.join(jars), "org.apache.cassandra.service.CassandraDaemon"),
                ],
                own,
                port,
            )
            words = {"port": port, "storage_port": storage_port, "tls_port": tls_port, "seed_port": ports[1]}
            (own / "cassandra.yaml").write_text(_CASSANDRA.format(host=HOST, own=own, **words))
            (own / "logback.xml").write_text(_QUIET)
            ends.callback(member.end)
            made.append(member)
            member.start()
        version = _version_of(jars, "cassandra-all")
        title = f"Cassandra {version}, commitlog_sync: batch" + (f", {members} members" if members > 1 else "")
        endpoint = json.dumps({"ports": [member.port for member in made], "replicas": members})
        yield Server(title, endpoint, tuple(member.pid for member in made), tuple(made))


@contextmanager
def serve_hbase(home: Path | None) -> Iterator[Server]:
    """Master, region server and ZooKeeper in one process, on a directory of this machine. `home`: where the jars of
    hbase-server lie, anywhere below, with those of Hadoop 3.3 or later: what older ones write to local files is never
    synced. The endpoint: what
    its client, which is among the jars, is started with."""
    jars = _jars_of(home, "hbase", "hbase-server")
    hadoop = _version_of(jars, "hadoop-client-api") or _version_of(jars, "hadoop-common")
    if tuple(int(part) for part in re.findall(r"\d+", hadoop)[:2]) < (3, 3):
        raise PeerFailed(f"its jars of Hadoop are {hadoop or 'not there'}: before 3.3 nothing is synced to local files")
    client_module("jpype", "JPype1")
    with place("hbase") as directory, ExitStack() as ends:
        port, master_port, region_port = choose_free(HOST, 3)
        own = directory / "member"
        settings = {
            "hbase.rootdir": f"file://{own}/root",
            "hbase.tmp.dir": f"{own}/tmp",
            "hbase.cluster.distributed": "false",
            "hbase.zookeeper.quorum": HOST,
            "hbase.zookeeper.property.clientPort": str(port),
            "hbase.zookeeper.property.dataDir": f"{own}/zookeeper",
            "hbase.master.hostname": HOST,
            "hbase.master.ipc.address": HOST,
            "hbase.master.port": str(master_port),
            "hbase.unsafe.regionserver.hostname": HOST,
            "hbase.regionserver.ipc.address": HOST,
            "hbase.regionserver.port": str(region_port),
            "hbase.master.info.port": "-1",
            "hbase.regionserver.info.port": "-1",
            "hbase.wal.provider": "filesystem",
            "hbase.wal.meta_provider": "filesystem",
            "hbase.wal.hsync": "true",
            "hbase.hfile.hsync": "true",
            # The one with checksums does not pass a sync on to the file.
            "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        }
        command = [
            *(find("java", "a JDK of release 17 has it"), f"-Xms{_HEAP}", f"-Xmx{_HEAP_HBASE}", *OPEN),
            f"-Djava.io.tmpdir={own}",
            *("-cp", os.pathsep.join([str(own), *jars]), "org.apache.hadoop.hbase.master.HMaster", "start"),
        ]
        member = Member(command, own, region_port)
        (own / "hbase-site.xml").write_text(_site(settings))
        (own / "log4j.properties").write_text(_QUIET_HBASE)
        ends.callback(member.end)
        member.start()
        title = f"HBase {_version_of(jars, 'hbase-server')}, hbase.wal.hsync"
        endpoint = json.dumps({"jars": [str(own), *jars]})
        yield Server(title, endpoint, (member.pid,), (member,))


def _site(settings: Mapping[str, str]) -> str:
    found = (f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items())
    return f"<configuration>{''.join(found)}</configuration>\n"


def _jars_of(home: Path | None, option: str, main: str) -> list[str]:
    if home is None:
        raise PeerFailed(f"say with --{option} where the jars of Maven Central's {main}, and all that it needs, lie")
    if shutil.which("java") is None:
        raise PeerFailed("there is no java on PATH; a JDK of release 17 has it")
    jars = sorted(map(str, home.rglob("*.jar")))
    if not _version_of(jars, main):
        raise PeerFailed(f"{home}: below it there must be {main}-*.jar with the jars it needs")
    return jars


def _version_of(jars: Sequence[str], main: str) -> str:
    found = [re.fullmatch(rf"{main}-(\d.*)\.jar", Path(jar).name) for jar in jars]
    return next((match[1] for match in found if match), "")
