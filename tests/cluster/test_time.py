"""Stories of time, masters and schemas on the simulated cluster, and bugs that they find."""

from __future__ import annotations

import pytest

from stelae.model.errors import StelaeError
from tests.cluster.planted import PlantedInStory
from tests.cluster.planted_time import PLANTED_IN_TIME
from tests.cluster.test_planted import FOUND
from tests.cluster.time_stories import STORIES
from tests.effort import long_run

SEEDS = range(2)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", STORIES)
def test_a_story_ends_well(name: str, seed: int) -> None:
    STORIES[name].play(seed)


@long_run
@pytest.mark.parametrize("name", STORIES)
def test_a_story_ends_well_whatever_is_drawn(name: str) -> None:
    for seed in range(len(SEEDS), 100):
        STORIES[name].play(seed)


def first_found(planted: PlantedInStory, seeds: range) -> int | None:
    with planted.patch():
        for seed in seeds:
            try:
                STORIES[planted.story].play(seed)
            except (*FOUND, StelaeError, TimeoutError):
                return seed
    return None


@pytest.mark.parametrize("planted", PLANTED_IN_TIME, ids=lambda planted: planted.name)
def test_a_bug_that_is_planted_is_found_by_its_story(planted: PlantedInStory) -> None:
    """From the seed on that found it first: code that was changed since draws other numbers."""
    found = first_found(planted, range(planted.seed, planted.seeds_max))
    assert found is not None, f"{planted.words}: not found by seeds {planted.seed} to {planted.seeds_max}"
