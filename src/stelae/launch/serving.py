"""Serves until somebody wants it to end: what `stelae master` is, and each shard of `stelae node`."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import Protocol, TypeVar

from stelae.adapters.children import end_with_parent
from stelae.adapters.event_log import show_events
from stelae.adapters.signals import StopAsked, StopSignals

_log = logging.getLogger("stelae")


class ServingProcess(Protocol):
    """What serves from when it is made until it is closed: see `processes`."""

    def close(self) -> None: ...


P = TypeVar("P", bound=ServingProcess)


def serve_until_stopped(make: Callable[[], P], tell: Callable[[P], None]) -> None:
    """`tell` is called once it serves. SIGTERM, SIGINT and SIGHUP close it in order; a second one ends the process at
    once. Whatever happens goes to standard error."""
    show_events()
    with StopSignals() as stops:
        try:
            with stops.interrupting():
                process = make()
        except StopAsked:
            _log.info("stopped while it was starting")
            return
        try:
            tell(process)
            _keep_what_is_loaded()
            stops.wait()
        finally:
            _log.info("is asked to stop")
            process.close()
        _log.info("has stopped")


def _keep_what_is_loaded() -> None:
    """Python's full collections of garbage look no more at what lives as long as the process, mostly modules: about
    70,000 objects, some 30 ms in which nothing is answered (decision 49)."""
    gc.collect()
    gc.freeze()


def serve_child(make: Callable[[], P], tell: Callable[[P], None]) -> None:
    """The same for a child: it also ends, at once, when its parent has ended. What was acknowledged is in the log."""
    end_with_parent(lambda: _log.warning("the process that started this one has ended, so this one ends, too"))
    serve_until_stopped(make, tell)
