"""Looks at a cluster through its masters, without connecting to the store that it serves."""

from __future__ import annotations

from contextlib import suppress

from stelae.adapters.rng import SystemRng
from stelae.adapters.sockets.tcp import TcpConnector
from stelae.client.remote.asking import Asker
from stelae.client.remote.finding import AnyConnector
from stelae.launch.access import Access
from stelae.launch.attached import CLOCK
from stelae.model.errors import Unavailable
from stelae.ports.blocking import BlockingConnector
from stelae.registry.masters.overview import OVERVIEW, ClusterOverview
from stelae.service.deadlines import Deadline
from stelae.wire.handshake import Introduction
from stelae.wire.hello import PROTOCOL_MAX, PROTOCOL_MIN, Hello


def look_at_cluster(masters: str, access: Access, release: str, timeout_s: float) -> ClusterOverview:
    """As the master that leads sees it; if that does not answer, as any other does that is named. Unavailable if none
    answers in time."""
    introduction = Introduction(Hello(PROTOCOL_MIN, PROTOCOL_MAX, release, "", "client"), access.token, SystemRng())
    deadline = Deadline(CLOCK, timeout_s)

    def connector(address: str) -> BlockingConnector:
        return TcpConnector(address, tls=access.tls)

    def ask(addresses: list[str]) -> ClusterOverview:
        asker = Asker(AnyConnector(addresses, connector, CLOCK), introduction, CLOCK)
        try:
            return asker.ask(OVERVIEW, deadline)
        finally:
            asker.lines.close()

    found = ask([each.strip() for each in masters.split(",")])
    leading = [each.address for each in found.masters if each.leads and each.name != found.asked]
    with suppress(Unavailable):
        return ask(leading) if leading else found
    return found
