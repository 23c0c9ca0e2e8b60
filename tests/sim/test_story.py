from __future__ import annotations

import pytest

from stelae.sim.story import Story


def test_lines_say_when() -> None:
    now = [0.0]
    story = Story(lambda: now[0])
    story.tell("a began")
    now[0] = 12.3456
    story.tell("a ended")
    assert story.lines == ["     0.000 s  a began", "    12.346 s  a ended"]


def test_of_a_long_story_beginning_and_end_are_kept() -> None:
    story = Story(lambda: 0.0, lines_max=50)
    for number in range(1000):
        story.tell(f"line {number}")
    told = [line.partition("s  ")[2] for line in story.lines]
    assert told[:40] == [f"line {number}" for number in range(40)]
    assert "950 lines left out" in story.lines[40]
    assert told[41:] == [f"line {number}" for number in range(990, 1000)]


def test_the_text_begins_with_the_command_that_repeats_it() -> None:
    story = Story(lambda: 1.0)
    story.tell("it broke")
    assert story.text("make test SEED=1").splitlines() == [
        "To repeat: make test SEED=1",
        "What happened:",
        "     1.000 s  it broke",
    ]


def test_a_story_too_short_to_tell_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 40 lines"):
        Story(lambda: 0.0, lines_max=40)
