"""What only the etcd metastore must stand up to: members that die or freeze, TLS, users; and what its errors mean."""

from __future__ import annotations

import asyncio
import importlib
import json
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pytest

from stelae.adapters.etcd import messages as etcd_messages
from stelae.adapters.etcd.cluster import EtcdTls, EtcdUser
from stelae.adapters.etcd.errors import Fate, failure_of
from stelae.adapters.etcd.metastore import EtcdMetastore
from stelae.model.errors import (
    AlreadyExists,
    Corruption,
    DiskFull,
    InvalidArgument,
    NotFound,
    Overloaded,
    PermissionDenied,
    StelaeError,
    Unavailable,
    UnknownOutcome,
)
from stelae.ports.metastore import DeleteKey, IsAbsent, KeyPut, LeaseExpired, ModRevisionIs, PutKey, Revision
from tests.contract.metastores import PATIENCE_S, put, take
from tests.etcd import EtcdServer, ServerTls, etcdctl, running_etcd

NOWHERE = "127.0.0.1:1"


def run(story: Coroutine[Any, Any, None]) -> None:
    async def patiently() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await story

    asyncio.run(patiently())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as servers:
        yield servers[0]


def leader_of(servers: list[EtcdServer]) -> EtcdServer:
    """The one that says so, as soon as one does."""
    while True:
        for server in servers:
            with suppress(subprocess.CalledProcessError):  # it does not answer just now
                if server.process is not None and _leads(server):
                    return server


def _leads(server: EtcdServer) -> bool:
    status = json.loads(etcdctl(server, "endpoint", "status", "-w", "json"))[0]["Status"]
    return bool(status["header"]["member_id"] == status["leader"])


async def until_connected(store: EtcdMetastore) -> None:
    """Where calls have little time, the first one may need more of it."""
    while True:
        with suppress(Unavailable):
            await store.get("key")
            return


async def increment_once(store: EtcdMetastore, name: str) -> bool:
    """Exactly once, whatever gets lost: the mark that it was done is in the same transaction. Whether it was acked."""
    while True:
        try:
            if await store.get(f"done/{name}") is not None:
                return False
            counter = await store.get("counter")
            guard = IsAbsent("counter") if counter is None else ModRevisionIs("counter", counter.mod_revision)
            value = b"%d" % (1 if counter is None else int(counter.value) + 1)
            puts = [PutKey("counter", value), PutKey(f"done/{name}", b"")]
            if (await store.txn([guard, IsAbsent(f"done/{name}")], puts)).succeeded:
                return True
        except (Unavailable, UnknownOutcome):
            await asyncio.sleep(0.01)


def test_leader_killed_in_the_middle_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    async def story(servers: list[EtcdServer]) -> None:
        endpoints = [server.endpoint for server in servers]
        stores = [EtcdMetastore(endpoints[number:] + endpoints[:number], timeout_s=1) for number in range(3)]
        acked: set[str] = set()
        begun = asyncio.Event()

        async def work(number: int) -> None:
            for each in range(30):
                if await increment_once(stores[number % 3], f"{number}/{each}"):
                    acked.add(f"done/{number}/{each}")
                if each == 5:
                    begun.set()

        async def watch(store: EtcdMetastore) -> list[tuple[Revision, int]]:
            seen = []
            async for batch in store.watch("counter", Revision(1)):
                (event,) = batch.events
                assert isinstance(event, KeyPut)
                seen.append((batch.revision, int(event.entry.value)))
                if event.entry.value == b"120":
                    return seen
            raise AssertionError("a watch does not end")

        async with asyncio.TaskGroup() as group:
            watches = [group.create_task(watch(store)) for store in stores]
            for number in range(4):
                group.create_task(work(number))
            await begun.wait()
            killed = await asyncio.to_thread(leader_of, servers)
            killed.kill()
            while len(acked) < 70:
                await asyncio.sleep(0.01)
            killed.start()
            assert await asyncio.to_thread(killed.wait_ready)
            (await asyncio.to_thread(leader_of, servers)).kill()
        there = {entry.key for entry in (await stores[0].range("done/")).entries}
        assert acked <= there
        assert len(there) == 120
        for each in watches:
            seen = each.result()
            assert [value for _, value in seen] == list(range(1, 121))
            assert [revision for revision, _ in seen] == sorted({revision for revision, _ in seen})
        for store in stores:
            await store.close()

    with running_etcd(tmp_path, members=3) as servers:
        run(story(servers))


