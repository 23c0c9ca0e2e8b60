"""Asking the masters of a cluster: whichever answers, or the one that leads.

Any master says who leads and where rows are, at once, or it is stopped, or cut off from here or from the metastore:
then the next one is asked. The one that leads is waited for until the others say that another leads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ParamSpec, TypeVar

from stelae.client.remote.asking import Asker
from stelae.client.remote.finding import AnyConnector, Connect, FoundConnector
from stelae.client.remote.lines import LineSettings
from stelae.model.errors import ConnectionLost, InvalidArgument, StelaeError, Unavailable
from stelae.ports.clock import Clock
from stelae.registry.control_operations import PLACES
from stelae.service.deadlines import Deadline
from stelae.service.operations import Operation
from stelae.wire.faults import MessageRefused
from stelae.wire.handshake import Introduction
from stelae.wire.hello import Hello
from stelae.wire.messages import NO_METHOD

P = ParamSpec("P")
R = TypeVar("R")

SERVER_LINES = LineSettings(connect_s=5.0)
"""To one that does not let in anybody in that time: another may lead soon."""


class AnyMaster(Asker):
    """Asks one of several masters, and another if that one is lost before it was asked, or was asked what may be asked
    again, or answers that it cannot say. InvalidArgument if whoever answers is no master."""

    def __init__(self, masters: AnyConnector, hello: Hello | Introduction, clock: Clock) -> None:
        super().__init__(masters, hello, clock)
        self._masters = masters

    def ask(self, operation: Operation[P, R], deadline: Deadline | None, *args: P.args, **kwargs: P.kwargs) -> R:
        until = self.until(deadline)
        try:
            for _ in range(self._masters.count - 1):
                first = self._masters.first
                try:
                    return super().ask(operation, until, *args, **kwargs)
                except Unavailable as error:
                    if until.is_over or not (isinstance(error, ConnectionLost) or type(error) is Unavailable):
                        raise
                    if not isinstance(error, ConnectionLost):
                        self._masters.pass_over(first)
            return super().ask(operation, until, *args, **kwargs)
        except MessageRefused as error:
            if NO_METHOD not in str(error):
                raise
            address = self._masters.address.partition(",")[0]
            raise InvalidArgument(
                f"{address}: a shard serves there, or another that is no master; name a master"
            ) from None


def brief_masters(addresses: Sequence[str], connect: Connect, clock: Clock) -> AnyConnector:
    """To masters that are asked only for what they know."""
    return AnyConnector(addresses, connect, clock, is_brief=True)


def ask_leading(masters: Asker, words: str, connect: Connect, hello: Hello | Introduction, clock: Clock) -> Asker:
    """Asks the one that leads, as any says. `words`: which cluster it is, for messages."""

    def find(until: Deadline | None) -> str:
        address = masters.ask(PLACES, until).master
        if not address:
            raise Unavailable(f"{words}: no master leads yet")
        return address

    def has_moved(peer: str, deadline: Deadline) -> bool:
        try:
            address = masters.ask(PLACES, deadline).master
        except StelaeError:
            return False  # nobody says so
        return address not in ("", peer)

    leading = FoundConnector(f"the master of {words}", find, connect, clock)
    return Asker(leading, hello, clock, SERVER_LINES, has_moved=has_moved)
