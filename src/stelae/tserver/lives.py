"""The life of a tablet on one server: eight states, the events that move it on, and what is to be done then.

| | state | holds | reads | writes |
|---|---|---|---|---|
| 0 | UNKNOWN | nothing; its config may name it | - | - |
| 1 | READING_CONFIG | its name | - | - |
| 2 | REPLAYING | the config; the log of whoever had it last is being read | - | - |
| 3 | SAVING_CONFIG | everything; the config that names this server's log is being saved | - | - |
| 4 | OPENING | a saved config: writes will be safe; it is being put where requests find it | - | - |
| 5 | ACTIVE | everything | yes | yes |
| 6 | FLUSHING | everything; what is in memory is being written to files | yes | - |
| 7 | SAVING_LAST | all is in files: the config that names no log is being saved | yes | - |

A request that a tablet cannot serve is refused at once; whoever asked comes again.

`step` is a total function: an event that means nothing in a state is refused with words, and changes nothing. Whoever
runs a tablet's life carries out the effects of each step and says what happened then, which is the next event
(`TabletLives.advance`). No state is entered before the thing has happened that its name speaks of, and effects may be
carried out again after a crash. An effect that failed is tried again when the master asks again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, IntEnum
from threading import Lock
from typing import TypeAlias

import msgspec

from stelae.model.errors import TabletAway
from stelae.model.ids import TabletId


class Life(IntEnum):
    """The numbers are part of reports (`registry.control`), and are shown to operators."""

    UNKNOWN = 0
    READING_CONFIG = 1
    REPLAYING = 2
    SAVING_CONFIG = 3
    OPENING = 4
    ACTIVE = 5
    FLUSHING = 6
    SAVING_LAST = 7


class TabletEvent(Enum):
    """What has happened to a tablet, or was asked of it."""

    CREATE_ASKED = "create asked"
    LOAD_ASKED = "load asked"
    CONFIG_READ = "config read"
    LOG_REPLAYED = "log replayed"
    CONFIG_SAVED = "config saved"
    FRAGMENTS_OPENED = "fragments opened"
    SPLIT_ASKED = "split asked"
    JOIN_ASKED = "join asked"
    SUCCEEDED = "succeeded by others"
    TOOK_OVER = "took over from others"
    LEAD_TAKEN = "is led here now"
    LEAD_GIVEN_UP = "is led here no more"
    UNLOAD_ASKED = "unload asked"
    MEMORY_FLUSHED = "memory flushed"
    LAST_CONFIG_SAVED = "last config saved"
    DELETE_ASKED = "delete asked"
    FAILED = "failed"


class TabletEffect(Enum):
    """What to do now."""

    READ_CONFIG = "read the config"
    REPLAY_LOG = "replay the log"
    SAVE_CONFIG = "save the config"
    OPEN_FRAGMENTS = "open the fragments"
    SPLIT = "split the tablet"
    JOIN = "join the tablets"
    REFUSE_WRITES = "refuse writes"
    FLUSH_MEMORY = "flush the memory"
    SAVE_LAST_CONFIG = "save the last config"
    DROP = "drop the tablet"
    FORGET = "forget the tablet and its config"
    SERVE = "let requests find the led tablet"
    STOP_SERVING = "let nobody find the tablet; its replica stays"


class NotInThisState(TabletAway):
    """An event that cannot happen now; nothing was changed."""


class LifeStep(msgspec.Struct, frozen=True):
    life: Life
    effects: tuple[TabletEffect, ...] = ()


_Table: TypeAlias = dict[tuple[Life, TabletEvent], LifeStep]

_E, _F = TabletEvent, TabletEffect

_NEXT: _Table = {
    (Life.UNKNOWN, _E.CREATE_ASKED): LifeStep(Life.SAVING_CONFIG, (_F.SAVE_CONFIG,)),
    (Life.UNKNOWN, _E.LOAD_ASKED): LifeStep(Life.READING_CONFIG, (_F.READ_CONFIG,)),
    (Life.READING_CONFIG, _E.CONFIG_READ): LifeStep(Life.REPLAYING, (_F.REPLAY_LOG,)),
    (Life.REPLAYING, _E.LOG_REPLAYED): LifeStep(Life.SAVING_CONFIG, (_F.SAVE_CONFIG,)),
    (Life.SAVING_CONFIG, _E.CONFIG_SAVED): LifeStep(Life.OPENING, (_F.OPEN_FRAGMENTS,)),
    (Life.OPENING, _E.FRAGMENTS_OPENED): LifeStep(Life.ACTIVE),
    (Life.ACTIVE, _E.UNLOAD_ASKED): LifeStep(Life.FLUSHING, (_F.REFUSE_WRITES, _F.FLUSH_MEMORY)),
    (Life.FLUSHING, _E.MEMORY_FLUSHED): LifeStep(Life.SAVING_LAST, (_F.SAVE_LAST_CONFIG,)),
    (Life.SAVING_LAST, _E.LAST_CONFIG_SAVED): LifeStep(Life.UNKNOWN, (_F.DROP,)),
    # The rows of one tablet become those of others in one step of the shard: nobody is refused meanwhile. The log is
    # that of the server, so the others may be written to before their configs are saved.
    (Life.ACTIVE, _E.SPLIT_ASKED): LifeStep(Life.ACTIVE, (_F.SPLIT,)),
    (Life.ACTIVE, _E.JOIN_ASKED): LifeStep(Life.ACTIVE, (_F.JOIN,)),
    (Life.ACTIVE, _E.SUCCEEDED): LifeStep(Life.UNKNOWN),
    (Life.UNKNOWN, _E.TOOK_OVER): LifeStep(Life.ACTIVE, (_F.SAVE_CONFIG,)),
    (Life.ACTIVE, _E.CONFIG_SAVED): LifeStep(Life.ACTIVE),
    # A tablet with replicas has its config in their log, as the first record of the epoch: there is nothing to save.
    **{(life, _E.LEAD_TAKEN): LifeStep(Life.ACTIVE, (_F.SERVE,)) for life in (Life.UNKNOWN, Life.ACTIVE)},
    **{(life, _E.LEAD_GIVEN_UP): LifeStep(Life.UNKNOWN, (_F.STOP_SERVING,)) for life in Life},
    # A crash in the midst of a split or join leaves the configs of both: those that came later have the rows.
    (Life.REPLAYING, _E.SUCCEEDED): LifeStep(Life.UNKNOWN),
    **{(life, _E.DELETE_ASKED): LifeStep(Life.UNKNOWN, (_F.FORGET,)) for life in Life},
    # What fails before the config is saved leaves nothing behind. After that the tablet stays where it is, and the
    # step is tried again when it is asked for again.
    **{(life, _E.FAILED): LifeStep(life) for life in Life},
    **{
        (life, _E.FAILED): LifeStep(Life.UNKNOWN, (_F.DROP,))
        for life in (Life.READING_CONFIG, Life.REPLAYING, Life.SAVING_CONFIG)
    },
    # Asked again for what is under way or done.
    **{(life, _E.LOAD_ASKED): LifeStep(life) for life in Life if Life.READING_CONFIG <= life <= Life.ACTIVE},
    **{(life, _E.CREATE_ASKED): LifeStep(life) for life in (Life.SAVING_CONFIG, Life.ACTIVE)},
    (Life.UNKNOWN, _E.UNLOAD_ASKED): LifeStep(Life.UNKNOWN),
    (Life.OPENING, _E.LOAD_ASKED): LifeStep(Life.OPENING, (_F.OPEN_FRAGMENTS,)),
    (Life.OPENING, _E.CREATE_ASKED): LifeStep(Life.OPENING, (_F.OPEN_FRAGMENTS,)),
    (Life.FLUSHING, _E.UNLOAD_ASKED): LifeStep(Life.FLUSHING, (_F.FLUSH_MEMORY,)),
    (Life.SAVING_LAST, _E.UNLOAD_ASKED): LifeStep(Life.SAVING_LAST, (_F.SAVE_LAST_CONFIG,)),
    # Nobody has written yet: the load is given up.
    **{
        (life, _E.UNLOAD_ASKED): LifeStep(Life.UNKNOWN, (_F.DROP,))
        for life in (Life.READING_CONFIG, Life.REPLAYING, Life.OPENING)
    },
}


def step(life: Life, event: TabletEvent) -> LifeStep:
    """The next state and what to do; NotInThisState if the event cannot happen in this one."""
    found = _NEXT.get((life, event))
    if found is None:
        raise NotInThisState(f"{event.value!r} cannot happen to a tablet in state {life.value} {life.name}")
    return found


Happened: TypeAlias = tuple[Sequence[TabletId], TabletEvent]
CarryOut: TypeAlias = Callable[[TabletEffect, Sequence[TabletId]], Iterable[Happened]]
"""Carries out an effect for some tablets at once, and says what happened then, to which tablets."""


class TabletLives:
    """In which state each tablet of a server is. Safe for threads: a step is taken by all tablets of an event at once.
    The effects are carried out by whoever ran the event; what concerns one tablet is asked for by one at a time."""

    def __init__(self) -> None:
        self._lives: dict[TabletId, Life] = {}
        self._lock = Lock()

    def life(self, tablet: TabletId) -> Life:
        return self._lives.get(tablet, Life.UNKNOWN)

    def advance(self, tablets: Sequence[TabletId], event: TabletEvent, carry_out: CarryOut) -> None:
        """Event, step, effects, next event: until nothing more happens. If an effect raises, the tablets it was for
        hear that it FAILED, and the error is raised here; asking again goes on from there."""
        happened: deque[Happened] = deque([(tablets, event)])
        while happened:
            for effects, acting in self._move(*happened.popleft()):
                for effect in effects:
                    try:
                        happened.extend(carry_out(effect, acting))
                    except BaseException:
                        for undo, failed in self._move(acting, TabletEvent.FAILED):
                            for each in undo:
                                carry_out(each, failed)
                        raise

    def _move(
        self, tablets: Sequence[TabletId], event: TabletEvent
    ) -> list[tuple[tuple[TabletEffect, ...], list[TabletId]]]:
        """Take one step with each, or with none if one of them refuses; what is to be done then, and for which."""
        todo: dict[tuple[TabletEffect, ...], list[TabletId]] = {}
        with self._lock:
            steps = [(tablet, step(self.life(tablet), event)) for tablet in tablets]
            for tablet, next_ in steps:
                if next_.life is Life.UNKNOWN:
                    self._lives.pop(tablet, None)
                else:
                    self._lives[tablet] = next_.life
                if next_.effects:
                    todo.setdefault(next_.effects, []).append(tablet)
        return list(todo.items())