def test_watch_goes_on_where_it_was_when_the_server_comes_back(tmp_path: Path) -> None:
    async def story(server: EtcdServer) -> None:
        store = EtcdMetastore([server.endpoint])
        start = await put(store, "key", b"0")
        watch = store.watch("key", start)
        await anext(watch)
        waiting = asyncio.ensure_future(anext(watch))
        made = await put(store, "key", b"1")
        gone = (await store.txn([], [DeleteKey("key")])).revision
        server.kill()
        server.start()
        other = EtcdMetastore([server.endpoint])
        again = await put(other, "key", b"2")
        await other.close()
        assert [(await waiting).revision, *[batch.revision for batch in await take(watch, 2)]] == [made, gone, again]
        await store.close()

    with running_etcd(tmp_path) as servers:
        run(story(servers[0]))


def test_dead_endpoint_does_not_stop_calls_nor_watches(server: EtcdServer) -> None:
    async def story() -> None:
        store = EtcdMetastore([NOWHERE, f"http://{server.endpoint}"], namespace="dead/")
        made = await put(store, "key")
        assert (await take(store.watch("", made), 1))[0].revision == made
        lease = await store.grant(60)
        assert await store.keep_alive(lease) == 60
        await store.revoke(lease)
        await store.close()

    run(story())


def test_cluster_that_is_not_there_is_unavailable_and_nothing_in_doubt() -> None:
    async def story() -> None:
        store = EtcdMetastore([NOWHERE, "127.0.0.1:2"], timeout_s=0.5)
        for call in (store.get("key"), store.txn([], [PutKey("key", b"")]), store.grant(1), store.compact(Revision(1))):
            with pytest.raises(Unavailable, match=r"127\.0\.0\.1") as caught:
                await call
            assert not isinstance(caught.value, UnknownOutcome)
        await store.close()

    run(story())


def test_server_that_freezes_leaves_a_transaction_in_doubt(tmp_path: Path) -> None:
    async def story(server: EtcdServer) -> None:
        later, store = EtcdMetastore([server.endpoint]), EtcdMetastore([server.endpoint], timeout_s=0.5)
        before = await put(later, "key", b"1")
        await until_connected(store)
        server.stop_answering()
        try:
            with pytest.raises(UnknownOutcome):
                await store.txn([], [PutKey("key", b"2")])
            with pytest.raises(Unavailable) as caught:
                await store.get("key")
            assert not isinstance(caught.value, UnknownOutcome)
            fresh = EtcdMetastore([server.endpoint], timeout_s=0.5)
            with pytest.raises(Unavailable) as caught:
                await fresh.txn([], [PutKey("key", b"3")])
            assert not isinstance(caught.value, UnknownOutcome), "it never had a connection to send it on"
            await fresh.close()
        finally:
            server.answer_again()
        assert (await later.range("")).revision in (before, before + 1)
        entry = await later.get("key")
        assert entry is not None
        assert entry.value in (b"1", b"2")
        await later.close()
        await store.close()

    with running_etcd(tmp_path) as servers:
        run(story(servers[0]))


def test_frozen_member_does_not_stop_reads_and_watches_of_others(tmp_path: Path) -> None:
    async def story(servers: list[EtcdServer]) -> None:
        leader = leader_of(servers)
        follower = next(server for server in servers if server is not leader)
        store = EtcdMetastore([follower.endpoint, leader.endpoint], timeout_s=10)
        made = await put(store, "key")
        follower.stop_answering()
        try:
            entry = await store.get("key")
            assert entry is not None
            assert (await put(store, "key")) == made + 1
            assert [batch.revision for batch in await take(store.watch("", made), 2)] == [made, made + 1]
            await store.close()
        finally:
            follower.answer_again()

    with running_etcd(tmp_path, members=3) as servers:
        run(story(servers))


