"""The stories of replicas that may lack what was acknowledged (`doubt_stories`)."""

from __future__ import annotations

from unittest import mock

import pytest

from stelae.model.ids import Index
from stelae.tserver.replication.led import Led, Member
from tests.cluster.doubt_stories import MIN_REPLICAS, STORIES
from tests.cluster.stories import play
from tests.effort import tries

SEEDS = 6
"""Of a story with a planted bug, at the most."""


def _play(name: str, seed: int) -> None:
    play(STORIES[name], seed=seed, min_replicas=MIN_REPLICAS.get(name, 1))


@pytest.mark.parametrize("name", STORIES)
def test_a_story_ends_well(name: str) -> None:
    for seed in range(tries(1)):
        _play(name, seed)


def test_a_leader_that_goes_on_counting_what_a_member_has_lost_is_found() -> None:
    def only_send_again(_: Led, __: str, member: Member, kept: Index, ___: float) -> None:
        member.sent = kept

    def is_found(seed: int) -> bool:
        try:
            _play("who_has_lost_records_does_not_count_for_them", seed)
        except AssertionError as error:
            return "acknowledged, and not there" in str(error)
        return False

    with mock.patch.object(Led, "_note_lost", only_send_again):
        assert any(is_found(seed) for seed in range(SEEDS))
