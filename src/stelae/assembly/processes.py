"""What each process of a cluster is made of, whatever it serves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stelae.client.remote.finding import ConnectOnLoop, FindOnLoop, FoundDial
from stelae.model.events import Listener as EventListener
from stelae.ports.clock import Clock
from stelae.ports.executor import Executor
from stelae.ports.loop import Loop
from stelae.ports.metastore import Metastore
from stelae.ports.rng import Rng
from stelae.ports.transport import Listener
from stelae.registry.peers import Peer, Sign
from stelae.registry.senders import Sender
from stelae.service.operations import Operation
from stelae.tserver.serving.service import ServiceLimits, StoreService
from stelae.wire.handshake import Introduction
from stelae.wire.hello import PROTOCOL_MAX, PROTOCOL_MIN, Hello
from stelae.wire.proofs import ClusterToken


@dataclass(frozen=True, slots=True)
class ProcessPorts:
    """`connect` connects the loop to other processes; what they ask of this one runs on `serving`. `token`: what they
    all know, if they have to prove that they belong together."""

    metastore: Metastore
    clock: Clock
    rng: Rng
    loop: Loop
    connect: ConnectOnLoop
    serving: Executor
    token: ClusterToken | None = None


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """`name`: what the process is called. `release`: of the product, for peers."""

    name: str
    release: str = ""
    limits: ServiceLimits = field(default_factory=ServiceLimits)


def introduce_process(ports: ProcessPorts, settings: ProcessSettings, role: str, store: str) -> Introduction:
    """Who the process is to its clients and to the other processes."""
    return Introduction(Hello(PROTOCOL_MIN, PROTOCOL_MAX, settings.release, store, role), ports.token, ports.rng)


def make_peer(ports: ProcessPorts, what: str, me: Introduction, find: FindOnLoop, sign: Sign) -> Peer:
    """Asks a process of the cluster that is found anew whenever a connection to it is made."""
    return Peer(what, FoundDial(what, find, ports.connect), me, ports.clock, ports.rng, sign=sign)


class Served:
    """A process's service, from the moment it listens until it is closed. Blocking: not for the loop's thread. `tell`
    hears of those who are not let in."""

    def __init__(
        self,
        ports: ProcessPorts,
        settings: ProcessSettings,
        me: Introduction,
        backend: Any,
        operations: Mapping[str, Operation[Any, Any]],
        listener: Listener,
        tell: EventListener,
        sender: Sender,
    ) -> None:
        self._loop = ports.loop
        self._service = ports.loop.run(_start(ports, settings, me, backend, operations, listener, tell, sender))

    @property
    def connections(self) -> int:
        return self._service.connections

    def numbers(self) -> dict[str, int]:
        """For metrics: connections, and how many were not let in, by kind."""
        refused = self._service.door.refusals()
        kinds = {f"handshakes_refused_{kind}": count for kind, count in refused.items()}
        return {"connections": self.connections, "handshakes_refused": sum(refused.values()), **kinds}

    def close(self) -> None:
        """Requests under way are answered first, if they do not take long. Closing twice is no error."""
        self._loop.run(self._service.close())


async def _start(
    ports: ProcessPorts,
    settings: ProcessSettings,
    me: Introduction,
    backend: Any,
    operations: Mapping[str, Operation[Any, Any]],
    listener: Listener,
    tell: EventListener,
    sender: Sender,
) -> StoreService:
    service = StoreService(backend, ports.serving, me, ports.clock, settings.limits, operations, tell, sender.hear)
    await service.start(listener)
    return service
