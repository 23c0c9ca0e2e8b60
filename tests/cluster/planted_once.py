"""Bugs that are planted in what makes a write happen once, however often it is sent."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import msgspec

from stelae.client.calls.lanes import Numbering
from stelae.client.calls.steps import Write
from stelae.storage.log.done import NOTHING_DONE, DoneWrites
from stelae.storage.tablet import opening
from stelae.storage.tablet.config import TabletConfig, config_of
from tests.cluster.planted import Planted


def _done_is_not_in_configs() -> AbstractContextManager[Any]:
    def config(*args: Any) -> TabletConfig:
        return msgspec.structs.replace(config_of(*args), done=NOTHING_DONE)

    return mock.patch("stelae.storage.outcomes.config_of", config)


def _done_is_not_rebuilt() -> AbstractContextManager[Any]:
    return mock.patch.object(opening._Opening, "note_done", return_value=None)


def _every_try_has_a_new_number() -> AbstractContextManager[Any]:
    right = Numbering.number

    def number(self: Numbering, step: Write) -> None:
        doubt, self._doubt = self._doubt, None
        step.blocks = [_bare(block) for block in step.blocks]
        right(self, step)
        self._doubt = doubt

    return mock.patch.object(Numbering, "number", number)


def _bare(block: Any) -> Any:
    return type(block)(block.block, block.given_rows, block.data)


def _what_failed_stays_done() -> AbstractContextManager[Any]:
    return mock.patch.object(DoneWrites, "take_back", return_value=None)


PLANTED_IN_ONCE = [
    Planted("new-number", "a write that is sent again has a new number", 77, 150, _every_try_has_a_new_number),
    Planted("not-rebuilt", "done writes are not rebuilt from the log", 20, 150, _done_is_not_rebuilt),
    Planted("failed-is-done", "a write that has failed counts as done", 1, 60, _what_failed_stays_done),
]

PLANTED_IN_FILES = [
    Planted("not-in-config", "done writes are not in configs", 20, 200, _done_is_not_in_configs),
]
"""Looked for where programs flush again and again: what they are about is in the log until then."""
