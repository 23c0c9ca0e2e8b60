"""The lives of a tablet as stories, and what holds in all of them."""

from __future__ import annotations

from itertools import product

import pytest

from stelae.tserver.lives import (
    Life,
    NotInThisState,
    RequestKind,
    TabletEffect,
    TabletEvent,
    Treatment,
    step,
    treatment,
)

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


def test_a_whole_life() -> None:
    assert told(*LOAD, *UNLOAD) == [
        "0 load asked -> 1: read the config",
        "1 config read -> 2: replay the log",
        "2 log replayed -> 3: save the config",
        "3 config saved -> 4: serve the requests that wait, open the fragments",
        "4 fragments opened -> 5: serve the requests that wait",
        "5 unload asked -> 6: flush the memory",
        "6 memory flushed -> 7: end the readers, save the last config",
        "7 last config saved -> 0: drop the tablet",
    ]


@pytest.mark.parametrize("done", [1, 2, 3])
def test_a_load_that_fails_before_its_config_is_saved_leaves_nothing(done: int) -> None:
    assert told(*LOAD[:done], E.FAILED)[-1].endswith("-> 0: refuse the requests that wait, drop the tablet")


def test_what_fails_after_the_config_is_saved_is_tried_again() -> None:
    assert told(*LOAD[:4], E.FAILED, E.FRAGMENTS_OPENED)[-2:] == [
        "4 failed -> 4: open the fragments",
        "4 fragments opened -> 5: serve the requests that wait",
    ]
    assert told(*LOAD, E.UNLOAD_ASKED, E.FAILED, E.MEMORY_FLUSHED, E.FAILED)[-3:] == [
        "6 failed -> 6: flush the memory",
        "6 memory flushed -> 7: end the readers, save the last config",
        "7 failed -> 7: save the last config",
    ]


def test_asking_again_does_nothing() -> None:
    assert told(E.LOAD_ASKED, E.LOAD_ASKED)[-1] == "1 load asked -> 1: -"
    assert told(*LOAD, E.LOAD_ASKED)[-1] == "5 load asked -> 5: -"
    assert told(*LOAD, E.UNLOAD_ASKED, E.UNLOAD_ASKED)[-1] == "6 unload asked -> 6: -"
    assert told(E.UNLOAD_ASKED) == ["0 unload asked -> 0: -"]


def test_a_load_is_given_up_while_nobody_has_written() -> None:
    assert told(*LOAD[:2], E.UNLOAD_ASKED)[-1] == "2 unload asked -> 0: refuse the requests that wait, drop the tablet"


def test_every_event_is_taken_or_refused_in_words_in_every_state() -> None:
    refused = 0
    for life, event in product(Life, E):
        try:
            next_ = step(life, event)
        except NotInThisState as error:
            refused += 1
            assert event.value in str(error)
            assert life.name in str(error)
        else:
            assert next_.life is life or next_.effects
            assert abs(next_.life - life) <= 1 or next_.life is Life.UNKNOWN
    assert refused == 48


def test_what_requests_get() -> None:
    shown = {life: tuple(treatment(life, kind).value for kind in RequestKind) for life in Life}
    assert shown == {
        Life.UNKNOWN: ("refused", "refused"),
        Life.READING_CONFIG: ("deferred", "deferred"),
        Life.REPLAYING: ("deferred", "deferred"),
        Life.SAVING_CONFIG: ("deferred", "deferred"),
        Life.OPENING: ("deferred", "served"),
        Life.ACTIVE: ("served", "served"),
        Life.FLUSHING: ("served", "refused"),
        Life.SAVING_LAST: ("refused", "refused"),
    }


def test_nothing_that_waits_is_forgotten() -> None:
    """Whenever requests wait and the next state does not make them wait, an effect serves or refuses them."""
    for life, event in product(Life, E):
        try:
            next_ = step(life, event)
        except NotInThisState:
            continue
        for kind in RequestKind:
            waited = treatment(life, kind) is Treatment.DEFERRED
            if waited and treatment(next_.life, kind) is Treatment.REFUSED:
                assert F.REFUSE_WAITING in next_.effects
            if waited and treatment(next_.life, kind) is Treatment.SERVED:
                assert F.SERVE_WAITING in next_.effects
