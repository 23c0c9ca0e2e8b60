"""The threads that a server's steps run on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from stelae.adapters.threads import StepThread
from stelae.tserver.surroundings import Wakeups

TEND_S = 60.0
"""So often is looked for what time alone makes due."""

_FLUSH_PAUSE_S = 0.05
_STREAMS_S = 0.5


class Stepping(Protocol):
    """Who has steps to be taken: see `tserver.server`."""

    @property
    def wakes(self) -> Wakeups: ...

    def flush_step(self) -> bool: ...

    def compact_step(self) -> bool: ...

    def log_step(self) -> bool: ...


class Replicating(Stepping, Protocol):
    """Whose tablets may have replicas elsewhere."""

    def stream_step(self) -> bool: ...


def start_shard_steps(shard: Replicating) -> list[Callable[[], None]]:
    """As `start_steps`, of a shard of a cluster."""
    streaming = StepThread("stelae-streams", shard.stream_step, _STREAMS_S)
    shard.wakes.streams = streaming.wake
    return [streaming.close, *start_steps(shard)]


def start_steps(server: Stepping) -> list[Callable[[], None]]:
    """Take its steps on threads of their own, when they are called for; what ends these, first to last."""
    compacting = StepThread("stelae-compact", server.compact_step, TEND_S)

    def flush_step() -> bool:
        has_flushed = server.flush_step()
        if has_flushed:
            compacting.wake()
        return has_flushed

    flushing = StepThread("stelae-flush", flush_step, pause_s=_FLUSH_PAUSE_S)
    logging = StepThread("stelae-log", server.log_step)
    server.wakes.full, server.wakes.log, server.wakes.grown = flushing.wake, logging.wake, compacting.wake
    flushing.wake()
    compacting.wake()
    return [logging.close, flushing.close, compacting.close]
