"""The life of a tablet on one server: eight states, the events that move it on, and what is to be done then.

| | state | holds |
|---|---|---|
| 0 | UNKNOWN | nothing |
| 1 | READING_CONFIG | a place for requests to wait in |
| 2 | REPLAYING | the config; the log of whoever had it last is being read |
| 3 | SAVING_CONFIG | everything; the config that names this server and its log is being saved |
| 4 | OPENING | a saved config: writes are safe from here on; fragments are being opened |
| 5 | ACTIVE | reads and writes |
| 6 | FLUSHING | reads only: what is in memory is being written to files |
| 7 | SAVING_LAST | all is in files: the config that names no server is being saved |

`step` is total: an event that means nothing in a state is refused with words, and changes nothing. What a request gets
is derived from the state (`treatment`), never kept beside it. Effects are carried out by the caller, and may be carried
out again after a crash.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TypeAlias

from stelae.model.errors import StelaeError


class Life(IntEnum):
    """The numbers are the seed's, and are shown to operators."""

    UNKNOWN = 0
    READING_CONFIG = 1
    REPLAYING = 2
    SAVING_CONFIG = 3
    OPENING = 4
    ACTIVE = 5
    FLUSHING = 6
    SAVING_LAST = 7


class TabletEvent(Enum):
    """What happened."""

    LOAD_ASKED = "load asked"
    CONFIG_READ = "config read"
    LOG_REPLAYED = "log replayed"
    CONFIG_SAVED = "config saved"
    FRAGMENTS_OPENED = "fragments opened"
    UNLOAD_ASKED = "unload asked"
    MEMORY_FLUSHED = "memory flushed"
    LAST_CONFIG_SAVED = "last config saved"
    FAILED = "failed"


class TabletEffect(Enum):
    """What to do now."""

    READ_CONFIG = "read the config"
    REPLAY_LOG = "replay the log"
    SAVE_CONFIG = "save the config"
    OPEN_FRAGMENTS = "open the fragments"
    SERVE_WAITING = "serve the requests that wait"
    FLUSH_MEMORY = "flush the memory"
    SAVE_LAST_CONFIG = "save the last config"
    END_READERS = "end the readers"
    REFUSE_WAITING = "refuse the requests that wait"
    DROP = "drop the tablet"


class RequestKind(Enum):
    """What a request wants."""

    READ = "read"
    WRITE = "write"


class Treatment(Enum):
    """What a request gets."""

    SERVED = "served"
    DEFERRED = "deferred"
    REFUSED = "refused"


class NotInThisState(StelaeError):
    """An event that cannot happen now; nothing was changed."""


@dataclass(frozen=True, slots=True)
class LifeStep:
    life: Life
    effects: tuple[TabletEffect, ...] = ()


_Table: TypeAlias = dict[tuple[Life, TabletEvent], LifeStep]

