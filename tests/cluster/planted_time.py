"""Bugs that are planted in what keeps snapshots, pins and schemas of many shards, each with the story that finds it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import msgspec

from stelae.client.remote.cluster.pins import ClusterPin, ClusterPins
from stelae.client.remote.cluster.seen import SeenTime
from stelae.master.tables.telling import Telling
from stelae.model.errors import StelaeError
from stelae.model.hybrid import pack
from stelae.model.ids import TableId, Txn
from stelae.registry.senders import Sender
from stelae.service.deadlines import Deadline
from stelae.service.messages import Request
from stelae.tserver.keeper import Keeper
from stelae.tserver.lease import steadiness
from tests.cluster.planted import PlantedInStory


def _pins_stay_where_they_were() -> AbstractContextManager[Any]:
    return mock.patch.object(ClusterPin, "hold_again")


def _pins_are_not_waited_for() -> AbstractContextManager[Any]:
    return mock.patch.object(Keeper, "expect_pins")


def _now_by_ones_own_clock() -> AbstractContextManager[Any]:
    right = ClusterPins.pin

    def pin(self: ClusterPins, at: Txn | None, table: TableId | None, deadline: Deadline) -> ClusterPin:
        own = deadline._clock.wall_ms()
        return right(self, pack(own) if at is None else at, table, deadline)

    return mock.patch.object(ClusterPins, "pin", pin)


def _no_clock_in_requests() -> AbstractContextManager[Any]:
    def sign(_: SeenTime, request: Request) -> Request:
        return request

    return mock.patch.object(SeenTime, "sign", sign)


def _clocks_are_not_heard() -> AbstractContextManager[Any]:
    right = Sender.hear

    def hear(self: Sender, request: Request) -> None:
        right(self, msgspec.structs.replace(request, clock=0))

    return mock.patch.object(Sender, "hear", hear)


def _altered_when_most_have_followed() -> AbstractContextManager[Any]:
    right = Telling.ask

    async def ask(self: Telling, *args: Any) -> None:
        try:
            await right(self, *args)
        except StelaeError:
            return

    return mock.patch.object(Telling, "ask", ask)


PLANTED_IN_TIME = [
    PlantedInStory(
        "pins-stay",
        "a snapshot is held where the table was",
        "held through a change of leaders",
        _pins_stay_where_they_were,
        0,
        3,
    ),
    PlantedInStory(
        "pins-are-not-waited-for",
        "who takes a tablet over drops history at once",
        "held through a change of leaders",
        _pins_are_not_waited_for,
        1,
        20,
    ),
    PlantedInStory(
        "a-wrong-clock-is-believed",
        "a shard that begins goes by its machine's clock, however wrong",
        "started with a wrong clock",
        lambda: mock.patch.object(steadiness, "CLOCK_OFF_MS_MAX", 10**12),
        0,
        3,
    ),
    PlantedInStory(
        "now-by-ones-own-clock",
        "a scan is at the time of the reader's own clock",
        "now has what is done",
        _now_by_ones_own_clock,
        0,
        20,
    ),
    PlantedInStory(
        "no-clock-in-requests",
        "programs do not say what they have seen",
        "later is larger",
        _no_clock_in_requests,
        0,
        20,
    ),
    PlantedInStory(
        "clocks-are-not-heard",
        "shards do not listen to the clocks of others",
        "later is larger",
        _clocks_are_not_heard,
        0,
        20,
    ),
    PlantedInStory(
        "altered-by-most",
        "an alteration is told as done though a shard has not followed",
        "altered while one is cut off",
        _altered_when_most_have_followed,
        0,
        3,
    ),
]
