"""Bugs that are planted in what masters and servers believe of each other, each with the plain test that finds it. In
the simulation something stands behind each: the guard that transactions compare, a report that is whole again soon."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from stelae.master import plan
from stelae.master.descriptors import Descriptors
from stelae.registry.masters.heartbeats import Heartbeat, HeartbeatAnswer
from stelae.registry.senders import Sender
from tests.master import test_heartbeats, test_plan
from tests.registry import test_senders


@dataclass(frozen=True, slots=True)
class PlantedForTest:
    name: str
    words: str
    test: Callable[[], object]
    patch: Callable[[], AbstractContextManager[Any]]


def _requests_of_any_guard() -> AbstractContextManager[Any]:
    return mock.patch.object(Sender, "check_guard")


def _the_unknown_is_deleted() -> AbstractContextManager[Any]:
    return mock.patch.object(plan, "_judged", lambda report, *_: iter(report.tablets))


def _reports_in_any_order() -> AbstractContextManager[Any]:
    right = Descriptors.take

    def take(self: Descriptors, beat: Heartbeat, now_s: float, wall_ms: int) -> tuple[HeartbeatAnswer, bool]:
        found = self._known.get(beat.server)
        if found is not None and found.incarnation == beat.incarnation:
            found.number = min(found.number, beat.number - 1)
        return right(self, beat, now_s, wall_ms)

    return mock.patch.object(Descriptors, "take", take)


PLANTED_IN_CONTROL = [
    PlantedForTest(
        "any-guard",
        "a server does what a master asks that another one has followed",
        test_senders.test_a_smaller_guard_than_was_heard_of_is_refused,
        _requests_of_any_guard,
    ),
    PlantedForTest(
        "unknown-is-deleted",
        "a master has tablets deleted of tables that it has never heard of",
        test_plan.test_nothing_is_done_about_tablets_of_a_table_that_was_never_heard_of,
        _the_unknown_is_deleted,
    ),
    PlantedForTest(
        "reports-in-any-order",
        "a master takes an older report for the newest",
        test_heartbeats.test_what_is_late_is_dropped,
        _reports_in_any_order,
    ),
]
