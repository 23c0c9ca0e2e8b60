"""Calls to the members of an etcd cluster: which one is asked, again when that is safe, with a token if needed.

One member is asked until it fails; then the next. A call that certainly was not done is made again, on another member,
within its deadline. One that is perhaps done is made again only if making it twice is the same as once. Before a
request is sent its connection stands, so that a dead or unreachable member never leaves anything in doubt.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from stelae.adapters.etcd.errors import Failure, Fate, failure_of
from stelae.adapters.etcd.messages import AUTHENTICATE, Method, grpc_module, message
from stelae.adapters.files import os_errors
from stelae.model.errors import Closed, InvalidArgument, Unavailable, UnknownOutcome

ANSWER_BYTES_MAX = 16 << 20

_CONNECT_S_MAX = 2.0
_PAUSE_S_MIN = 0.05
_PAUSE_S_MAX = 0.5
_OPTIONS = [
    ("grpc.max_receive_message_length", ANSWER_BYTES_MAX),
    ("grpc.keepalive_time_ms", 10_000),  # etcd refuses more than one in 5 s
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # how long one attempt may take, as gRPC uses it
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_retries", 0),  # whether to repeat is decided here
    ("grpc.use_local_subchannel_pool", 1),
]


class EtcdTls(msgspec.Struct, frozen=True):
    """Files in PEM: the authority that signed the servers' certificates; the client's own, if servers ask for it."""

    ca: str | os.PathLike[str]
    cert: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None


@dataclass(frozen=True, slots=True)
class EtcdUser:
    name: str
    password: str = field(repr=False)


class CallFailed(Exception):
    """A call that etcd refused; for whoever made it to look at, never for the caller of the metastore."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure.error))
        self.failure = failure


