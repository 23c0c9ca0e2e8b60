"""Loads and truncations of a table with replicas, while whoever leads it dies: all of it happened, or nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from tests.cluster.change_stories import (
    FAULTS,
    KINDS,
    MOMENTS,
    SPLITS,
    Fault,
    crashed,
    given_up_before_it_was_logged,
    heirs_are_asked,
    held,
    merged_and_without_power,
)
from tests.cluster.stories import Stage, play
from tests.effort import is_soak, long_run

HELD = [(kind, step, when, fault) for fault in FAULTS for step, when in MOMENTS for kind in KINDS]
FEW = {
    ("load", "_prepare", "after", "power_fails_everywhere"),
    ("overwrite", "_decide", "after", "leader_dies"),
    ("truncate", "_tell_server", "after", "leader_sleeps"),
}
"""Those of a plain run."""


def tried(kind: str, step: str, when: str, fault: Fault) -> Any:
    name = fault.__name__
    marks = () if (kind, step, when, name) in FEW else long_run
    return pytest.param(held(kind, step, when, fault), id=f"{kind}-{when}-{step}-{name}", marks=marks)


@pytest.mark.parametrize("story", [tried(*each) for each in HELD])
def test_a_change_is_whole_whoever_is_in_its_way(story: Callable[[Stage], Awaitable[None]]) -> None:
    play(story, splits=SPLITS)


def test_a_change_is_not_forgotten_while_whoever_leads_next_has_it_prepared() -> None:
    play(heirs_are_asked)


def test_a_change_is_not_prepared_in_a_tablet_that_was_given_up_meanwhile() -> None:
    play(given_up_before_it_was_logged)


def test_files_that_were_merged_are_not_missed_when_the_power_was_gone() -> None:
    play(merged_and_without_power)


STEPS_MAX = 400
FEW_STEPS = 1


@pytest.mark.parametrize(
    "part", ["leader", pytest.param("other", marks=long_run), pytest.param("master", marks=long_run)]
)
def test_a_change_is_whole_whoever_crashes_at_whichever_step(part: str) -> None:
    drawn = Random(part).sample(range(1, STEPS_MAX), FEW_STEPS)
    for steps in range(1, STEPS_MAX) if is_soak() else drawn:
        play(crashed(KINDS[steps % len(KINDS)], part, steps), seed=steps, splits=SPLITS)