_NEXT: _Table = {
    (Life.UNKNOWN, TabletEvent.LOAD_ASKED): LifeStep(Life.READING_CONFIG, (TabletEffect.READ_CONFIG,)),
    (Life.READING_CONFIG, TabletEvent.CONFIG_READ): LifeStep(Life.REPLAYING, (TabletEffect.REPLAY_LOG,)),
    (Life.REPLAYING, TabletEvent.LOG_REPLAYED): LifeStep(Life.SAVING_CONFIG, (TabletEffect.SAVE_CONFIG,)),
    (Life.SAVING_CONFIG, TabletEvent.CONFIG_SAVED): LifeStep(
        Life.OPENING, (TabletEffect.SERVE_WAITING, TabletEffect.OPEN_FRAGMENTS)
    ),
    (Life.OPENING, TabletEvent.FRAGMENTS_OPENED): LifeStep(Life.ACTIVE, (TabletEffect.SERVE_WAITING,)),
    (Life.ACTIVE, TabletEvent.UNLOAD_ASKED): LifeStep(Life.FLUSHING, (TabletEffect.FLUSH_MEMORY,)),
    (Life.FLUSHING, TabletEvent.MEMORY_FLUSHED): LifeStep(
        Life.SAVING_LAST, (TabletEffect.END_READERS, TabletEffect.SAVE_LAST_CONFIG)
    ),
    (Life.SAVING_LAST, TabletEvent.LAST_CONFIG_SAVED): LifeStep(Life.UNKNOWN, (TabletEffect.DROP,)),
    # A load that fails before its config is saved leaves nothing behind; after that the tablet has written, or may
    # have, so it stays where it is and the step is tried again.
    (Life.READING_CONFIG, TabletEvent.FAILED): LifeStep(Life.UNKNOWN, (TabletEffect.REFUSE_WAITING, TabletEffect.DROP)),
    (Life.REPLAYING, TabletEvent.FAILED): LifeStep(Life.UNKNOWN, (TabletEffect.REFUSE_WAITING, TabletEffect.DROP)),
    (Life.SAVING_CONFIG, TabletEvent.FAILED): LifeStep(Life.UNKNOWN, (TabletEffect.REFUSE_WAITING, TabletEffect.DROP)),
    (Life.OPENING, TabletEvent.FAILED): LifeStep(Life.OPENING, (TabletEffect.OPEN_FRAGMENTS,)),
    (Life.FLUSHING, TabletEvent.FAILED): LifeStep(Life.FLUSHING, (TabletEffect.FLUSH_MEMORY,)),
    (Life.SAVING_LAST, TabletEvent.FAILED): LifeStep(Life.SAVING_LAST, (TabletEffect.SAVE_LAST_CONFIG,)),
    # Asked again for what is under way or done.
    **{(life, TabletEvent.LOAD_ASKED): LifeStep(life) for life in Life if Life.READING_CONFIG <= life <= Life.ACTIVE},
    **{(life, TabletEvent.UNLOAD_ASKED): LifeStep(life) for life in (Life.UNKNOWN, Life.FLUSHING, Life.SAVING_LAST)},
    # Nobody has written yet: the load is given up.
    **{
        (life, TabletEvent.UNLOAD_ASKED): LifeStep(Life.UNKNOWN, (TabletEffect.REFUSE_WAITING, TabletEffect.DROP))
        for life in (Life.READING_CONFIG, Life.REPLAYING)
    },
}


def step(life: Life, event: TabletEvent) -> LifeStep:
    """The next state and what to do; NotInThisState if the event cannot happen in this one."""
    found = _NEXT.get((life, event))
    if found is None:
        raise NotInThisState(f"{event.value!r} cannot happen to a tablet in state {life.value} {life.name}")
    return found


_TREATMENT: dict[Life, dict[RequestKind, Treatment]] = {
    Life.UNKNOWN: {RequestKind.READ: Treatment.REFUSED, RequestKind.WRITE: Treatment.REFUSED},
    Life.READING_CONFIG: {RequestKind.READ: Treatment.DEFERRED, RequestKind.WRITE: Treatment.DEFERRED},
    Life.REPLAYING: {RequestKind.READ: Treatment.DEFERRED, RequestKind.WRITE: Treatment.DEFERRED},
    Life.SAVING_CONFIG: {RequestKind.READ: Treatment.DEFERRED, RequestKind.WRITE: Treatment.DEFERRED},
    Life.OPENING: {RequestKind.READ: Treatment.DEFERRED, RequestKind.WRITE: Treatment.SERVED},
    Life.ACTIVE: {RequestKind.READ: Treatment.SERVED, RequestKind.WRITE: Treatment.SERVED},
    Life.FLUSHING: {RequestKind.READ: Treatment.SERVED, RequestKind.WRITE: Treatment.REFUSED},
    Life.SAVING_LAST: {RequestKind.READ: Treatment.REFUSED, RequestKind.WRITE: Treatment.REFUSED},
}


def treatment(life: Life, kind: RequestKind) -> Treatment:
    return _TREATMENT[life][kind]
