"""Typical mistakes, and the exact words that answer them."""

from __future__ import annotations

import pytest

from stelae.model.errors import InvalidPredicate
from stelae.model.predicate.parser import parse

TRANSCRIPT = r"""
the predicate is empty, at position 0
  |
  |^

expected a literal after >, not the end, at position 5
  |age >
  |     ^

expected a comparison after 'flag', not the end, at position 4
  |flag
  |    ^

nothing compares with null: write name is null, or name is not null, at position 6
  |age = null
  |      ^

nothing compares with null: write name is null, or name is not null, at position 11
  |age in (1, null)
  |           ^

expected a literal after =, not the name 'bob'; text is written in quotes: "bob", at position 7
  |name = bob
  |       ^

two literals are compared: one side must be a name; names are not written in quotes, at position 8
  |"age" > 30
  |        ^

'=>' is no operator; write >=, at position 4
  |age => 30
  |    ^

'<>' is no operator; write !=, at position 4
  |age <> 30
  |    ^

'&&' is no operator; write and, at position 6
  |a = 1 && b = 2
  |      ^

expected a comparison after 'name', not 'like'; a prefix is asked for as name ~= "prefix", at position 5
  |name like "A%"
  |     ^

expected a comparison after 'age', not 'between'; a range is asked for as 1 <= name <= 2, at position 4
  |age between 1 and 2
  |    ^

expected and, or, or the ) of position 0, not the end, at position 6
  |(a = 1
  |      ^

expected and, or, or the end, not ')', at position 5
  |a = 1)
  |     ^

expected and, or, or the end, not 'b', at position 6
  |a = 1 b = 2
  |      ^

the quote is never closed, at position 7
  |name = "Ann
  |       ^

the backquote is never closed, at position 0
  |`name = 1
  |^

unknown escape '\\q'; known are \" \' \\ \n \t \r \0 \uXXXX \UXXXXXXXX, at position 9
  |name = "A\q"
  |         ^

unknown escape '\\x'; known are \" \' \\ \n \t \r \0 \uXXXX \UXXXXXXXX, at position 8
  |name = "\x41"
  |        ^

bytes are written in ASCII; write others as \xNN, at position 7
  |a = b"aé"
  |       ^

expected a list in parentheses after in, as in (1, 2), not '3', at position 5
  |a in 3
  |     ^

expected a comma or ) in the list, not '2', at position 8
  |a in (1 2)
  |        ^

both signs of a chained comparison point one way, as in 1 <= name < 2, at position 6
  |1 < a > 0
  |      ^

a chained comparison has its name in the middle, as in 1 <= name < 2, at position 6
  |a < 1 < 2
  |      ^

a chained comparison has two signs; join more with and, at position 10
  |1 < a < 2 < 3
  |          ^

a prefix is text or bytes, not 3 (int), at position 8
  |name ~= 3
  |        ^

~= has its name on the left, as in name ~= "prefix", at position 4
  |"A" ~= name
  |    ^

expected null or not null after is, not '3', at position 5
  |a is 3
  |     ^

'2024-02-30' is no date: day is out of range for month, at position 9
  |d > date "2024-02-30"
  |         ^

'2024-01-31T10:00' has no time zone: end it with Z for UTC, or with an offset as +02:00, at position 14
  |t > timestamp "2024-01-31T10:00"
  |              ^

'1.' is no number: numbers are written as 1, -1.5, 1e9, inf or, if decimal, 1.50dec, at position 4
  |a > 1.
  |    ^

'1e999' is too large for a float; write inf or a decimal, at position 4
  |a > 1e999
  |    ^

a name cannot end in a colon: write a cell as `click:qualifier`, in backquotes unless it is two plain words, and all cells of a family as column ~= "click:", at position 5
  |click: = b"1"
  |     ^

unexpected character '$', at position 0
  |$name = 1
  |^
"""  # noqa: E501

STORIES = [story.splitlines() for story in TRANSCRIPT.strip("\n").split("\n\n")]


@pytest.mark.parametrize("story", STORIES, ids=[story[1] for story in STORIES])
def test_mistakes_are_answered_in_these_words(story: list[str]) -> None:
    message, text, caret = story
    with pytest.raises(InvalidPredicate) as caught:
        parse(text.removeprefix("  |"))
    said = str(caught.value).splitlines()
    assert said == [message, "  " + text.removeprefix("  |"), "  " + caret.removeprefix("  |")]


def test_of_many_lines_the_one_is_shown() -> None:
    text = "a = 1\n and\tb == \u200bc\nor d = 2"
    with pytest.raises(InvalidPredicate) as caught:
        parse(text)
    assert caught.value.position == 16
    assert str(caught.value).splitlines() == [
        "unexpected character '\\u200b', at line 2, position 16",
        "   and b == \ufffdc",
        "            ^",
    ]


def test_of_a_long_line_a_window_is_shown() -> None:
    text = "a = 1 and " * 100 + "?" + " and b = 2" * 100
    with pytest.raises(InvalidPredicate) as caught:
        parse(text)
    message, window, caret = str(caught.value).splitlines()
    assert message == "unexpected character '?', at position 1000"
    assert window == "  ..." + "a = 1 and " * 6 + "?" + " and b = 2" * 3 + " and b = " + "..."
    assert window[caret.index("^")] == "?"
    assert caught.value.text == text
    assert caught.value.position == 1000
