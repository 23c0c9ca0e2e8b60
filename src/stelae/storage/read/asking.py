"""What a reader asks of rows, and what it gets for each version."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from stelae.model.ids import Micros, Txn
from stelae.model.predicate.plan import ALL_TIME, TimeRange
from stelae.model.values import Value


class Version(NamedTuple):
    ts: Micros
    txn: Txn
    value: Value


class Asking(msgspec.Struct, frozen=True):
    """At which snapshot, above which floor, by which clock, and of which times. One is made for each row that is read,
    so it is a Struct: they are made in a fifth of the time."""

    at: Txn
    floor: Txn
    read_us: Micros
    time: TimeRange = ALL_TIME
