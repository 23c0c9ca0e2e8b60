"""What a master knows of each server by its heartbeats, in memory and for as long as it leads."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stelae.model.ids import TabletId
from stelae.registry.control import ReportedTablet
from stelae.registry.masters.heartbeats import (
    CLOCK_OFF_MS_MAX,
    SILENT_S,
    Heartbeat,
    HeartbeatAnswer,
    Registration,
)
from stelae.registry.masters.overview import Heard


class ServerDescriptor(msgspec.Struct):
    """`heard_s`: when it was last heard of, by the master's clock. `is_known`: what it has is known whole."""

    incarnation: int
    heard_s: float
    number: int = -1
    is_known: bool = False
    registration: Registration | None = None
    tablets: dict[TabletId, ReportedTablet] = msgspec.field(default_factory=dict)
    catalog: int = 0
    clock_off_ms: int = 0
    log_bytes: int = 0
    unflushed_bytes: int = 0

    def is_silent(self, now_s: float) -> bool:
        return now_s - self.heard_s > SILENT_S

    @property
    def is_off(self) -> bool:
        """Whether its clock is too far from the master's."""
        return abs(self.clock_off_ms) > CLOCK_OFF_MS_MAX


class Descriptors:
    """For the tasks of one event loop: each heartbeat is taken whole before the next."""

    def __init__(self) -> None:
        self._known: dict[str, ServerDescriptor] = {}

    def take(self, beat: Heartbeat, now_s: float, wall_ms: int) -> tuple[HeartbeatAnswer, bool]:
        """What to answer; and whether the server is another incarnation than was known, all of whose tablets are
        reported now."""
        found = self._known.get(beat.server)
        if found is not None and (beat.incarnation, beat.number) <= (found.incarnation, found.number):
            return HeartbeatAnswer(is_late=True), False
        if found is None or found.incarnation != beat.incarnation:
            found = self._known[beat.server] = ServerDescriptor(beat.incarnation, now_s)
        was_known = found.is_known
        self._take_report(found, beat)
        found.number, found.heard_s, found.catalog = beat.number, now_s, beat.catalog
        found.log_bytes, found.unflushed_bytes = beat.log_bytes, beat.unflushed_bytes
        found.clock_off_ms = beat.wall_ms - wall_ms
        found.registration = beat.registration or found.registration
        off_ms = found.clock_off_ms if abs(found.clock_off_ms) > CLOCK_OFF_MS_MAX else 0
        answer = HeartbeatAnswer(found.registration is None, not found.is_known, clock_off_ms=off_ms)
        return answer, found.is_known and not was_known

    def _take_report(self, found: ServerDescriptor, beat: Heartbeat) -> None:
        if beat.since is None:
            found.tablets, found.is_known = {}, True
        elif beat.since != found.number:
            found.is_known = False  # something was missed in between
        found.tablets |= {each.tablet: each for each in beat.changed}
        for tablet in beat.gone:
            found.tablets.pop(tablet, None)

    def of(self, server: str) -> ServerDescriptor | None:
        """None: it was not heard of in this term."""
        return self._known.get(server)

    def is_off(self, server: str) -> bool:
        """Whether its clock is known to be too far from the master's."""
        found = self._known.get(server)
        return found is not None and found.is_off

    def forget(self, server: str) -> None:
        """Drop what is known of a server that was taken out of the cluster."""
        self._known.pop(server, None)

    def heard(self, now_s: float) -> dict[str, Heard]:
        """By server: when it was last heard of, and how its clock stands."""
        return {server: Heard(now_s - found.heard_s, found.clock_off_ms) for server, found in self._known.items()}

    def silent(self, now_s: float) -> int:
        """How many of those that were heard of are silent. May be asked from anywhere."""
        return sum(each.is_silent(now_s) for each in list(self._known.values()))

    def placeable(self, servers: Sequence[str], now_s: float) -> tuple[str, ...]:
        """Those of the servers that new tablets may be put on: none whose clock is off, and no silent one if there are
        others. If all are silent it is more likely that nobody was heard, by a busy machine say, than that all are
        gone."""
        right = [server for server in servers if not self.is_off(server)]
        heard = [server for server in right if not (server in self._known and self._known[server].is_silent(now_s))]
        return tuple(heard or right)
