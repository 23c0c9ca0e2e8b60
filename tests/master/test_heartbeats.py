"""Heartbeats of shards and what a master makes of them: whatever is lost or late, in the end it knows what there is."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.master.descriptors import Descriptors
from stelae.model.ids import SchemaVersion, TableId, TabletId
from stelae.model.ranges import ALL_ROWS
from stelae.registry.control import SERVING, ReportedTablet
from stelae.registry.masters.heartbeats import (
    CLOCK_OFF_MS_MAX,
    SILENT_S,
    Heartbeat,
    HeartbeatAnswer,
    Registration,
)
from stelae.tserver.heartbeats import HeartbeatWriter, ShardNow
from tests.effort import examples

HOME = Registration("node-id", "127.0.0.1:1")


def reported(tablet: int, version: int = 1) -> ReportedTablet:
    return ReportedTablet(TabletId(tablet), TableId(16), ALL_ROWS, SERVING, SchemaVersion(version))


def now(*tablets: ReportedTablet, wall_ms: int = 0) -> ShardNow:
    return ShardNow(wall_ms, 3, {each.tablet: each for each in tablets})


def writer(incarnation: int = 1) -> HeartbeatWriter:
    return HeartbeatWriter("n/0", incarnation, HOME)


def talk(shard: HeartbeatWriter, master: Descriptors, at: ShardNow, now_s: float = 0.0) -> tuple[Heartbeat, bool]:
    beat = shard.write(at)
    answer, is_back = master.take(beat, now_s, 0)
    shard.take(beat, at, answer)
    return beat, is_back


def test_the_first_heartbeat_tells_everything_and_later_ones_what_changed() -> None:
    shard, master = writer(), Descriptors()
    beat, is_back = talk(shard, master, now(reported(1), reported(2)))
    assert (beat.since, len(beat.changed), beat.registration, is_back) == (None, 2, HOME, True)
    beat, is_back = talk(shard, master, now(reported(1), reported(2)))
    assert (beat.since, beat.changed, beat.gone, beat.registration, is_back) == (1, (), (), None, False)
    beat, _ = talk(shard, master, now(reported(2, version=5), reported(3)))
    assert (beat.since, {each.tablet for each in beat.changed}, beat.gone) == (2, {2, 3}, (1,))
    found = master.of("n/0")
    assert found is not None
    assert found.tablets == {2: reported(2, version=5), 3: reported(3)}
    assert (found.registration, found.catalog) == (HOME, 3)


def test_a_master_that_begins_asks_for_everything() -> None:
    shard = writer()
    talk(shard, Descriptors(), now(reported(1)))
    master = Descriptors()
    beat, is_back = talk(shard, master, now(reported(1)))
    assert (beat.changed, is_back) == ((), False)
    beat, is_back = talk(shard, master, now(reported(1)))
    assert (beat.changed, beat.registration, is_back) == ((reported(1),), HOME, True)


def test_what_is_late_is_dropped() -> None:
    """Report 5 ("creating") that comes after report 6 ("running"), and one of an earlier life."""
    shard, master = writer(incarnation=2), Descriptors()
    late = shard.write(now(reported(1)))
    talk(shard, master, now(reported(1, version=7)))
    old = writer(incarnation=1).write(now())
    for beat in (late, old):
        answer, is_back = master.take(beat, 0.0, 0)
        assert (answer, is_back) == (HeartbeatAnswer(is_late=True), False)
    found = master.of("n/0")
    assert found is not None
    assert found.tablets == {1: reported(1, version=7)}


def test_another_incarnation_is_another_server() -> None:
    master = Descriptors()
    talk(writer(1), master, now(reported(1)))
    beat, is_back = talk(writer(2), master, now(reported(2)))
    assert (beat.number, is_back) == (1, True)
    found = master.of("n/0")
    assert found is not None
    assert found.tablets == {2: reported(2)}


def test_who_is_silent_or_has_a_wrong_clock_gets_no_tablets() -> None:
    master = Descriptors()
    shard, both = writer(), ("n/0", "other/0")
    assert master.placeable(both, 0.0) == both, "of whom nothing was heard in this term yet"
    talk(shard, master, now())
    assert master.placeable(both, SILENT_S) == both
    assert master.placeable(both, SILENT_S + 0.1) == ("other/0",)
    assert master.placeable(("n/0",), SILENT_S + 0.1) == ("n/0",), "rather than none"
    assert [master.silent(at_s) for at_s in (SILENT_S, SILENT_S + 0.1)] == [0, 1]
    beat = shard.write(now(wall_ms=-CLOCK_OFF_MS_MAX - 1))
    answer, _ = master.take(beat, 50.0, 0)
    assert answer.clock_off_ms == -CLOCK_OFF_MS_MAX - 1
    assert master.placeable(("n/0",), 50.0) == ()
    talk(shard, master, now(wall_ms=CLOCK_OFF_MS_MAX), 51.0)
    assert master.placeable(both, 51.0) == both


@settings(max_examples=examples(200))
@given(st.data())
def test_whatever_is_lost_or_comes_twice_the_master_knows_in_the_end(data: st.DataObject) -> None:
    shard, master = writer(), Descriptors()
    sent: list[Heartbeat] = []
    there: dict[TabletId, ReportedTablet] = {}
    for _ in range(data.draw(st.integers(0, 20))):
        tablet = TabletId(data.draw(st.integers(1, 4)))
        if data.draw(st.booleans()):
            there[tablet] = reported(tablet, data.draw(st.integers(1, 3)))
        else:
            there.pop(tablet, None)
        at = now(*there.values())
        beat = shard.write(at)
        sent.append(beat)
        match data.draw(st.sampled_from(["answered", "lost", "answer lost", "master changes", "an old one again"])):
            case "answered":
                shard.take(beat, at, master.take(beat, 0.0, 0)[0])
            case "lost":
                shard.take_failure()
            case "answer lost":
                master.take(beat, 0.0, 0)
                shard.take_failure()
            case "master changes":
                master = Descriptors()
                shard.take(beat, at, master.take(beat, 0.0, 0)[0])
            case _:
                master.take(data.draw(st.sampled_from(sent)), 0.0, 0)
                shard.take(beat, at, master.take(beat, 0.0, 0)[0])
    for _ in range(3):
        talk(shard, master, now(*there.values()))
    found = master.of("n/0")
    assert found is not None
    assert found.is_known
    assert found.tablets == there
