"""A process's service, for threads that are not the loop's."""

from __future__ import annotations

from collections.abc import Callable

from stelae.ports.loop import Loop
from stelae.ports.transport import Listener
from stelae.tserver.serving.service import StoreService


class Served:
    """From the moment it listens until it is closed. Blocking."""

    def __init__(self, loop: Loop, make: Callable[[], StoreService], listener: Listener) -> None:
        """`make` is called on the loop."""
        self._loop = loop
        self._service = loop.run(_start(make, listener))

    def numbers(self) -> dict[str, int]:
        """For metrics: connections, and how many were not let in, by kind."""
        refused = self._service.door.refusals()
        kinds = {f"handshakes_refused_{kind}": count for kind, count in refused.items()}
        return {"connections": self._service.connections, "handshakes_refused": sum(refused.values()), **kinds}

    def close(self) -> None:
        """Requests under way are answered first, if they do not take long. Closing twice is no error."""
        self._loop.run(self._service.close())


async def _start(make: Callable[[], StoreService], listener: Listener) -> StoreService:
    service = make()
    await service.start(listener)
    return service
