"""What happens in a store, in the process's log.

Events go through structlog to the logger "stelae.events" of the standard library, one line each, as `name key=value`.
Nothing is configured for anybody else, and nobody sees anything unless the program turns it on:

    logging.basicConfig()
    logging.getLogger("stelae").setLevel(logging.INFO)
"""

from __future__ import annotations

import logging
import re
import time
from typing import Any

import msgspec

from stelae.model.events import (
    ClockIsOff,
    CollectionPutOff,
    DiskRefused,
    Event,
    HandshakeRefused,
    LeadingFailed,
    OwnerLost,
    ReplicaNotMade,
    ServedInsecurely,
    ShardRemoved,
    StoreFilled,
    TicketExpired,
    UnknownFilesFound,
)

LOGGER = "stelae.events"
_WARNINGS = (
    ClockIsOff,
    CollectionPutOff,
    DiskRefused,
    HandshakeRefused,
    LeadingFailed,
    OwnerLost,
    ReplicaNotMade,
    ServedInsecurely,
    ShardRemoved,
    StoreFilled,
    TicketExpired,
    UnknownFilesFound,
)
_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")


class EventLog:
    """A `Listener`. `place`: which store it is about; a program may have several open."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._plain = logging.getLogger(LOGGER)
        if not self._plain.handlers:
            self._plain.addHandler(logging.NullHandler())  # else warnings would go to stderr by themselves
        self._log: Any = None

    def __call__(self, event: Event) -> None:
        level = logging.WARNING if isinstance(event, _WARNINGS) else logging.INFO
        if not self._plain.isEnabledFor(level):
            return
        if self._log is None:
            self._log = _structured(self._plain).bind(store=self._place)
        self._log.log(level, _WORD.sub("_", type(event).__name__).lower(), **msgspec.structs.asdict(event))


def show_events() -> None:
    """For a program that does nothing but serve: all that happens goes to its standard error, with the time in UTC."""
    handler = logging.StreamHandler()
    shown = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    shown.converter = time.gmtime
    handler.setFormatter(shown)
    stelae = logging.getLogger("stelae")
    stelae.addHandler(handler)
    stelae.setLevel(logging.INFO)


def _structured(plain: logging.Logger) -> Any:
    import structlog  # takes as long to import as all of a small program: only if somebody listens

    return structlog.wrap_logger(
        plain,
        processors=[_render],
        wrapper_class=structlog.stdlib.BoundLogger,
        context_class=dict,
        cache_logger_on_first_use=True,
    )


def _render(_: object, __: str, fields: Any) -> str:
    """`name key=value ...`, with seconds as people read them."""
    name = fields.pop("event")
    shown = [f"{key}={round(value, 6) if isinstance(value, float) else value!r}" for key, value in fields.items()]
    return " ".join([name, *shown])
