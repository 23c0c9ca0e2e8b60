"""Snapshots that frames were read at, held for as long as somebody may still run them.

A frame is a plan: it may be run again at any time, by a view or a cached plan that outlives the Python object. So what
it reads is held while its SparkContext lives and its database is open, by one thread of the process, which renews all
holds. They are released when the database is closed, before it is; soon after the context has stopped; and when the
process ends. A driver that is killed frees its holds too, when their short time to live is over.

A session that reads without end does not hold without end: when it has many, those are released that no plan in the
JVM refers to any more.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

from stelae.adapters.threads import StepThread
from stelae.client.api.database import session_of
from stelae.model.errors import Closed, NotFound, Retryable, StelaeError
from stelae.spark.reading.referents import Referents, referents_of
from stelae.spark.stores import backend_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from stelae.client.api.database import Database

HOLD_TTL_S = 600.0
HOLDS_MAX = 64
"""So many are kept whether anything refers to them or not: what has begun to read may have forgotten its plan."""

_LOOK_EVERY_S = 1.0
_LOOKS_PER_RENEWAL = 200
"""A third of the time to live."""

_log = logging.getLogger("stelae")


@dataclass(frozen=True, slots=True, eq=False)
class Hold:
    """A ticket, and whose it is. `told`: the table and the snapshot, in words. `referents`: what plans of its frame
    refer to."""

    ticket: str
    told: str
    db: Database
    context: Any
    referents: Referents

    @property
    def is_needed(self) -> bool:
        return getattr(self.context, "_jsc", None) is not None

    def renew(self) -> bool:
        """Whether it is still held."""
        backend = backend_of(self.db)
        try:
            backend.renew(self.ticket, HOLD_TTL_S)
        except Retryable as error:
            _log.warning("%s cannot be renewed now: %s", self.told, error)
        except Closed:
            return False
        except NotFound as error:
            _log.warning("%s was let go (%s): frames of it may fail, read the table again", self.told, error)
            return False
        return True

    def release(self) -> None:
        backend = backend_of(self.db)
        with suppress(StelaeError):
            backend.release(self.ticket)


class Holder:
    """All holds of one process. Safe for threads."""

    def __init__(self, holds_max: int = HOLDS_MAX) -> None:
        self._holds: dict[Hold, None] = {}
        self._holds_max = holds_max
        self._crowded = holds_max
        """When there are more, it is looked for some that nothing refers to."""
        self._lock = threading.Lock()
        self._thread: StepThread | None = None
        self._looks = 0
        self._databases: WeakSet[Database] = WeakSet()

    def keep(self, hold: Hold) -> None:
        with self._lock:
            self._holds[hold] = None
            is_crowded = len(self._holds) > self._crowded
            is_first = hold.db not in self._databases
            self._databases.add(hold.db)
            if self._thread is None:
                self._thread = StepThread("stelae-holds", self.look, _LOOK_EVERY_S)
                # Stores close themselves before what `atexit` calls: what is registered later there ends earlier.
                getattr(threading, "_register_atexit", atexit.register)(self.close)
        if is_first:
            # Not the database itself: it would refer to itself by this, and stay when it is forgotten.
            session_of(hold.db).call_before_close(partial(self._release_of, ref(hold.db)))
        if is_crowded:
            self._make_room()

    def holds(self) -> frozenset[Hold]:
        with self._lock:
            return frozenset(self._holds)

    def look(self) -> bool:
        """A step of the thread: releases what is not needed, and at times renews the rest."""
        self._looks += 1
        self._release(lambda hold: not hold.is_needed)
        if self._looks % _LOOKS_PER_RENEWAL == 0:
            for hold in self.holds():
                if not hold.renew():
                    with self._lock:
                        self._holds.pop(hold, None)
        return False

    def close(self) -> None:
        """End the thread, and release all holds."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.close()
        self._release(lambda _: True)

    def _make_room(self) -> None:
        """Release the oldest of those that nothing refers to, until there are few again."""
        with self._lock:
            oldest_first = list(self._holds)
        excess = len(oldest_first) - self._holds_max
        forgotten: set[Hold] = set()
        for hold in oldest_first:
            if len(forgotten) < excess and hold.is_needed and not hold.referents.are_alive():
                forgotten.add(hold)
        self._release(forgotten.__contains__)
        with self._lock:
            self._crowded = len(self._holds) + self._holds_max

    def _release_of(self, database: ref[Database]) -> None:
        db = database()
        self._release(lambda hold: hold.db is db)

    def _release(self, is_over: Callable[[Hold], bool]) -> None:
        with self._lock:
            over = [hold for hold in self._holds if is_over(hold)]
            for hold in over:
                del self._holds[hold]
        for hold in over:
            hold.release()


_holder = Holder()


def keep_held(spark: SparkSession, db: Database, ticket: str, told: str, frame: DataFrame) -> None:
    """Hold what the frame reads while the session's context lives and the database is open."""
    _holder.keep(Hold(ticket, told, db, spark.sparkContext, referents_of(frame)))


def kept_tickets() -> frozenset[str]:
    """The tickets of the holds that this process renews."""
    return frozenset(hold.ticket for hold in _holder.holds())
