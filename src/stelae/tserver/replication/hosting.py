"""What a master asks about replicas, carried out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from stelae.format.log.copies import RecordCopy, ReplicaKept
from stelae.format.log.records import NO_INDEX
from stelae.model.errors import Unavailable
from stelae.model.ids import TableId, TabletId
from stelae.registry.control import (
    AddReplicas,
    HostReplicas,
    HostTablets,
    JoinTablets,
    LeadTablets,
    NewReplica,
    NewTablet,
    ReportedReplica,
    ResignTablets,
    SplitTablet,
)
from stelae.registry.replication.appending import AppendAnswer, AppendPart
from stelae.registry.replication.members import server_of
from stelae.service.deadlines import Deadline
from stelae.storage.replicas.replica import NOWHERE, Replica
from stelae.storage.shard import Shard
from stelae.storage.tablet.config import encode_config
from stelae.storage.tablet.opening import SchemasOf
from stelae.storage.tablet.state import NO_EPOCH, TabletState, frozen, joined, new_tablet, split
from stelae.storage.upkeep.upkeep import Upkeep
from stelae.tserver.flushing import Flushing
from stelae.tserver.lives import TabletLives
from stelae.tserver.replication.following import Following
from stelae.tserver.replication.leading import Leading, tell_deposed


class Hosting:
    """Safe for threads. `me`, `wake`, `expect_pins`: see `Leading`."""

    def __init__(
        self,
        me: str,
        shard: Shard,
        upkeep: Upkeep,
        lives: TabletLives,
        schemas_of: SchemasOf,
        wake: Callable[[], None],
        expect_pins: Callable[[TableId], None],
    ) -> None:
        self._shard = shard
        self._upkeep = upkeep
        self._schemas_of = schemas_of
        self.following = Following(shard)
        self.leading = Leading(me, shard, upkeep, lives, schemas_of, wake, expect_pins)

    def ask(
        self, request: HostTablets | HostReplicas | LeadTablets | AddReplicas | ResignTablets
    ) -> Mapping[TabletId, str]:
        """Which tablets it cannot be done with, and why."""
        match request:
            case HostTablets(tablets):
                self._host_new(tablets)
            case HostReplicas(replicas):
                for each in replicas:
                    self._host(each)
            case LeadTablets(leads):
                return self.leading.lead(leads)
            case AddReplicas(others):
                self.leading.add(others)
            case ResignTablets(tablets, is_forced):
                self.leading.resign(tablets, is_forced=is_forced)
        return {}

    def _host_new(self, tablets: Sequence[NewTablet]) -> None:
        for each in tablets:
            state = new_tablet(each.tablet, each.table, each.rows, self._schemas_of(each.table)[-1])
            self._host(NewReplica(each.tablet, each.table, encode_config(self._shard.config(state))))

    def _host(self, made: NewReplica) -> None:
        kept = ReplicaKept(NOWHERE.epoch, NOWHERE, NOWHERE.index, made.config, ())
        self.following.host(made.table, made.tablet, NOWHERE.epoch, kept)

    def resize(self, request: SplitTablet | JoinTablets, flushing: Flushing) -> tuple[NewReplica, ...]:
        """Tablets that are led here become others: what these consist of, for all members to host. The old ones take no
        more writes, and are led by nobody until the master says by whom; all that they had is in files."""
        made: tuple[TabletState, ...]
        if isinstance(request, SplitTablet):
            (state,) = self._put_to_rest([request.tablet], flushing)
            made = split(state, request.at, request.left, request.right, state.resize + 1)
        else:
            both = self._put_to_rest([request.left, request.right], flushing)
            made = (joined(both[0], both[1], request.into, max(each.resize for each in both) + 1),)
        configs = [msgspec.structs.replace(self._shard.config(each), stable=NO_INDEX, epoch=NO_EPOCH) for each in made]
        replicas = tuple(NewReplica(each.tablet, each.table, encode_config(each)) for each in configs)
        for each in replicas:
            self._host(each)
        return replicas

    def _put_to_rest(self, tablets: Sequence[TabletId], flushing: Flushing) -> list[TabletState]:
        """Their states, with nothing in memory, led here no more; also if it fails: then the master has them led again,
        as they were."""
        shard = self._shard
        try:
            for tablet in tablets:
                shard.change(tablet, frozen)
            for table in dict.fromkeys(shard.state(tablet).table for tablet in tablets):
                flushing.flush(table)
            self._upkeep.touch(tablets)
            self._upkeep.save(tablets)
            states = [shard.state(tablet) for tablet in tablets]
            if any(not memory.is_empty for state in states for memory in state.memories):
                raise Unavailable(f"tablet {tablets[0]} is still being flushed; try again")
            return states
        finally:
            for tablet in tablets:
                self.leading.step_down(tablet, "it becomes others")

    def append(
        self, parts: Sequence[AppendPart], copies: Sequence[Sequence[RecordCopy]], deadline: Deadline | None
    ) -> tuple[AppendAnswer, ...]:
        for part in parts:
            tell_deposed(self.leading, TabletId(part.tablet), part.epoch)
        return self.following.append(parts, copies, deadline)

    def host(
        self, table: TableId, tablet: TabletId, epoch: int, kept: ReplicaKept, deadline: Deadline | None
    ) -> AppendAnswer:
        tell_deposed(self.leading, tablet, epoch)
        return self.following.host(table, tablet, epoch, kept, deadline)

    def has(self, tablet: TabletId) -> bool:
        return tablet in self._shard.replicas

    def drop(self, tablets: Sequence[TabletId]) -> None:
        """Have nothing of these tablets any more."""
        for tablet in tablets:
            self.leading.step_down(tablet, "it was deleted")
        self.following.drop(tablets)

    def drop_unchanged(self, seen: Mapping[TabletId, tuple[int, int, int]]) -> None:
        """Have nothing of these tablets any more, where a replica is as it was seen, and is not led here."""
        self.following.drop(list(seen), lambda replica: self._is_unchanged(replica, seen[replica.tablet]))

    def _is_unchanged(self, replica: Replica, seen: tuple[int, int, int]) -> bool:
        return replica.tablet not in self.leading.led and (replica.promised, *replica.last) == seen

    def rest(self, table: TableId) -> None:
        """All of a table that is led here is in files, and its replicas know it; nobody finds it here any more."""
        mine = [state.tablet for state in self._shard.of_table(table) if self.has(state.tablet)]
        self._upkeep.touch(mine)
        self._upkeep.save(mine)
        for tablet in mine:
            self.leading.step_down(tablet, "its table was dropped")

    def behind(self, tablet: TabletId) -> tuple[tuple[str, int], ...]:
        """The servers of a led tablet's other replicas, and how many records each lacks."""
        return tuple((server_of(name), count) for name, count in self.leading.behind(tablet))

    def reports(self, table: TableId | None) -> tuple[ReportedReplica, ...]:
        return tuple(each for each in self.leading.reports() if table in (None, each.table))
