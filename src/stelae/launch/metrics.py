"""Tells the numbers of a process to whoever collects them: `GET /metrics`, in Prometheus' text.

Whoever reaches it reads numbers: no names of tables, no rows. It knows neither token nor TLS: so it is for this
machine, unless somebody says that others may read it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stelae.adapters.http_texts import Page, TextServer
from stelae.adapters.sockets.addresses import host_and_port
from stelae.adapters.usage import process_usage
from stelae.launch.binding import is_loopback
from stelae.model.errors import InvalidArgument, Unavailable
from stelae.ports.loop import Loop
from stelae.service.exposition import CONTENT_TYPE, exposed

METRICS_PATH = "/metrics"


def check_metrics_binding(address: str, *, insecure: bool) -> bool:
    """Whether other machines reach it. InvalidArgument if they do and nobody said that they may."""
    host, _ = host_and_port(address)
    if is_loopback(host):
        return False
    if not insecure:
        raise InvalidArgument(
            f"--metrics {address} is reached from other machines, and knows neither token nor TLS: let it listen on "
            "127.0.0.1, for a collector on this machine, or say --insecure if whoever reaches it may read its numbers"
        )
    return True


class MetricsPage:
    """Serves from when it is made, and tells numbers while it has been given a source of them. Blocking: not for the
    loop's thread."""

    def __init__(self, loop: Loop, address: str, process: str, role: str) -> None:
        self._loop = loop
        self._labels = {"process": process, "role": role}
        self._numbers: Callable[[], Mapping[str, object]] | None = None
        self._server = TextServer({METRICS_PATH: Page(CONTENT_TYPE, self._text)})
        self.address = loop.run(self._server.start(address))

    def tell(self, numbers: Callable[[], Mapping[str, object]]) -> None:
        """From now on tell these, as they are when somebody asks."""
        self._numbers = numbers

    def hush(self) -> None:
        """From now on tell none: what they are read from is about to end."""
        self._numbers = None

    def close(self) -> None:
        self._loop.run(self._server.close())

    def _text(self) -> str:
        numbers = self._numbers
        if numbers is None:
            raise Unavailable(f"{self._labels['role']} {self._labels['process']} does not serve now")
        return exposed({**numbers(), **process_usage()}, self._labels)
