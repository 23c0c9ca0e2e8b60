"""The lives of a tablet as stories, and what holds in all of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest

from stelae.model.errors import DiskFull, TabletAway
from stelae.model.ids import TabletId
from stelae.tserver.lives import Happened, Life, NotInThisState, TabletEffect, TabletEvent, TabletLives, step

E, F = TabletEvent, TabletEffect

LOAD = [E.LOAD_ASKED, E.CONFIG_READ, E.LOG_REPLAYED, E.CONFIG_SAVED, E.FRAGMENTS_OPENED]
UNLOAD = [E.UNLOAD_ASKED, E.MEMORY_FLUSHED, E.LAST_CONFIG_SAVED]


def told(*events: TabletEvent) -> list[str]:
    life = Life.UNKNOWN
    story = []
    for event in events:
        next_ = step(life, event)
        done = ", ".join(effect.value for effect in next_.effects) or "-"
        story.append(f"{life.value} {event.value} -> {next_.life.value}: {done}")
        life = next_.life
    return story


# -- one tablet, step by step


def test_a_whole_life() -> None:
    assert told(*LOAD, *UNLOAD) == [
        "0 load asked -> 1: read the config",
        "1 config read -> 2: replay the log",
        "2 log replayed -> 3: save the config",
        "3 config saved -> 4: open the fragments",
        "4 fragments opened -> 5: -",
        "5 unload asked -> 6: refuse writes, flush the memory",
        "6 memory flushed -> 7: save the last config",
        "7 last config saved -> 0: drop the tablet",
    ]


def test_a_new_tablet_has_nothing_to_read_or_replay() -> None:
    assert told(E.CREATE_ASKED, E.CONFIG_SAVED, E.FRAGMENTS_OPENED) == [
        "0 create asked -> 3: save the config",
        "3 config saved -> 4: open the fragments",
        "4 fragments opened -> 5: -",
    ]


def test_a_split_and_a_join() -> None:
    assert told(*LOAD, E.SPLIT_ASKED, E.SUCCEEDED)[-2:] == [
        "5 split asked -> 5: split the tablet",
        "5 succeeded by others -> 0: -",
    ]
    assert told(E.TOOK_OVER, E.CONFIG_SAVED, E.JOIN_ASKED, E.SUCCEEDED) == [
        "0 took over from others -> 5: save the config",
        "5 config saved -> 5: -",
        "5 join asked -> 5: join the tablets",
        "5 succeeded by others -> 0: -",
    ]


@pytest.mark.parametrize("life", Life)
def test_a_tablet_is_deleted_in_any_state(life: Life) -> None:
    assert step(life, E.DELETE_ASKED).life is Life.UNKNOWN
    assert step(life, E.DELETE_ASKED).effects == (F.FORGET,)


@pytest.mark.parametrize("done", [1, 2, 3])
def test_a_load_that_fails_before_its_config_is_saved_leaves_nothing(done: int) -> None:
    assert told(*LOAD[:done], E.FAILED)[-1].endswith("-> 0: drop the tablet")


def test_what_fails_after_the_config_is_saved_is_tried_again_when_it_is_asked_again() -> None:
    assert told(*LOAD[:4], E.FAILED, E.LOAD_ASKED, E.FRAGMENTS_OPENED)[-3:] == [
        "4 failed -> 4: -",
        "4 load asked -> 4: open the fragments",
        "4 fragments opened -> 5: -",
    ]
    assert told(*LOAD, E.UNLOAD_ASKED, E.FAILED, E.UNLOAD_ASKED, E.MEMORY_FLUSHED, E.FAILED, E.UNLOAD_ASKED)[-5:] == [
        "6 failed -> 6: -",
        "6 unload asked -> 6: flush the memory",
        "6 memory flushed -> 7: save the last config",
        "7 failed -> 7: -",
        "7 unload asked -> 7: save the last config",
    ]
    assert told(*LOAD, E.SPLIT_ASKED, E.FAILED)[-1] == "5 failed -> 5: -"


def test_asking_again_does_nothing() -> None:
    assert told(E.LOAD_ASKED, E.LOAD_ASKED)[-1] == "1 load asked -> 1: -"
    assert told(*LOAD, E.LOAD_ASKED)[-1] == "5 load asked -> 5: -"
    assert told(*LOAD, E.CREATE_ASKED)[-1] == "5 create asked -> 5: -"
    assert told(E.UNLOAD_ASKED) == ["0 unload asked -> 0: -"]


def test_a_load_is_given_up_while_nobody_has_written() -> None:
    for done in (1, 2, 4):
        assert told(*LOAD[:done], E.UNLOAD_ASKED)[-1].endswith("unload asked -> 0: drop the tablet")


def test_a_tablet_with_replicas_is_served_while_it_is_led() -> None:
    assert told(E.LEAD_TAKEN, E.LEAD_TAKEN, E.LEAD_GIVEN_UP, E.LEAD_GIVEN_UP) == [
        "0 is led here now -> 5: let requests find the led tablet",
        "5 is led here now -> 5: let requests find the led tablet",
        "5 is led here no more -> 0: let nobody find the tablet; its replica stays",
        "0 is led here no more -> 0: let nobody find the tablet; its replica stays",
    ]


def test_every_event_is_taken_or_refused_in_words_in_every_state() -> None:
    refused = 0
    for life, event in product(Life, E):
        try:
            next_ = step(life, event)
        except NotInThisState as error:
            refused += 1
            assert isinstance(error, TabletAway), "whoever asked may ask again later"
            assert event.value in str(error)
            assert life.name in str(error)
        else:
            moves = abs(next_.life - life)
            is_shortcut = life is Life.UNKNOWN and event in (E.CREATE_ASKED, E.TOOK_OVER, E.LEAD_TAKEN)
            assert moves <= 1 or next_.life is Life.UNKNOWN or is_shortcut
    assert refused == 81


# -- several tablets, by their effects


NEXT = {
    F.READ_CONFIG: E.CONFIG_READ,
    F.REPLAY_LOG: E.LOG_REPLAYED,
    F.SAVE_CONFIG: E.CONFIG_SAVED,
    F.OPEN_FRAGMENTS: E.FRAGMENTS_OPENED,
    F.FLUSH_MEMORY: E.MEMORY_FLUSHED,
    F.SAVE_LAST_CONFIG: E.LAST_CONFIG_SAVED,
}


class Hands:
    """Carries out effects by writing them down; those in `broken` fail."""

    def __init__(self, *broken: TabletEffect) -> None:
        self.lives = TabletLives()
        self.broken = set(broken)
        self.story: list[str] = []

    def tell(self, event: TabletEvent, *tablets: int) -> list[str]:
        self.story = []
        self.lives.advance([TabletId(tablet) for tablet in tablets], event, self._carry_out)
        return self.story

    def _carry_out(self, effect: TabletEffect, tablets: Sequence[TabletId]) -> list[Happened]:
        states = [self.lives.life(tablet).name for tablet in tablets]
        self.story.append(f"{effect.value}: {', '.join(map(str, tablets))} in {', '.join(dict.fromkeys(states))}")
        if effect in self.broken:
            raise DiskFull("simulated")
        if effect is F.SPLIT:
            return [(tablets, E.SUCCEEDED), ([TabletId(tablets[0] * 10), TabletId(tablets[0] * 10 + 1)], E.TOOK_OVER)]
        if effect is F.JOIN:
            return [(tablets, E.SUCCEEDED), ([TabletId(sum(tablets))], E.TOOK_OVER)]
        return [(tablets, NEXT[effect])] if effect in NEXT else []

    def now(self, *tablets: int) -> list[str]:
        return [self.lives.life(TabletId(tablet)).name for tablet in tablets]


def test_tablets_of_one_request_go_together() -> None:
    hands = Hands()
    assert hands.tell(E.LOAD_ASKED, 1, 2) == [
        "read the config: 1, 2 in READING_CONFIG",
        "replay the log: 1, 2 in REPLAYING",
        "save the config: 1, 2 in SAVING_CONFIG",
        "open the fragments: 1, 2 in OPENING",
    ]
    assert hands.now(1, 2) == ["ACTIVE", "ACTIVE"]
    assert hands.tell(E.UNLOAD_ASKED, 1, 2) == [
        "refuse writes: 1, 2 in FLUSHING",
        "flush the memory: 1, 2 in FLUSHING",
        "save the last config: 1, 2 in SAVING_LAST",
        "drop the tablet: 1, 2 in UNKNOWN",
    ]


def test_tablets_in_different_states_each_go_their_way() -> None:
    hands = Hands(F.FLUSH_MEMORY)
    hands.tell(E.CREATE_ASKED, 1, 2)
    with pytest.raises(DiskFull):
        hands.tell(E.UNLOAD_ASKED, 1)
    assert hands.now(1, 2) == ["FLUSHING", "ACTIVE"]
    hands.broken.clear()
    assert hands.tell(E.UNLOAD_ASKED, 1, 2) == [
        "flush the memory: 1 in FLUSHING",
        "refuse writes: 2 in FLUSHING",
        "flush the memory: 2 in FLUSHING",
        "save the last config: 1 in SAVING_LAST",
        "save the last config: 2 in SAVING_LAST",
        "drop the tablet: 1 in UNKNOWN",
        "drop the tablet: 2 in UNKNOWN",
    ]


def test_the_followers_of_a_split_are_saved_and_its_parent_is_gone() -> None:
    hands = Hands()
    hands.tell(E.CREATE_ASKED, 1, 2)
    assert hands.tell(E.SPLIT_ASKED, 1) == ["split the tablet: 1 in ACTIVE", "save the config: 10, 11 in ACTIVE"]
    assert hands.now(1, 10, 11) == ["UNKNOWN", "ACTIVE", "ACTIVE"]
    assert hands.tell(E.JOIN_ASKED, 10, 11) == ["join the tablets: 10, 11 in ACTIVE", "save the config: 21 in ACTIVE"]
    assert hands.now(2, 10, 11, 21) == ["ACTIVE", "UNKNOWN", "UNKNOWN", "ACTIVE"]
    assert hands.tell(E.DELETE_ASKED, 2, 21, 99) == ["forget the tablet and its config: 2, 21, 99 in UNKNOWN"]


@pytest.mark.parametrize(
    "event, broken, left",
    [
        (E.LOAD_ASKED, F.READ_CONFIG, "UNKNOWN"),
        (E.LOAD_ASKED, F.REPLAY_LOG, "UNKNOWN"),
        (E.LOAD_ASKED, F.SAVE_CONFIG, "UNKNOWN"),
        (E.LOAD_ASKED, F.OPEN_FRAGMENTS, "OPENING"),
        (E.CREATE_ASKED, F.SAVE_CONFIG, "UNKNOWN"),
    ],
)
def test_an_effect_that_fails_is_told_and_asked_for_again(event: TabletEvent, broken: TabletEffect, left: str) -> None:
    hands = Hands(broken)
    with pytest.raises(DiskFull):
        hands.tell(event, 1)
    assert hands.now(1) == [left]
    assert (hands.story[-1] == "drop the tablet: 1 in UNKNOWN") is (left == "UNKNOWN")
    hands.broken.clear()
    hands.tell(event, 1)
    assert hands.now(1) == ["ACTIVE"]


def test_a_request_that_one_tablet_refuses_moves_none() -> None:
    hands = Hands(F.FLUSH_MEMORY)
    hands.tell(E.CREATE_ASKED, 1, 2)
    with pytest.raises(DiskFull):
        hands.tell(E.UNLOAD_ASKED, 2)
    with pytest.raises(NotInThisState, match="'join asked' cannot happen to a tablet in state 6 FLUSHING"):
        hands.tell(E.JOIN_ASKED, 1, 2)
    assert hands.story == []
    assert hands.now(1, 2) == ["ACTIVE", "FLUSHING"]
