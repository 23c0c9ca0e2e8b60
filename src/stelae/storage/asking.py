"""What a reader asks of rows, and what it gets for each version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from stelae.model.ids import Micros, Txn
from stelae.model.predicate.plan import ALL_TIME, TimeRange
from stelae.model.values import Value


class Version(NamedTuple):
    ts: Micros
    txn: Txn
    value: Value


@dataclass(frozen=True, slots=True)
class Asking:
    """At which snapshot, above which floor, by which clock, and of which times."""

    at: Txn
    floor: Txn
    read_us: Micros
    time: TimeRange = ALL_TIME
