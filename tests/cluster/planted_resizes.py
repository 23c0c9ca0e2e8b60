"""Bugs that are planted in what makes others of tablets with several replicas, each with the story that finds it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest import mock

from stelae.model.ids import TabletId
from stelae.storage.tablet.state import TabletState, frozen
from stelae.tserver.flushing import Flushing
from stelae.tserver.replication import hosting
from stelae.tserver.replication.hosting import Hosting
from tests.cluster.planted import PlantedInStory


@contextmanager
def _what_was_split_is_led_on() -> Any:
    """A leader goes on with a tablet that it has made others of, until somebody tells it that these are led."""
    right = Hosting._put_to_rest

    def put_to_rest(self: Hosting, tablets: Sequence[TabletId], flushing: Flushing) -> list[TabletState]:
        with mock.patch.object(self.leading, "step_down"):
            return right(self, tablets, flushing)

    with ExitStack() as patched:
        patched.enter_context(mock.patch.object(Hosting, "_put_to_rest", put_to_rest))
        patched.enter_context(mock.patch.object(hosting, "frozen", lambda state: state))
        yield


def _nothing_is_flushed_before() -> AbstractContextManager[Any]:
    """Tablets become others by their files alone."""

    def put_to_rest(self: Hosting, tablets: Sequence[TabletId], _: Flushing) -> list[TabletState]:
        for tablet in tablets:
            self._shard.change(tablet, frozen)
        self._upkeep.touch(tablets)
        self._upkeep.save(tablets)
        states = [self._shard.state(tablet) for tablet in tablets]
        for tablet in tablets:
            self.leading.step_down(tablet, "it becomes others")
        return states

    return mock.patch.object(Hosting, "_put_to_rest", put_to_rest)


PLANTED_IN_RESIZES = [
    PlantedInStory(
        "split-is-led-on",
        "a leader goes on with a tablet that it has made others of",
        "t61_split_then_two_leaders",
        _what_was_split_is_led_on,
    ),
    PlantedInStory(
        "no-flush-before",
        "tablets become others by their files, whatever is in memory",
        "joined_with_rows_in_memory",
        _nothing_is_flushed_before,
    ),
]
