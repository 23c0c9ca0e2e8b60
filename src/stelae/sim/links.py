"""What lies between two hosts, and what can be wrong with it: late, slow, cut in one direction or both.

A link is one direction. What is cut loses nothing at once: frames wait, as they do in TCP's buffers, and go on when the
link is healed, unless one end gave up meanwhile (`SimTransport`). Faults of one link leave all others alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from stelae.sim.bell import Bell

NOBODY = "outside"
"""The host of code that belongs to no process."""

_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Delays:
    """How late a frame, or a new connection, is: up to `usual_s_max`, but of one in so many as `tail` says (a rate from
    0 to 1) longer, mostly by little and seldom by much, up to `tail_s_max`."""

    usual_s_max: float = 0.01
    tail: float = 0.0
    tail_s_max: float = 1.0

    def draw_s(self, draw: Callable[[], float]) -> float:
        if self.tail and draw() < self.tail:
            return min(self.usual_s_max / (1 - draw()), self.tail_s_max)
        return draw() * self.usual_s_max


USUAL_DELAYS = Delays()


class Link:
    """From one host to another. `delays` and `bytes_per_s` of None: as all links."""

    def __init__(self) -> None:
        self.cuts = 0
        """How many faults cut it now: two that overlap are healed one by one."""
        self.since_cut = 0
        """Grows with each cut, so that who waited can tell whether it was the same all the time."""
        self.delays: Delays | None = None
        self.bytes_per_s: float | None = None
        self._free_ns = 0

    @property
    def is_cut(self) -> bool:
        return self.cuts > 0

    def arrival_ns(self, now_ns: int, size_bytes: int, delays: Delays, draw: Callable[[], float]) -> int:
        """When bytes that are sent now arrive: on a slow link behind all that were sent before them."""
        if self.bytes_per_s is not None:
            self._free_ns = max(self._free_ns, now_ns) + round(size_bytes / self.bytes_per_s * _NS_PER_S)
            now_ns = self._free_ns
        return now_ns + round((self.delays or delays).draw_s(draw) * _NS_PER_S)


class Links:
    """All links of a network, by the names of their hosts."""

    def __init__(self, delays: Delays) -> None:
        self.delays = delays
        self.on_cut: Callable[[str, str], None]
        self.on_heal: Callable[[str, str], None]
        self.on_power: Callable[[str], None]
        self._links: dict[tuple[str, str], Link] = {}
        self._off: dict[str, None] = {}
        self._refusing: dict[str, None] = {}
        self._changed = Bell()

    def link(self, source: str, target: str) -> Link:
        found = self._links.get((source, target))
        if found is None:
            found = self._links[source, target] = Link()
        return found

    def cut(self, source: str, target: str) -> None:
        """A black hole in this direction: what is sent waits, the other direction goes on."""
        link = self.link(source, target)
        link.cuts += 1
        link.since_cut += 1
        if link.cuts == 1:
            self.on_cut(source, target)

    def heal(self, source: str, target: str) -> None:
        """Take one cut back. Healing what is whole is no error."""
        link = self.link(source, target)
        if link.cuts == 1:
            link.cuts = 0
            self.on_heal(source, target)
            self._changed.ring()
        elif link.cuts:
            link.cuts -= 1

    def partition(self, some: Iterable[str], others: Iterable[str]) -> None:
        """Cut both directions between each of some and each of others."""
        for source, target in _both_ways(some, others):
            self.cut(source, target)

    def join(self, some: Iterable[str], others: Iterable[str]) -> None:
        """Take back one partition of the same hosts."""
        for source, target in _both_ways(some, others):
            self.heal(source, target)

    def slow(self, source: str, target: str, bytes_per_s: float | None) -> None:
        """So many bytes a second in this direction; None: as many as come."""
        if bytes_per_s is not None and bytes_per_s <= 0:
            raise ValueError(f"a link that carries nothing is cut, not slow: {bytes_per_s=}")
        self.link(source, target).bytes_per_s = bytes_per_s

    def lag(self, source: str, target: str, delays: Delays | None) -> None:
        """Other delays in this direction; None: as all links."""
        self.link(source, target).delays = delays

    def refuse(self, host: str) -> None:
        """Refuse all new connections to the host, as if nobody listened there."""
        self._refusing[host] = None

    def admit(self, host: str) -> None:
        """Take its new connections again."""
        self._refusing.pop(host, None)

    def refuses(self, host: str) -> bool:
        return host in self._refusing

    def turn_off(self, host: str) -> None:
        """Its power is gone: nothing answers there, not even with a refusal."""
        self._off[host] = None

    def turn_on(self, host: str) -> None:
        """It has power again, and whoever lived there before is unknown: what arrives for it is refused."""
        if host in self._off:
            del self._off[host]
            self.on_power(host)
            self._changed.ring()

    def is_off(self, host: str) -> bool:
        return host in self._off

    def reaches(self, source: str, target: str) -> bool:
        """Whether a question and its answer can pass between two hosts."""
        there, back = self._links.get((source, target)), self._links.get((target, source))
        return not (self.is_off(target) or (there and there.is_cut) or (back and back.is_cut))

    async def until_reaches(self, source: str, target: str) -> None:
        while not self.reaches(source, target):
            await self._changed.wait()

    def heal_all(self) -> None:
        """Whole, fast and admitting everybody, as at the beginning. What was turned off stays off."""
        self._refusing.clear()
        for (source, target), link in list(self._links.items()):
            link.delays = link.bytes_per_s = None
            while link.is_cut:
                self.heal(source, target)


def _both_ways(some: Iterable[str], others: Iterable[str]) -> list[tuple[str, str]]:
    pairs = [(one, other) for one in some for other in others if one != other]
    return [*pairs, *((other, one) for one, other in pairs)]
