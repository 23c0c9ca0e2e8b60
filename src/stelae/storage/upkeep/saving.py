"""Which tablets' configs are to be saved, and from which place on the log is needed until they are.

A tablet is *dirty* from its change until its config is saved. Saving takes all dirty ones at once (`take_unsaved`), has
them saved, however long that takes and without a lock, and then says what became of it (`note_saved`, `note_unsaved`).
What an error leaves undone stays dirty, and the files that the attempt may have named are kept until one succeeds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from stelae.format.log.positions import POSITION_MAX, POSITION_MIN, Position
from stelae.model.errors import Unavailable, UnknownOutcome
from stelae.model.ids import TabletId, Txn
from stelae.storage.shard import Shard
from stelae.storage.tablet.config import TabletConfig
from stelae.storage.tablet.state import TabletState
from stelae.storage.turns import Turn

_LOGGED_S = 15.0
_ROUNDS_MAX = 3


@dataclass(frozen=True, slots=True)
class Unsaved:
    """Configs that are to be saved, or just being saved. `since`: from where on the log is needed until they are."""

    configs: list[TabletConfig]
    dirty: set[TabletId]
    removed: set[TabletId]
    since: dict[TabletId, Position]


class ConfigSaving:
    """Safe for threads; saves one after the other, and holds no lock meanwhile."""

    def __init__(self, shard: Shard, saved: Iterable[TabletConfig] = (), away: Collection[TabletId] = ()) -> None:
        """`away`: tablets that have a config and are not opened here."""
        self._shard = shard
        self._saved: dict[TabletId, TabletConfig] = {config.tablet: config for config in saved}
        self._attempted: list[TabletConfig] = []
        """What an error left saved, or not."""
        self._saving = Turn()
        # After a crash in the midst of a split or join, some configs are of ranges that others have taken over; and
        # what the log has changed since a config was saved is in no config yet.
        states = shard.tablets()
        self._removed: set[TabletId] = self._saved.keys() - states.keys() - set(away)
        self._dirty = {
            id_ for id_, state in states.items() if id_ in self._saved and shard.config(state) != self._saved[id_]
        }
        self._unsaved_from: dict[TabletId, Position] = dict.fromkeys(self._dirty, POSITION_MIN)
        self._pending_from: dict[TabletId, Position] = {}
        self._logged: dict[TabletId, Future[Txn]] = {}
        """Configs that are on their way to other replicas."""

    def configs(self) -> list[TabletConfig]:
        """All that are saved, or may be. The caller holds the lock."""
        return [*self._saved.values(), *self._attempted]

    def touch(self, tablets: Iterable[TabletId]) -> None:
        with self._shard.lock:
            self._dirty |= set(tablets)

    def save(self, wanted: Iterable[TabletId] = ()) -> None:
        """Save the config of every tablet that changed. What it raises leaves them to be saved the next time. Those of
        tablets with several replicas are on their way to these when it returns; the `wanted` ones have arrived."""
        with self._saving:
            while (taken := self.take_unsaved()) is None:
                self._shard.drain()
            try:
                if taken.configs or taken.removed:
                    self._shard.configs.save(taken.configs, sorted(taken.removed))
            except BaseException:
                self.note_unsaved(taken)
                raise
            self.note_saved(taken)
        wanted = list(wanted)
        for _ in range(_ROUNDS_MAX):
            self._log_dirty()
            self._wait_logged(wanted)
            with self._shard.lock:
                if self._dirty.isdisjoint(wanted):
                    return
        raise Unavailable("not all replicas of a tablet have its config yet")

    def _log_dirty(self) -> None:
        """Log the configs of tablets that have several replicas and changed; one at a time of each tablet."""
        shard = self._shard
        futures: list[tuple[TabletConfig, Future[Txn]]] = []
        with shard.lock:
            for tablet in sorted(self._dirty):
                state = shard.tablets().get(tablet)
                if state is None or state.commits.quorum is None:
                    continue
                if tablet in self._logged or state.commits.changing:
                    continue
                config = shard.config(state)
                try:
                    future = shard.log_config(config, state.commits, state.epoch)
                except Unavailable:
                    continue  # the clock waits for the lease: it is tried again
                self._dirty.discard(tablet)
                self._logged[tablet] = future
                futures.append((config, future))
        for config, future in futures:
            future.add_done_callback(partial(self._note_logged, config))
        if futures:
            shard.drain()

    def _note_logged(self, config: TabletConfig, future: Future[Txn]) -> None:
        failed = future.exception()
        with self._shard.lock:
            if self._logged.get(config.tablet) is not future:
                return  # the tablet is led elsewhere
            del self._logged[config.tablet]
            if failed is None:
                self._saved[config.tablet] = config
            else:
                self._dirty.add(config.tablet)

    def _wait_logged(self, wanted: Iterable[TabletId]) -> None:
        """Unavailable if not all replicas of a tablet have its config in time."""
        for tablet in wanted:
            with self._shard.lock:
                future = self._logged.get(tablet)
            if future is None:
                continue
            try:
                future.result(_LOGGED_S)
            except TimeoutError:
                raise Unavailable(f"not all replicas of tablet {tablet} have its config yet") from None
            except UnknownOutcome as error:
                raise Unavailable(str(error)) from error

    def adopt_config(self, config: TabletConfig) -> None:
        """A tablet that has several replicas is led here from now on: this is what they know of it."""
        with self._shard.lock:
            self._saved[config.tablet] = config
            self._removed.discard(config.tablet)

    def abandon_config(self, tablet: TabletId) -> None:
        """A tablet that has several replicas is led here no more: its config is theirs. The caller has taken it out of
        the shard."""
        with self._shard.lock:
            self._saved.pop(tablet, None)
            self._dirty.discard(tablet)
            self._unsaved_from.pop(tablet, None)
            self._logged.pop(tablet, None)

    def save_first(self, states: Iterable[TabletState]) -> None:
        """Save the configs of tablets before anybody finds them in the shard. After an error they may be saved or not:
        `forget` them, or save them again."""
        shard = self._shard
        configs = [shard.config(state) for state in sorted(states, key=lambda s: (s.table, s.rows.start))]
        with self._saving:
            with shard.lock:
                self._attempted += configs
                self._removed -= {config.tablet for config in configs}
            shard.configs.save(configs, ())
            with shard.lock:
                self._saved.update((config.tablet, config) for config in configs)

    def take_unsaved(self) -> Unsaved | None:
        """What is to be saved next, for whoever has the turn; None while states hold a change that is not decided."""
        shard = self._shard
        with shard.lock:
            if shard.is_changing:
                return None
            states = shard.tablets()
            logged = {tablet for tablet in self._dirty if tablet in states and states[tablet].commits.quorum}
            changed = [states[tablet] for tablet in self._dirty if tablet in states and tablet not in logged]
            configs = [shard.config(state) for state in sorted(changed, key=lambda s: (s.table, s.rows.start))]
            taken = Unsaved(configs, self._dirty - logged, self._removed, self._unsaved_from)
            self._dirty, self._removed, self._unsaved_from = logged, set(), {}
            self._pending_from = taken.since
            self._attempted += configs
            return taken

    def note_saved(self, taken: Unsaved) -> None:
        """The log that they needed, and the files that earlier attempts named, are not needed for them any more."""
        with self._shard.lock:
            self._pending_from = {}
            self._attempted = []
            for tablet in taken.removed:
                self._saved.pop(tablet, None)
            for config in taken.configs:
                self._saved[config.tablet] = config

    def note_unsaved(self, taken: Unsaved) -> None:
        """Some of them may be saved and others not: all of them are to be saved again."""
        with self._shard.lock:
            self._dirty |= taken.dirty
            self._removed |= taken.removed
            for tablet, begin in taken.since.items():
                self._need_log(tablet, begin)
            self._pending_from = {}

    def _install(self, states: Sequence[TabletState], removed: Sequence[TabletId] = ()) -> None:
        """Put states in place, and remember that their configs are to be saved. The caller holds the lock."""
        self._shard.install(states, removed)
        self._dirty |= {state.tablet for state in states}
        self._removed |= set(removed)
        self._removed -= {state.tablet for state in states}

    def _need_log(self, tablet: TabletId, begin: Position) -> None:
        """The log is needed from here on until the tablet's config is saved. The caller holds the lock. Of a tablet
        that has several replicas, its replica here knows what it needs."""
        if tablet in self._shard.replicas:
            return
        self._unsaved_from[tablet] = min(begin, self._unsaved_from.get(tablet, POSITION_MAX))

    def forget(self, tablets: Iterable[TabletId]) -> None:
        """They are gone, with their data: nothing of them is kept, and their configs are removed by the next save."""
        with self._shard.lock:
            gone = set(tablets)
            self._shard.install([], sorted(gone))
            self._dirty, self._removed = self._dirty - gone, self._removed | gone
            self._unsaved_from = {id_: begin for id_, begin in self._unsaved_from.items() if id_ not in gone}
        self._shard.recount_memory()
