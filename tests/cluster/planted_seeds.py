"""All bugs that are planted, and which seed finds each of them.

    .venv/bin/python -m tests.cluster.planted_seeds early-member own-drop

looks for these, from seed 0 on, and prints a line of the README's table for each, with the seed that finds it now;
without names, for all: that takes hours. What has changed is written down in the lists and in the README.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tests.cluster import test_changes, test_planted, test_stories, test_time
from tests.cluster.planted import PLANTED, Planted, PlantedInStory
from tests.cluster.planted_changes import PLANTED_CHANGES
from tests.cluster.planted_control import PLANTED_IN_CONTROL, PlantedForTest
from tests.cluster.planted_once import PLANTED_IN_FILES, PLANTED_IN_ONCE
from tests.cluster.planted_replicas import PLANTED_IN_REPLICAS
from tests.cluster.planted_resizes import PLANTED_IN_RESIZES
from tests.cluster.planted_shards import PLANTED_IN_SHARDS
from tests.cluster.planted_stories import PLANTED_IN_STORIES
from tests.cluster.planted_time import PLANTED_IN_TIME
from tests.master import test_leadership
from tests.tserver import test_leasing


class Search(NamedTuple):
    """`first_found`: the first of some seeds that finds a bug, if any does."""

    planted: Sequence[Any]
    first_found: Callable[[Any, range], int | None]


SEARCHES = [
    Search([*PLANTED, *PLANTED_IN_SHARDS], test_planted.first_found),
    Search([*PLANTED_IN_ONCE, *PLANTED_IN_FILES], test_planted.first_found),
    Search([*PLANTED_IN_STORIES, *PLANTED_IN_RESIZES], test_stories.first_found),
    Search(PLANTED_IN_REPLICAS, test_planted.first_found),
    Search(PLANTED_IN_TIME, test_time.first_found),
    Search(PLANTED_CHANGES, test_changes._first_found),
    Search(test_leasing.PLANTED_IN_LEASES, test_leasing.first_found),
    Search(test_leadership.PLANTED_IN_LEADERSHIP, test_leadership.first_found),
]
"""In the order of the README's tables."""


def row_of(planted: Planted | PlantedInStory, seed: object = None) -> str:
    """In the README. `seed`: None: the one on record."""
    story = (planted.story,) if isinstance(planted, PlantedInStory) else ()
    cells = (planted.name, planted.words, *story, planted.seed if seed is None else seed, planted.seeds_max)
    return f"| {' | '.join(map(str, cells))} |"


def rows() -> Iterator[str]:
    for search in SEARCHES:
        yield from map(row_of, search.planted)
    yield from map(_row_with_test, PLANTED_IN_CONTROL)


def _row_with_test(planted: PlantedForTest) -> str:
    test: Any = planted.test
    path = test.__module__.removeprefix("tests.").replace(".", "/")
    return f"| {planted.name} | {planted.words} | `{path}.py::{test.__name__}` |"


def _main(names: Sequence[str]) -> None:
    for search in SEARCHES:
        for planted in search.planted:
            if not names or planted.name in names:
                found = search.first_found(planted, range(planted.seeds_max))
                print(row_of(planted, "none" if found is None else found), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1:])
