"""What a server does by itself: it flushes what is due, compacts what has grown, reads ahead what is to be in memory,
forgets history that nobody may read any more, and tells the master which tablets have become too large or too small.

Two kinds of steps, for a thread each: flushing must go on while a large compaction runs. A step does one piece of work
and says whether there may be more; whoever runs them waits in between until something was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Lock
from typing import Protocol

from stelae.model.errors import NotFound, StelaeError, TabletAway
from stelae.model.hybrid import TXN_MIN, millis_of, pack
from stelae.model.ids import Row, TableId, TabletId, Txn
from stelae.ports.clock import Clock
from stelae.registry.known_tables import TableRules
from stelae.registry.meta import META0, META1
from stelae.storage.shard import Shard
from stelae.storage.tablet.splitting import choose_split_row, size_of
from stelae.storage.tablet.state import TabletState
from stelae.storage.turns import Turn
from stelae.storage.upkeep.preloading import Preloading
from stelae.storage.upkeep.upkeep import Upkeep
from stelae.tserver.flushing import Flushing
from stelae.tserver.short_log import collect_all_log, is_log_long

SaveHorizon = Callable[[TableId, Txn], None]
"""Durable when it returns: only then may history below it be dropped."""


_SEGMENTS_MAX = 3

_ROUNDS_MAX = 64
"""Compactions of one tablet before others have their turn: the picker may be wrong about what would be gained."""

FILES_URGENT = 16
"""A tablet of so many files is compacted whatever else the machine has to do."""

META_RULES = TableRules(retention_us=0, tablet_bytes=64 * 2**20)


class Resizing(Protocol):
    """What the master does about sizes. Blocking."""

    def split(self, tablet: TabletId, at: Row) -> None:
        """Split a tablet that has become too large."""
        ...

    def join(self, left: TabletId, right: TabletId) -> None:
        """Join two neighbours that have become too small."""
        ...


def _always() -> bool:
    return True


def _never() -> bool:
    return False


def patience(clock: Clock, wait_s: float) -> Callable[[], bool]:
    """Whether so much time has passed from now on."""
    over_s = clock.monotonic_s() + wait_s
    return lambda: clock.monotonic_s() >= over_s


class Keeper:
    """`rules_of` gives None for a table that is gone. `forgets`: whether history may be dropped already; after a crash
    others are given a while to say which snapshots they hold, and `wait_for_pins` gives them one from now on."""

    def __init__(
        self,
        shard: Shard,
        upkeep: Upkeep,
        flushing: Flushing,
        rules_of: Callable[[TableId], TableRules | None],
        save_horizon: SaveHorizon,
        resizing: Resizing,
        forgets: Callable[[], bool] = _always,
        wait_for_pins: Callable[[], Callable[[], bool]] = lambda: _always,
    ) -> None:
        self.gives_way: Callable[[], bool] = _never
        """Whether what can wait does so, compactions and reading ahead: a job of the user's needs the machine now."""
        self._preloading = Preloading(shard)
        self._forgets = forgets
        self._wait_for_pins = wait_for_pins
        self._expecting: dict[TableId, Callable[[], bool]] = {}
        self._shard = shard
        self._upkeep = upkeep
        self._flushing = flushing
        self._rules_of = rules_of
        self._save_horizon = save_horizon
        self._resizing = resizing
        states = shard.tablets().items()
        self._grown = dict.fromkeys(tablet for tablet, state in states if len(state.files()) > 1)
        self._rounds: dict[TabletId, int] = {}
        self._lock = Lock()
        self._horizons = Turn()
        self._saved: dict[TableId, Txn] = {}
        self._unsaved = False
        self._garbage = True
        self._segments_left = _SEGMENTS_MAX
        """So many the log had, at least, when it was shortened by what leaders elsewhere have flushed."""
        self._log_end = shard.wal.end
        """Where the log ended when there was last nothing to do."""

    # -- flushing

    def flush_step(self) -> bool:
        """Flush one memory that is due; when none is, save what changed and let the log go."""
        flushed = self._flushing.flush_due()
        if flushed is not None:
            self._unsaved = True
            self.note_growth(
                state.tablet for state in self._shard.of_table(flushed.table) if state.rows.overlaps(flushed.rows)
            )
            return True
        if self._unsaved:
            self._let_log_go()
            self._unsaved = False
        return False

    def _let_log_go(self) -> None:
        self._upkeep.save()
        self._upkeep.collect_log()
        if len(self._shard.segments()) > _SEGMENTS_MAX:
            # A few META rows must not hold the log of everybody.
            self._flushing.flush(META1)
            self._flushing.flush(META0)
            self._upkeep.collect_log()

    # -- compaction

    def note_growth(self, tablets: Iterable[TabletId]) -> None:
        """These tablets have new files: see at the next steps whether they are to be compacted."""
        with self._lock:
            self._grown |= dict.fromkeys(tablets)

    def compact_step(self) -> bool:
        """Read ahead one block of a group that is to be in memory. When all are: compact one tablet that is in need of
        it, then see whether it should be split. When none is left: delete the files that nobody needs any more."""
        if not self.gives_way() and self._preloading.step():
            return True
        tablet = self._next_grown()
        if tablet is None:
            return self._collect()
        try:
            again = self._compact_one(tablet)
        except (TabletAway, NotFound):
            again = False  # it was split, joined or dropped meanwhile, or the table is gone
        if not again:
            with self._lock:
                self._grown.pop(tablet, None)
                self._rounds.pop(tablet, None)
        return True

    def _next_grown(self) -> TabletId | None:
        waits = self.gives_way()
        with self._lock:
            grown = list(self._grown)
        return next((tablet for tablet in grown if not (waits and self._can_wait(tablet))), None)

    def _can_wait(self, tablet: TabletId) -> bool:
        state = self._shard.tablets().get(tablet)
        return state is not None and len(state.files()) < FILES_URGENT

    def _compact_one(self, tablet: TabletId) -> bool:
        state = self._shard.state(tablet)
        rules = self.rules(state.table)
        if rules is None:
            return False
        self.advance_horizon(state.table, rules)
        self._upkeep.drop_hidden(tablet)
        found = self._upkeep.pick_compaction(tablet)
        with self._lock:
            rounds = self._rounds[tablet] = self._rounds.get(tablet, 0) + 1
        if found is not None and rounds <= _ROUNDS_MAX:
            self._upkeep.compact(tablet, *found)
            self._upkeep.save()
            self._garbage = True
            return True
        return self._resize(state, rules)

    def _collect(self) -> bool:
        if self._garbage:
            self._garbage = False
            try:
                self._upkeep.save()
                self._upkeep.collect_files()
            except BaseException:
                self._garbage = True
                raise
        else:
            self._upkeep.tidy_trash()
            self._shorten_idle_log()
            self._shorten_followed_log()
        return False

    def _shorten_idle_log(self) -> None:
        """While nobody writes, a few rows that wait to be flushed do not hold a long log."""
        end, self._log_end = self._log_end, self._shard.wal.end
        if end == self._log_end and is_log_long(self._shard):
            self._flushing.flush_down_to(0)
            collect_all_log(self._shard, self._upkeep)

    def _shorten_followed_log(self) -> None:
        """What leaders elsewhere have flushed goes from the log here, too: a shard that follows has nothing to flush,
        and would keep all of it for as long as they are written to. Done when the log has doubled, since what is left
        of the replicas is written anew."""
        if self._shard.replicas and len(self._shard.segments()) > 2 * self._segments_left:
            self._let_log_go()
            self._segments_left = max(_SEGMENTS_MAX, len(self._shard.segments()))

    def note_garbage(self) -> None:
        """Some files may not be needed any more: collect them when there is nothing left to compact."""
        self._garbage = True

    # -- history

    def rules(self, table: TableId) -> TableRules | None:
        return META_RULES if table in (META0, META1) else self._rules_of(table)

    def advance_horizon(self, table: TableId, rules: TableRules, *, to_now: bool = False) -> Txn:
        """Up to where history may be dropped: the retention behind now, and never past a pin. What compactions go by is
        never ahead of what is saved."""
        shard = self._shard
        if not self.forgets(table):
            return shard.horizon(table)
        visible = shard.visible
        now_ms = millis_of(visible)
        kept_ms = 0 if to_now else rules.retention_us // 1_000
        wanted = visible if to_now else (pack(now_ms - kept_ms) if now_ms > kept_ms else TXN_MIN)
        wanted = shard.horizons.held_back(min(wanted, visible))
        with self._horizons:
            known = max(self._saved.get(table, TXN_MIN), shard.horizon(table))
            if wanted > known and table not in (META0, META1):
                self._save_horizon(table, wanted)
                self._saved[table] = wanted
            return shard.advance_horizon(table, wanted)

    def forgets(self, table: TableId) -> bool:
        """Whether history of the table may be dropped already."""
        expected = self._expecting.get(table) if self._expecting else None
        if expected is not None:
            if not expected():
                return False
            with self._horizons:
                if self._expecting.get(table) is expected:  # not one that was set meanwhile
                    del self._expecting[table]
        return self._forgets()

    def expect_pins(self, table: TableId) -> None:
        """Tablets of the table were led by another server: its readers have a while to say here which snapshots they
        hold."""
        self._expecting[table] = self._wait_for_pins()

    # -- sizes

    def _resize(self, state: TabletState, rules: TableRules) -> bool:
        """Split above twice the size a tablet should have; join with the next below half of it, if a split made them:
        tablets that a user asked for stay."""
        shard = self._shard
        if state.table in (META0, META1):
            return False
        try:
            size = shard.look(state, size_of)
            if size > 2 * rules.tablet_bytes:
                at = shard.look(state, choose_split_row)
                if at is not None:
                    self._resizing.split(state.tablet, at)
                return False
            neighbour = self._next(state)
            if neighbour is not None and min(state.resize, neighbour.resize) > 0:
                both = size + shard.look(neighbour, size_of)
                if both < rules.tablet_bytes // 2:
                    self._resizing.join(state.tablet, neighbour.tablet)
        except StelaeError:
            return False  # it is looked at again when it has grown again
        return False

    def _next(self, state: TabletState) -> TabletState | None:
        if state.rows.stop is None:
            return None
        return self._shard.state_at(state.table, state.rows.stop)