class Proxy:
    """Stands between client and server. While it is mute, nothing that the server says arrives."""

    def __init__(self, server: EtcdServer) -> None:
        self._server = server
        self._ways: set[asyncio.Task[None]] = set()
        self.mute = False

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.endpoint = f"127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        self.cut()
        await asyncio.gather(*self._ways, return_exceptions=True)

    def cut(self) -> None:
        for way in self._ways:
            way.cancel()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._server.client_port)
        for way in (self._carry(reader, up_writer, False), self._carry(up_reader, writer, True)):
            self._ways.add(asyncio.ensure_future(way))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, from_server: bool) -> None:
        try:
            while data := await reader.read(65536):
                if not (from_server and self.mute):
                    writer.write(data)
                    await writer.drain()
        except OSError:  # the other side was faster
            pass
        finally:
            writer.close()


def test_transaction_whose_answer_is_lost_is_in_doubt_and_not_made_again(server: EtcdServer) -> None:
    async def story() -> None:
        straight = EtcdMetastore([server.endpoint], namespace="lost/")
        async with Proxy(server) as proxy:
            for number in range(5):
                store = EtcdMetastore([proxy.endpoint, server.endpoint], namespace="lost/")
                assert await store.get(f"key-{number}") is None
                proxy.mute = True
                putting = asyncio.ensure_future(store.txn([], [PutKey(f"key-{number}", b"")]))
                while await straight.get(f"key-{number}") is None:
                    await asyncio.sleep(0)
                proxy.cut()
                proxy.mute = False
                with pytest.raises(UnknownOutcome):
                    await putting
                entry = await store.get(f"key-{number}")
                assert entry is not None
                assert entry.version == 1
                await store.close()
        await straight.close()

    run(story())


def test_watch_and_reads_go_on_however_often_the_connection_is_cut(server: EtcdServer) -> None:
    async def story() -> None:
        straight = EtcdMetastore([server.endpoint], namespace="cut/")
        async with Proxy(server) as proxy:
            store = EtcdMetastore([proxy.endpoint], namespace="cut/")
            start = await put(straight, "key", b"0")

            async def write() -> None:
                for number in range(1, 100):
                    await straight.txn([], [PutKey("key", b"%d" % number), PutKey(f"key-{number}", b"")])
                    if number % 10 == 0:
                        proxy.cut()
                    assert await store.get("key") is not None

            writing = asyncio.ensure_future(write())
            batches = await take(store.watch("", start), 100)
            await writing
            assert [batch.revision - start for batch in batches] == list(range(100))
            await store.close()
        await straight.close()

    run(story())


def test_namespaces_do_not_see_each_other(server: EtcdServer) -> None:
    async def story() -> None:
        one, two, whole = [EtcdMetastore([server.endpoint], namespace=name) for name in ("n/a/", "n/b/", "")]
        first = await put(one, "key", b"1")
        await put(two, "key", b"2")
        await put(two, "other")
        assert [entry.value for entry in (await one.range("")).entries] == [b"1"]
        assert [entry.key for entry in (await two.range("")).entries] == ["key", "other"]
        assert [entry.key for entry in (await whole.range("n/")).entries] == ["n/a/key", "n/b/key", "n/b/other"]
        second = await put(one, "key", b"3")
        assert [batch.revision for batch in await take(one.watch("", first), 2)] == [first, second]
        for store in (one, two, whole):
            await store.close()

    run(story())


def test_key_of_another_program_that_is_no_text_is_corruption(server: EtcdServer) -> None:
    async def story() -> None:
        store = EtcdMetastore([server.endpoint], namespace="foreign/")
        request = etcd_messages.message("TxnRequest")()
        request.success.add().request_put.key = b"foreign/\xff"
        await store._cluster.call(etcd_messages.TXN, request, changes=True, repeatable=False)
        with pytest.raises(Corruption, match="another program"):
            await store.range("")
        await store.close()

    run(story())