class EtcdCluster:
    """The members at these endpoints ('host:port', or with http:// or https:// before), as one."""

    def __init__(self, endpoints: Sequence[str], tls: EtcdTls | None, user: EtcdUser | None, timeout_s: float) -> None:
        if not endpoints:
            raise InvalidArgument("an etcd cluster needs at least one endpoint: host:port")
        if timeout_s <= 0:
            raise InvalidArgument(f"a call to etcd needs more than {timeout_s} seconds")
        self._endpoints = [_host_and_port(endpoint, tls is not None) for endpoint in endpoints]
        self._credentials = None if tls is None else _credentials(tls)
        self._user = user
        self._timeout_s = timeout_s
        self._current = 0
        self._channels: dict[str, Any] = {}
        self._token: str | None = None
        self._token_lock = asyncio.Lock()
        self._closing: asyncio.Future[None] | None = None
        self._under_way: set[asyncio.Future[Any]] = set()
        self._process = os.getpid()
        self._closed = False

    def check_open(self) -> None:
        if self._process != os.getpid():
            raise Closed("the connection to etcd belongs to the process that this one was forked from: make a new one")
        if self._closed:
            raise Closed("the connection to etcd was closed")

    async def call(self, method: Method, request: Any, *, changes: bool, repeatable: bool) -> Any:
        """The answer. Raises CallFailed if etcd refused, Unavailable if it was not done, UnknownOutcome if it changes
        something and perhaps was."""
        deadline_s = self._now_s() + self._timeout_s
        perhaps_done = False
        pauses = _Pauses(len(self._endpoints))
        while True:
            self.check_open()
            endpoint = self._endpoints[self._current]
            rest_s = deadline_s - self._now_s()
            share_s = rest_s / 2 if repeatable and len(self._endpoints) > 1 else rest_s
            try:
                return await self._ask(endpoint, method, request, max(share_s, 0.001))
            except CallFailed as failed:
                failure = failed.failure
                match failure.fate:
                    case Fate.STALE_TOKEN if self._user is not None and pauses.count < 2 * len(self._endpoints):
                        self._token = None
                    case Fate.NOT_DONE:
                        self.leave(endpoint)
                    case Fate.PERHAPS_DONE:
                        perhaps_done = True
                        self.leave(endpoint)
                    case _:
                        raise
            self.check_open()
            if perhaps_done and not repeatable:
                raise UnknownOutcome(f"{failure.error}: it may or may not have happened")
            if not await pauses.pause(deadline_s - self._now_s()):
                if perhaps_done and changes:
                    raise UnknownOutcome(f"{failure.error}: it may or may not have happened")
                raise Unavailable(f"no answer within {self._timeout_s:g} seconds; {failure.error}")

    async def stream(self, method: Method) -> tuple[str, Any]:
        """A stream of both directions to the current member, which breaks when that member loses its leader."""
        self.check_open()
        endpoint = self._endpoints[self._current]
        try:
            await self._connect(endpoint, _CONNECT_S_MAX)
            metadata = [("hasleader", "true"), *await self._metadata(endpoint, self._timeout_s)]
        except CallFailed:
            self.leave(endpoint)
            raise
        stub = self._channel(endpoint).stream_stream(
            method.path,
            request_serializer=message(method.request).SerializeToString,
            response_deserializer=message(method.response).FromString,
        )
        return endpoint, stub(metadata=metadata)

    def closing(self) -> asyncio.Future[None]:
        """Done when this is closed."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_future()
        return self._closing

    def leave(self, endpoint: str) -> None:
        """Ask the next member from now on, unless others have already."""
        if self._endpoints[self._current] == endpoint:
            self._current = (self._current + 1) % len(self._endpoints)

    def forget_token(self) -> None:
        self._token = None

    @property
    def has_user(self) -> bool:
        return self._user is not None

    async def close(self) -> None:
        """Streams end at once, calls under way first: which they do by their deadlines."""
        self._closed = True
        if not self.closing().done():
            self.closing().set_result(None)
        if self._under_way:
            await asyncio.wait(self._under_way)
        channels, self._channels = list(self._channels.values()), {}
        await asyncio.gather(*[channel.close() for channel in channels])

    async def _ask(self, endpoint: str, method: Method, request: Any, timeout_s: float) -> Any:
        give_up_s = self._now_s() + timeout_s
        await self._connect(endpoint, min(timeout_s, _CONNECT_S_MAX))
        metadata = None if method is AUTHENTICATE else await self._metadata(endpoint, timeout_s)
        stub = self._channel(endpoint).unary_unary(
            method.path,
            request_serializer=message(method.request).SerializeToString,
            response_deserializer=message(method.response).FromString,
        )
        ended = asyncio.get_running_loop().create_future()
        self._under_way.add(ended)
        try:
            return await stub(request, timeout=max(give_up_s - self._now_s(), 0.001), metadata=metadata)
        except grpc_module().aio.AioRpcError as error:
            raise CallFailed(failure_of(error.code().name, error.details() or "", endpoint)) from error
        finally:
            self._under_way.discard(ended)
            ended.set_result(None)

    async def _connect(self, endpoint: str, timeout_s: float) -> None:
        """Wait until the connection stands, or was refused: then the next call on it fails at once, and says why."""
        states = grpc_module().ChannelConnectivity
        channel = self._channel(endpoint)
        try:
            async with asyncio.timeout(timeout_s):
                while (state := channel.get_state(try_to_connect=True)) in (states.IDLE, states.CONNECTING):
                    await channel.wait_for_state_change(state)
        except (TimeoutError, grpc_module().aio.UsageError) as error:  # it was closed, if it is the second
            slow = Unavailable(f"etcd at {endpoint}: no connection within {timeout_s:.1f} seconds")
            raise CallFailed(Failure(Fate.NOT_DONE, slow)) from error

    async def _metadata(self, endpoint: str, timeout_s: float) -> list[tuple[str, str]]:
        if self._user is None:
            return []
        async with self._token_lock:
            if self._token is None:
                request = message(AUTHENTICATE.request)(name=self._user.name, password=self._user.password)
                try:
                    self._token = (await self._ask(endpoint, AUTHENTICATE, request, timeout_s)).token
                except CallFailed as failed:
                    if failed.failure.fate is Fate.PERHAPS_DONE:  # of the call itself nothing was done
                        raise CallFailed(Failure(Fate.NOT_DONE, failed.failure.error)) from failed
                    if "authentication is not enabled" not in str(failed):
                        raise
                    return []
            return [("token", self._token)]

    def _channel(self, endpoint: str) -> Any:
        self.check_open()
        if endpoint not in self._channels:
            aio = grpc_module().aio
            self._channels[endpoint] = (
                aio.insecure_channel(endpoint, options=_OPTIONS)
                if self._credentials is None
                else aio.secure_channel(endpoint, self._credentials, options=_OPTIONS)
            )
        return self._channels[endpoint]

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


class _Pauses:
    """Each member is tried once at once; then every round waits a little longer than the one before."""

    def __init__(self, members: int) -> None:
        self._members = members
        self._pause_s = _PAUSE_S_MIN
        self.count = 0

    async def pause(self, rest_s: float) -> bool:
        """False if there is no time left."""
        self.count += 1
        if self.count % self._members == 0:
            await asyncio.sleep(min(self._pause_s, max(rest_s, 0)))
            self._pause_s = min(2 * self._pause_s, _PAUSE_S_MAX)
            return rest_s > self._pause_s
        return rest_s > 0


def _host_and_port(endpoint: str, secure: bool) -> str:
    scheme, found, place = endpoint.rpartition("://")
    if found and scheme != ("https" if secure else "http"):
        raise InvalidArgument(f"{endpoint}: https needs TLS files, and http none")
    host, _, port = place.rpartition(":")
    if not host or not port.isdigit():
        raise InvalidArgument(f"{endpoint!r} is not an etcd endpoint: write host:port")
    return place


def _credentials(tls: EtcdTls) -> Any:
    if (tls.cert is None) != (tls.key is None):
        raise InvalidArgument("a client certificate and its key go together")
    files = [tls.ca, tls.key, tls.cert]
    with os_errors("TLS files for etcd"):
        ca, key, cert = [None if file is None else Path(file).read_bytes() for file in files]
    return grpc_module().ssl_channel_credentials(ca, key, cert)
