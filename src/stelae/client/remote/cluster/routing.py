"""Who is asked for what in a cluster: the shards that have the rows, one of them or several at once.

A shard that does not have the rows (any more), cannot be reached, or cannot answer now makes the routes of the table
doubtful: another may lead by now. They are asked for anew before the next try, which is the session's. What it said is
told with its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from threading import Event, Lock
from typing import TypeVar

from stelae.client.calls.retries import Attempts
from stelae.client.remote.changes import ChangesUnderWay
from stelae.client.remote.cluster.locations import Locations
from stelae.client.remote.cluster.routes import TableRoutes
from stelae.client.remote.cluster.seen import SeenTime
from stelae.client.remote.tablets import RemoteTablets
from stelae.model.errors import (
    ClockTooFarAhead,
    Closed,
    ConnectionLost,
    DeadlineExceeded,
    DiskFailed,
    DiskFull,
    Overloaded,
    Retryable,
    StaleSchema,
    StelaeError,
    TabletAway,
    Unavailable,
    UnknownOutcome,
)
from stelae.model.ids import TableId
from stelae.ports.executor import Executor
from stelae.ports.rng import Rng
from stelae.registry.control_operations import ClusterPlaces
from stelae.service.deadlines import Deadline

R = TypeVar("R")
E = TypeVar("E", bound=StelaeError)

_NAMED = (Unavailable, Overloaded, TabletAway, DeadlineExceeded, DiskFull, DiskFailed, ConnectionLost)
"""Errors that are told with the name of the shard that raised them."""

_MASTER_S_MAX = 2.0
"""So long is waited for a master that is asked for what may be known already."""

_SHARE_OF_TIME = 3
"""Where the others' answers are of use without it, a shard has a third of the time to answer."""

_ASKED_ABOUT_MAX = 4
"""So many tables of a silent shard are asked about at once: as a rule the first one tells."""


def is_doubtful(error: StelaeError) -> bool:
    """Whether the shard that raised it may not be the one that leads: it is not refused by one that does."""
    if isinstance(error, StaleSchema | ClockTooFarAhead | DiskFull):
        return False
    return isinstance(error, Unavailable | UnknownOutcome)


def name_shard(error: E, shard: str) -> E:
    """The same error, with the name of the shard in its words."""
    if type(error) not in _NAMED or shard in str(error):
        return error
    return type(error)(f"shard {shard}: {error}")


class Shards:
    """The shards of a cluster that were met, each with its connections. Safe for threads. `make` makes one that is not
    connected yet; several are asked at once on the `executor`, on which nobody waits for another."""

    def __init__(self, make: Callable[[str], RemoteTablets], executor: Executor) -> None:
        self._make = make
        self._executor = executor
        self._lock = Lock()
        self._shards: dict[str, RemoteTablets] = {}

    def get(self, name: str) -> RemoteTablets:
        found = self._shards.get(name)
        if found is not None:
            return found
        with self._lock:
            if name not in self._shards:
                self._shards[name] = self._make(name)
            return self._shards[name]

    def met(self) -> list[RemoteTablets]:
        return list(self._shards.values())

    def ask_each(self, names: Sequence[str], job: Callable[[str], R]) -> Mapping[str, R | StelaeError]:
        """What comes of the job for each shard, all at once: its result, or what it raised. Returns when all have
        ended."""
        first, *others = names
        begun = {name: self.begin(partial(attempt, job, name)) for name in others}
        outcomes: dict[str, R | StelaeError] = {first: attempt(job, first)}
        return outcomes | {name: future.result() for name, future in begun.items()}

    def begin(self, job: Callable[[], R]) -> Future[R]:
        """Beside the caller, or where there is no room for that, before this returns."""
        try:
            return self._executor.submit(job)
        except Overloaded:
            done: Future[R] = Future()
            done.set_result(job())
            return done


def attempt(job: Callable[[str], R], shard: str) -> R | StelaeError:
    """What comes of a job for a shard: an error is a result, too."""
    try:
        return job(shard)
    except StelaeError as error:
        return error.with_traceback(None)


def all_of(outcomes: Mapping[str, R | StelaeError]) -> dict[str, R]:
    """What each shard said; if some failed, what the first of these raised: what cannot be repeated before the rest."""
    errors = [(shard, each) for shard, each in outcomes.items() if isinstance(each, StelaeError)]
    errors.sort(key=lambda each: isinstance(each[1], Retryable))
    for shard, error in errors:
        raise name_shard(error, shard) if isinstance(error, Retryable) else error
    return {shard: each for shard, each in outcomes.items() if not isinstance(each, StelaeError)}