def test_lease_that_an_earlier_try_has_granted_is_taken(server: EtcdServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        monkeypatch.setattr("stelae.adapters.etcd.metastore.secrets.randbits", lambda _: 4711)
        store = EtcdMetastore([server.endpoint])
        assert await store.grant(60) == await store.grant(60)
        await store.close()

    run(story())


def openssl(directory: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two authorities, 'ca' and 'other'; a certificate for server and client, signed by the first."""
    place = tmp_path_factory.mktemp("tls")
    elliptic = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    for name in ("ca", "other"):
        openssl(
            place, "req", "-x509", *elliptic, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}"
        )
    openssl(place, "req", *elliptic, "-keyout", "member.key", "-out", "member.csr", "-subj", "/CN=member")
    (place / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
    openssl(place, "x509", "-req", "-in", "member.csr", *signed, "-out", "member.pem")
    return place


def test_tls_with_client_certificates(tmp_path: Path, certificates: Path) -> None:
    ca, cert, key = (certificates / name for name in ("ca.pem", "member.pem", "member.key"))

    async def story(server: EtcdServer) -> None:
        store = EtcdMetastore([f"https://{server.endpoint}"], tls=EtcdTls(ca, cert, key))
        made = await put(store, "key", b"secret")
        assert (await take(store.watch("", made), 1))[0].revision == made
        await store.close()
        for wrong in (EtcdTls(certificates / "other.pem", cert, key), EtcdTls(ca), None):
            stranger = EtcdMetastore([server.endpoint], tls=wrong, timeout_s=1)
            with pytest.raises(Unavailable) as caught:
                await stranger.txn([], [PutKey("key", b"forged")])
            if wrong is None or wrong.cert:
                assert not isinstance(caught.value, UnknownOutcome)
            await stranger.close()
        store = EtcdMetastore([server.endpoint], tls=EtcdTls(ca, cert, key))
        assert (await store.range("")).revision == made
        await store.close()

    with running_etcd(tmp_path, tls=ServerTls(ca, cert, key)) as servers:
        run(story(servers[0]))


def test_users_have_what_their_roles_give_and_tokens_are_renewed(tmp_path: Path) -> None:
    def set_up(server: EtcdServer) -> None:
        for command in (
            "user add root:rootpass",
            "user add app:secret",
            "role add app",
            "role grant-permission app --prefix=true readwrite app/",
            "user grant-role root root",
            "user grant-role app app",
            "auth enable",
        ):
            etcdctl(server, *command.split())

    async def story(server: EtcdServer) -> None:
        unguarded = EtcdMetastore([server.endpoint], namespace="app/", user=EtcdUser("app", "secret"))
        first = await put(unguarded, "key", b"1")
        await asyncio.to_thread(set_up, server)
        assert (await unguarded.get("key")) is not None, "authentication was switched on in between"
        store = EtcdMetastore([server.endpoint], namespace="app/", user=EtcdUser("app", "secret"))
        watch = store.watch("", first)
        assert await put(store, "key", b"2") == first + 1
        for old_token in ("bogus.1", "gibberish"):
            store._cluster._token = old_token
            made = await put(store, "key", b"3")
            store._cluster._token = old_token
            assert (await store.range("")).revision == made
        assert [batch.revision for batch in await take(watch, 4)] == list(range(first, first + 4))
        grant = "--user=root:rootpass role grant-permission app --prefix=true read more/"
        await asyncio.to_thread(etcdctl, server, *grant.split())
        assert await put(store, "key", b"5") == first + 4, "a token older than the last change of roles"
        await refused_everything(EtcdMetastore([server.endpoint], namespace="app/", user=EtcdUser("app", "wrong")))
        await refused_everything(EtcdMetastore([server.endpoint], namespace="app/"))
        await refused_everything(EtcdMetastore([server.endpoint], namespace="b/", user=EtcdUser("app", "secret")))
        for each in (unguarded, store):
            await each.close()

    async def refused_everything(store: EtcdMetastore) -> None:
        for call in (store.get("key"), store.txn([], [PutKey("key", b"")]), anext(store.watch("", Revision(1)))):
            with pytest.raises(PermissionDenied):
                await call
        await store.close()

    with running_etcd(tmp_path) as servers:
        run(story(servers[0]))


def test_password_is_not_shown() -> None:
    assert "secret" not in repr(EtcdUser("app", "secret"))


@pytest.mark.parametrize(
    "make",
    [
        lambda: EtcdMetastore([]),
        lambda: EtcdMetastore(["127.0.0.1"]),
        lambda: EtcdMetastore(["https://127.0.0.1:1"]),
        lambda: EtcdMetastore([NOWHERE], timeout_s=0),
        lambda: EtcdMetastore([NOWHERE], namespace="\ud800"),
        lambda: EtcdMetastore([NOWHERE], tls=EtcdTls(__file__, cert=__file__)),
    ],
)
def test_options_that_make_no_sense_are_refused(make: Callable[[], EtcdMetastore]) -> None:
    with pytest.raises(InvalidArgument):
        make()


def test_missing_tls_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="TLS"):
        EtcdMetastore([NOWHERE], tls=EtcdTls(tmp_path / "none.pem"))


def test_without_grpc_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    etcd_messages.grpc_module.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(importlib, "import_module", missing)
        with pytest.raises(InvalidArgument, match=r"grpc.*pip install '.\[etcd\]'"):
            EtcdMetastore([NOWHERE])


@pytest.mark.parametrize(
    "code, details, fate, error",
    [
        ("UNAVAILABLE", "failed to connect to all addresses; last error: refused", Fate.NOT_DONE, Unavailable),
        ("UNAVAILABLE", "etcdserver: no leader", Fate.NOT_DONE, Unavailable),
        ("UNAVAILABLE", "etcdserver: leader changed", Fate.PERHAPS_DONE, Unavailable),
        ("UNAVAILABLE", "etcdserver: request timed out", Fate.PERHAPS_DONE, Unavailable),
        ("UNAVAILABLE", "etcdserver: server stopped", Fate.PERHAPS_DONE, Unavailable),
        ("UNAVAILABLE", "Socket closed", Fate.PERHAPS_DONE, Unavailable),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", Fate.PERHAPS_DONE, Unavailable),
        ("UNKNOWN", "raft proposal dropped", Fate.PERHAPS_DONE, Unavailable),
        ("CANCELLED", "", Fate.PERHAPS_DONE, Unavailable),
        ("INTERNAL", "stream error", Fate.PERHAPS_DONE, Unavailable),
        ("NOT_FOUND", "etcdserver: requested lease not found", Fate.ANSWERED, LeaseExpired),
        ("FAILED_PRECONDITION", "etcdserver: lease already exists", Fate.ANSWERED, AlreadyExists),
        ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", Fate.ANSWERED, DiskFull),
        ("RESOURCE_EXHAUSTED", "etcdserver: too many requests", Fate.ANSWERED, Overloaded),
        ("RESOURCE_EXHAUSTED", "CLIENT: Received message larger than max (9 vs. 4)", Fate.TOO_LARGE, Overloaded),
        ("INVALID_ARGUMENT", "etcdserver: request is too large", Fate.ANSWERED, InvalidArgument),
        ("OUT_OF_RANGE", "etcdserver: mvcc: required revision has been compacted", Fate.COMPACTED, InvalidArgument),
        ("OUT_OF_RANGE", "etcdserver: mvcc: required revision is a future revision", Fate.AHEAD, InvalidArgument),
        ("PERMISSION_DENIED", "etcdserver: permission denied", Fate.ANSWERED, PermissionDenied),
        ("UNAUTHENTICATED", "etcdserver: invalid auth token", Fate.STALE_TOKEN, PermissionDenied),
        ("INVALID_ARGUMENT", "etcdserver: user name is empty", Fate.STALE_TOKEN, PermissionDenied),
        ("DATA_LOSS", "etcdserver: corrupt cluster", Fate.ANSWERED, Corruption),
    ],
)
def test_errors_of_etcd_by_what_they_mean(code: str, details: str, fate: Fate, error: type[StelaeError]) -> None:
    failure = failure_of(code, details, "m1:2379")
    assert (failure.fate, type(failure.error)) == (fate, error)
    assert "m1:2379" in str(failure.error)
