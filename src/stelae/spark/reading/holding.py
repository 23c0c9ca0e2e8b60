"""Snapshots that frames were read at, held for as long as somebody may still run them.

A frame is a plan: it may be run again at any time, by a view or a cached plan that outlives the Python object. So what
it reads is held while its SparkContext lives and its database is open, by one thread of the process, which renews all
holds; it lets go of them when the context has stopped, and when the process ends. A driver that is killed frees its
holds too, when their short time to live is over.
"""

from __future__ import annotations

import atexit
import logging
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stelae.adapters.threads import StepThread
from stelae.model.errors import Closed, NotFound, Retryable, StelaeError
from stelae.spark.stores import backend_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stelae.client.api.database import Database

HOLD_TTL_S = 600.0
_LOOK_EVERY_S = 10.0
_LOOKS_PER_RENEWAL = 20
"""A third of the time to live."""

_log = logging.getLogger("stelae")


@dataclass(frozen=True, slots=True, eq=False)
class Hold:
    """A ticket, and whose it is. `told`: the table and the snapshot, in words."""

    ticket: str
    told: str
    db: Database
    context: Any

    @property
    def is_needed(self) -> bool:
        return getattr(self.context, "_jsc", None) is not None

    def renew(self) -> bool:
        """Whether it is still held."""
        backend: Any = backend_of(self.db)
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
        backend: Any = backend_of(self.db)
        with suppress(StelaeError):
            backend.release(self.ticket)


class Holder:
    """All holds of one process. Safe for threads."""

    def __init__(self) -> None:
        self._holds: set[Hold] = set()
        self._lock = threading.Lock()
        self._thread: StepThread | None = None
        self._looks = 0

    def keep(self, hold: Hold) -> None:
        with self._lock:
            self._holds.add(hold)
            if self._thread is None:
                self._thread = StepThread("stelae-holds", self.look, _LOOK_EVERY_S)
                # Stores close themselves before what `atexit` calls: what is registered later there ends earlier.
                getattr(threading, "_register_atexit", atexit.register)(self.close)

    def has(self, ticket: str) -> bool:
        with self._lock:
            return any(hold.ticket == ticket for hold in self._holds)

    def holds(self) -> frozenset[Hold]:
        with self._lock:
            return frozenset(self._holds)

    def look(self) -> bool:
        """A step of the thread: lets go of what is not needed, and at times renews the rest."""
        self._looks += 1
        is_due = self._looks % _LOOKS_PER_RENEWAL == 0
        for hold in self.holds():
            if not hold.is_needed:
                hold.release()
            elif not is_due or hold.renew():
                continue
            with self._lock:
                self._holds.discard(hold)
        return False

    def close(self) -> None:
        """Let go of everything."""
        with self._lock:
            thread, self._thread = self._thread, None
            holds, self._holds = self._holds, set()
        if thread is not None:
            thread.close()
        for hold in holds:
            hold.release()


_holder = Holder()


def keep_held(spark: SparkSession, db: Database, ticket: str, told: str) -> None:
    """Hold it while the session's context lives and the database is open."""
    _holder.keep(Hold(ticket, told, db, spark.sparkContext))


def is_kept(ticket: str) -> bool:
    """Whether a hold is renewed by this process, as far as it knows."""
    return _holder.has(ticket)
