"""What each process of a cluster is made of, whatever it serves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from stelae.model.errors import StelaeError
from stelae.model.events import Listener as EventListener
from stelae.ports.clock import Clock
from stelae.ports.executor import Executor
from stelae.ports.loop import Loop
from stelae.ports.metastore import Metastore
from stelae.ports.rng import Rng
from stelae.ports.transport import Listener
from stelae.registry.peers import Peer, Sign, unsigned
from stelae.registry.senders import Sender
from stelae.registry.wires.dialling import ConnectOnLoop, FindOnLoop, FoundDial
from stelae.service.operations import Operation
from stelae.tserver.serving.served import Served
from stelae.tserver.serving.service import ServiceLimits, StoreService
from stelae.wire.handshake import Introduction
from stelae.wire.hello import PROTOCOL_MAX, PROTOCOL_MIN, Hello
from stelae.wire.proofs import ClusterToken


class ProcessPorts(msgspec.Struct, frozen=True):
    """`connect` connects the loop to other processes; what they ask of this one runs on `serving`. `token`: what they
    all know, if they have to prove that they belong together."""

    metastore: Metastore
    clock: Clock
    rng: Rng
    loop: Loop
    connect: ConnectOnLoop
    serving: Executor
    token: ClusterToken | None = None


class ProcessSettings(msgspec.Struct, frozen=True):
    """`name`: what the process is called. `release`: of the product, for peers."""

    name: str
    release: str = ""
    limits: ServiceLimits = msgspec.field(default_factory=ServiceLimits)


def introduce_process(ports: ProcessPorts, settings: ProcessSettings, role: str, store: str) -> Introduction:
    """Who the process is to its clients and to the other processes."""
    return Introduction(Hello(PROTOCOL_MIN, PROTOCOL_MAX, settings.release, store, role), ports.token, ports.rng)


def make_peer(ports: ProcessPorts, what: str, me: Introduction, find: FindOnLoop, sign: Sign = unsigned) -> Peer:
    """Asks a process of the cluster that is found anew whenever a connection to it is made."""
    return Peer(what, FoundDial(what, find, ports.connect), me, ports.clock, ports.rng, sign=sign)


def serve_process(
    ports: ProcessPorts,
    settings: ProcessSettings,
    me: Introduction,
    backend: Any,
    operations: Mapping[str, Operation[Any, Any]],
    listener: Listener,
    tell: EventListener,
    sender: Sender,
    doubt: Callable[[], StelaeError | None] | None = None,
) -> Served:
    """Have the backend carry out what comes in at the listener. `tell` hears of those who are not let in. `doubt`: see
    `StoreService`."""

    def make() -> StoreService:
        limits, hear = settings.limits, sender.hear
        return StoreService(backend, ports.serving, me, ports.clock, limits, operations, tell, hear, doubt)

    return Served(ports.loop, make, listener)
