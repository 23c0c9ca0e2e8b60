"""Looks at a cluster through its masters, and changes who belongs to it, without connecting to the store that it
serves."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import ParamSpec, TypeVar

from stelae.adapters.rng import SystemRng
from stelae.adapters.sockets.tcp import TcpConnector
from stelae.client.remote.cluster.masters import AnyMaster
from stelae.client.remote.finding import AnyConnector
from stelae.launch.access import Access
from stelae.launch.attached import CLOCK
from stelae.model.errors import Unavailable
from stelae.ports.blocking import BlockingConnector
from stelae.registry.masters.draining import DRAIN, DrainedServers
from stelae.registry.masters.overview import OVERVIEW, ClusterOverview
from stelae.registry.masters.removing import REMOVE, RemovedServers
from stelae.service.deadlines import Deadline
from stelae.service.operations import Operation
from stelae.wire.handshake import Introduction
from stelae.wire.hello import PROTOCOL_MAX, PROTOCOL_MIN, Hello

P = ParamSpec("P")
R = TypeVar("R")


class ClusterMasters:
    """The masters of a cluster, by their addresses, with commas. Each call takes up to `timeout_s`."""

    def __init__(self, masters: str, access: Access, release: str, timeout_s: float) -> None:
        self._addresses = [each.strip() for each in masters.split(",")]
        self._access = access
        self._hello = Hello(PROTOCOL_MIN, PROTOCOL_MAX, release, "", "client")
        self._timeout_s = timeout_s

    def look(self) -> ClusterOverview:
        """As the master that leads sees it; if that does not answer, as any other does that is named. Unavailable if
        none answers in time."""
        deadline = Deadline(CLOCK, self._timeout_s)
        found = self._ask(self._addresses, deadline, OVERVIEW)
        leading = [each.address for each in found.masters if each.leads and each.name != found.asked]
        with suppress(Unavailable):
            return self._ask(leading, deadline, OVERVIEW) if leading else found
        return found

    def remove(self, name: str, *, accepts_loss: bool) -> RemovedServers:
        """Have the master that leads take a node or a shard out. Unavailable if none leads."""
        return self._ask(self._leading(), Deadline(CLOCK, self._timeout_s), REMOVE, name, accepts_loss)

    def drain(self, name: str) -> DrainedServers:
        """Have the master that leads hand over what a node or a shard leads. Unavailable if none leads, or nobody can
        take it over."""
        return self._ask(self._leading(), Deadline(CLOCK, self._timeout_s), DRAIN, name)

    def _leading(self) -> list[str]:
        leading = [each.address for each in self.look().masters if each.leads]
        if not leading:
            raise Unavailable("none of the cluster's masters leads now; try again")
        return leading

    def _ask(
        self,
        addresses: Sequence[str],
        deadline: Deadline,
        operation: Operation[P, R],
        *args: P.args,
        **options: P.kwargs,
    ) -> R:
        introduction = Introduction(self._hello, self._access.token, SystemRng())
        asker = AnyMaster(AnyConnector(addresses, self._connector, CLOCK), introduction, CLOCK)
        try:
            return asker.ask(operation, deadline, *args, **options)
        finally:
            asker.lines.close()

    def _connector(self, address: str) -> BlockingConnector:
        return TcpConnector(address, tls=self._access.tls)