class Routing:
    """Safe for threads. `ask_places` asks a master who serves; `pause` waits until an event is set or so many seconds
    have passed, and says whether it is set."""

    def __init__(
        self,
        locations: Locations,
        shards: Shards,
        ask_places: Callable[[Deadline], ClusterPlaces],
        changes: ChangesUnderWay,
        until: Callable[[Deadline | None], Deadline],
        pause: Callable[[Event, float], bool],
    ) -> None:
        self.locations = locations
        self.shards = shards
        self.changes = changes
        self.seen = SeenTime()
        self.until = until
        self.pause = pause
        self._ask_places = ask_places

    def find_all(self, deadline: Deadline) -> tuple[str, ...]:
        """The names of all shards there are."""
        names = tuple(each.name for each in self._ask_places(deadline).shards)
        if not names:
            raise Unavailable("no shard of the cluster has been started yet")
        return names

    def find_shards(self, table: TableId | None, deadline: Deadline) -> tuple[str, ...]:
        """Those that have rows of a table; None: all."""
        return self.find_all(deadline) if table is None else self.locations.find(table, deadline).shards

    def ask_row(self, table: TableId, row: bytes, deadline: Deadline, job: Callable[[RemoteTablets], R]) -> R:
        """The shard that has a row."""
        self.changes.check()
        routes = self.locations.find(table, deadline)
        return self.ask_shard(table, routes, routes.shard_of(row), job)

    def ask_shard(self, table: TableId, routes: TableRoutes, shard: str, job: Callable[[RemoteTablets], R]) -> R:
        """A shard that has rows of a table by these routes."""
        try:
            return job(self.shards.get(shard))
        except (Retryable, UnknownOutcome) as error:
            told = self.explain(table, routes, shard, error)
            if told is error:
                raise
            raise told from error

    def has_moved(self, shard: str, deadline: Deadline) -> bool:
        """Whether a table's rows that a shard had are all another's by now: asked when it is silent. Who is stopped or
        cut off for longer than its lease is followed by others, one tablet after the other. No, if nobody says so."""
        for table in self.locations.tables_of(shard)[:_ASKED_ABOUT_MAX]:
            with suppress(StelaeError):
                self.locations.ask_again(table, deadline)
            routes = self.locations.known(table)
            if routes is not None and shard not in routes.shards:
                return True
        return False

    def explain(self, table: TableId, routes: TableRoutes, shard: str, error: E) -> E:
        """What to tell of an error of a shard; if it may not have the rows, the routes are doubted."""
        if is_doubtful(error):
            self.locations.doubt(table, routes)
        return name_shard(error, shard)

    @contextmanager
    def doubting(self, table: TableId | None) -> Iterator[None]:
        """If a shard that is asked meanwhile, because it has rows of the table, does not have them or cannot be
        reached, the routes that are known now are doubted."""
        routes = None if table is None else self.locations.known(table)
        try:
            yield
        except StelaeError as error:
            if table is not None and routes is not None and is_doubtful(error):
                self.locations.doubt(table, routes)
            raise

    def ask_table(self, table: TableId, deadline: Deadline, job: Callable[[RemoteTablets], R]) -> dict[str, R]:
        """All shards that have rows of a table, at once; what each of them said, by their names."""
        self.changes.check()
        routes = self.locations.find(table, deadline)
        return all_of(self.shards.ask_each(routes.shards, lambda shard: self.ask_shard(table, routes, shard, job)))

    def ask_table_anew(self, table: TableId, deadline: Deadline, job: Callable[[RemoteTablets], R]) -> dict[str, R]:
        """The same for what a shard answers though others have some of the rows that it had, by now."""
        self.refresh(table, deadline)
        return self.ask_table(table, deadline, job)

    def refresh(self, table: TableId, deadline: Deadline) -> None:
        """Ask a master where the table's rows are now. If none answers soon, what is known counts."""
        with suppress(Unavailable):
            self.locations.ask_again(table, deadline.within(min(_MASTER_S_MAX, deadline.left_s / 2)))

    def ask_these(self, shards: Sequence[str], job: Callable[[RemoteTablets], R]) -> dict[str, R]:
        return all_of(self.shards.ask_each(shards, lambda shard: job(self.shards.get(shard))))

    def ask_present(
        self,
        shards: Sequence[str],
        deadline: Deadline,
        rng: Rng,
        job: Callable[[RemoteTablets, Deadline], R],
    ) -> tuple[dict[str, R], dict[str, StelaeError]]:
        """What those say that are there, and why each of the others said nothing. They are asked at once, again and
        again for a share of the time: a shard that was killed is soon there again."""
        self.changes.check()
        share = deadline.within(deadline.left_s / _SHARE_OF_TIME)

        def ask(name: str) -> R:
            attempts = Attempts(share, rng)
            while True:
                try:
                    return job(self.shards.get(name), share)
                except Retryable as error:
                    if self.pause(self.changes.ended, attempts.delay_s(error)):
                        raise Closed("the store was closed here meanwhile") from None

        outcomes = self.shards.ask_each(shards, ask) if shards else {}
        away = {name: each for name, each in outcomes.items() if isinstance(each, Retryable)}
        return all_of({name: each for name, each in outcomes.items() if name not in away}), dict(away)

    def ask_some(
        self, deadline: Deadline, rng: Rng, job: Callable[[RemoteTablets, Deadline], R]
    ) -> tuple[dict[str, R], dict[str, StelaeError]]:
        """The same of all shards there are. If none is there, what the first one raised."""
        found, away = self.ask_present(self.find_all(deadline), deadline, rng, job)
        return (found, away) if found else (all_of(away), away)
