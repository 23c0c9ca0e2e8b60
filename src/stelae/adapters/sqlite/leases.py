"""When a lease has certainly run out, on a machine whose processes share no clock that they could trust.

Wall time steps, and a monotonic clock belongs to its process and ends with it. So no deadline is ever stored. A lease
has a count of renewals; a process notes on its own monotonic clock when it first *saw* a count, which is after the
renewal happened, and lets the lease run out only when the ttl has passed since then with the count unchanged. The count
is compared once more inside the transaction that removes the lease. So a lease is never shortened, whoever looks.

A process that opens the file later would begin anew. Therefore whoever closes stores the time it has certainly seen
pass (`elapsed_ms`, the largest one wins), and the next one counts from there: such times are lower bounds of one and
the same span, so the larger of two is one too, and nothing is counted twice. A killed process lengthens its leases, by
what only it had seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stelae.adapters.sqlite.tables import LeaseRow
from stelae.ports.clock import Clock
from stelae.ports.metastore import LeaseId

_MS_PER_S = 1000


class _Sighting(msgspec.Struct, frozen=True):
    row: LeaseRow
    seen_s: float


class LeaseWatcher:
    """What one process knows of the leases. Every row given was read before the call."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sightings: dict[LeaseId, _Sighting] = {}

    def see(self, row: LeaseRow) -> None:
        known = self._sightings.get(row.id)
        if known is None or known.row.renewals < row.renewals:
            self._sightings[row.id] = _Sighting(row, self._clock.monotonic_s())

    def see_all(self, rows: Sequence[LeaseRow]) -> None:
        """The leases there are: others are gone."""
        there = {row.id for row in rows}
        self._sightings = {lease: sighting for lease, sighting in self._sightings.items() if lease in there}
        for row in rows:
            self.see(row)

    def ages(self) -> list[tuple[LeaseRow, int]]:
        """How many milliseconds have certainly passed since each lease's renewal."""
        now_s = self._clock.monotonic_s()
        return [
            (sighting.row, sighting.row.elapsed_ms + int((now_s - sighting.seen_s) * _MS_PER_S))
            for sighting in self._sightings.values()
        ]

    def run_out(self) -> list[LeaseRow]:
        return [row for row, elapsed_ms in self.ages() if elapsed_ms >= row.ttl_ms]

    def until_next_s(self) -> float | None:
        """How long to sleep until the next lease may run out, if there is one."""
        waits_ms = [row.ttl_ms - elapsed_ms for row, elapsed_ms in self.ages()]
        return max(min(waits_ms), 0) / _MS_PER_S if waits_ms else None
