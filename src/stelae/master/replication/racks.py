"""Which shards the replicas of one tablet may be on together: different nodes, and racks as its zone says. Pure.

A zone may name racks: then replicas are on these alone, as evenly as it goes, so that with as many racks as replicas
each has one of its own. A zone that names none takes any node; where nodes have racks, those of other racks first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from stelae.catalog.objects import Zone
from stelae.model.errors import Unavailable
from stelae.model.words import counted
from stelae.registry.incarnations import ShardLife


def node_of(server: str) -> str:
    """The node that a shard is of: replicas of one tablet are on different ones."""
    return server.rpartition("/")[0]


class Racks(msgspec.Struct, frozen=True):
    """`wanted`: the racks that a zone names; none: any. `known`: by server, where it stands; those of which nobody has
    said it are not there."""

    wanted: tuple[str, ...] = ()
    known: Mapping[str, str] = msgspec.field(default_factory=dict)

    def allows(self, server: str) -> bool:
        return not self.wanted or self.known.get(server) in self.wanted

    def _most(self, replicas: int) -> int:
        """So many replicas of a tablet may be on one rack."""
        return -(-replicas // len(self.wanted)) if self.wanted else replicas

    def room_for(self, replicas: int, servers: Iterable[str]) -> int:
        """How many replicas of one tablet, of so many, these servers have room for."""
        nodes = {node_of(server): self.known.get(server, "") for server in servers if self.allows(server)}
        most = self._most(replicas)
        return sum(min(most, count) for count in Counter(nodes.values()).values()) if self.wanted else len(nodes)

    def check(self, replicas: int, servers: Sequence[str]) -> None:
        """Unavailable, in words, if there is no room for so many."""
        if self.room_for(replicas, servers) >= replicas:
            return
        nodes = {node_of(server): self.known.get(server, "") for server in servers}
        if not self.wanted:
            raise Unavailable(
                f"a tablet is to have {replicas} replicas, each on another node, and there are {len(nodes)} nodes: "
                "start more"
            )
        on = Counter(nodes.values())
        found = ", ".join(f"{counted(on[rack], 'node')} on {rack!r}" for rack in self.wanted)
        least = replicas // len(self.wanted)
        few = [rack for rack in self.wanted if on[rack] < max(least, 1)] or list(self.wanted)
        raise Unavailable(
            f"a tablet is to have {counted(replicas, 'replica')} on the racks {', '.join(self.wanted)}, and there is: "
            f"{found}. Start more nodes there (stelae node --rack {few[0]}), or alter the zone"
        )

    def free(self, replicas: int, servers: Iterable[str], taken: Iterable[str]) -> list[str]:
        """Those that another replica of a tablet may be on that has some on servers already: of the racks that have the
        fewest of them."""
        nodes = {node_of(server): self.known.get(server, "") for server in taken}
        on = Counter(rack for rack in nodes.values() if rack)
        free = [
            server
            for server in servers
            if node_of(server) not in nodes
            and self.allows(server)
            and (not self.wanted or on[self.known[server]] < self._most(replicas))
        ]
        least = min((on[self.known.get(server, "")] for server in free), default=0)
        return [server for server in free if on[self.known.get(server, "")] == least]


ANYWHERE = Racks()


def racks_of(zone: Zone | None, lives: Mapping[str, ShardLife]) -> Racks:
    """What a zone says of racks, and where the shards stand."""
    known = {server: life.rack for server, life in lives.items() if life.rack}
    return Racks(() if zone is None else zone.racks, known)
