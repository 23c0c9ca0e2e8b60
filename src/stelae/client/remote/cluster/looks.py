"""Looking at tables of a cluster while some of its shards may be away: what the others say, and what is not known."""

from __future__ import annotations

from itertools import pairwise

import msgspec

from stelae.client.remote.cluster.routing import Routing
from stelae.client.remote.cluster.sums import sum_stats
from stelae.model.errors import StelaeError
from stelae.ports.rng import Rng
from stelae.registry.control_operations import TableLocation
from stelae.service.deadlines import Deadline
from stelae.service.tables import TableStats, TabletInfo


class UnseenTablet(msgspec.Struct, frozen=True):
    """The rows from `start` on and before `stop`, of which nobody says more. `server`: the shard that has them and does
    not answer; None: no shard that answers leads them."""

    start: bytes
    stop: bytes | None
    server: str | None


class TableLook(msgspec.Struct, frozen=True):
    """Of a table as far as it can be seen: all its tablets in the order of rows, and the sizes of those on shards that
    answer; None if none does. `away`: those that do not."""

    tablets: tuple[TabletInfo | UnseenTablet, ...]
    stats: TableStats | None
    away: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        """Whether its sizes are those of all its tablets."""
        return not any(isinstance(each, UnseenTablet) for each in self.tablets)


def look_at(
    routing: Routing, location: TableLocation, away: dict[str, StelaeError], rng: Rng, deadline: Deadline
) -> TableLook:
    """`away`: shards that are not asked, because they did not answer before; those that do not now are added, with what
    was said of them."""
    table = location.table
    servers = dict.fromkeys(server for _, server in location.tablets)
    found, more = routing.ask_present(
        [server for server in servers if server not in away],
        deadline,
        rng,
        lambda shard, share: (shard.tablets(table, deadline=share), shard.stats(table, deadline=share)),
    )
    away |= more
    seen = [tablet for tablets, _ in found.values() for tablet in tablets]
    starts = {tablet.start for tablet in seen}
    bounds = pairwise([*(start for start, _ in location.tablets), None])
    unseen = [
        UnseenTablet(start, stop, server if server in away else None)
        for (start, server), (_, stop) in zip(location.tablets, bounds, strict=True)
        if start not in starts and not any(_has(tablet, start) for tablet in seen)
    ]
    return TableLook(
        tuple(sorted([*seen, *unseen], key=lambda each: each.start)),
        sum_stats([stats for _, stats in found.values()]) if found else None,
        tuple(server for server in servers if server in away),
    )


def _has(tablet: TabletInfo, row: bytes) -> bool:
    return tablet.start <= row and (tablet.stop is None or row < tablet.stop)
