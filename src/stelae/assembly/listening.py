"""What becomes of listeners that fail: the store goes on, and the process's log says so."""

from __future__ import annotations

import logging

from stelae.model.events import Event

_log = logging.getLogger("stelae")


def note_failure(event: Event, error: Exception) -> None:
    _log.error("a listener failed to hear of %s", type(event).__name__, exc_info=error)
