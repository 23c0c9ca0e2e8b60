"""A master against a server that loses requests and answers, and a metastore that refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec
import pytest
from msgspec.structs import replace

from stelae.catalog.commands.tables import TableName
from stelae.master.servers import OneServer
from stelae.model.errors import (
    AlreadyExists,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    Unavailable,
    UnknownOutcome,
)
from stelae.model.ids import Row, TableId, TabletId
from stelae.model.ranges import check_cover
from stelae.registry import tablet_records
from stelae.registry.control import (
    AlterTable,
    CreateTablets,
    DeleteTablets,
    JoinTablets,
    LoadTable,
    NewTablet,
    SplitTablet,
    UnloadTable,
)
from stelae.registry.tablet_records import TabletPhase, TabletRecord, read_tablets
from stelae.service.deadlines import Deadline
from stelae.service.spaces import AlterZoneAsk, CreateNamespaceAsk, CreateZoneAsk, DropZoneAsk
from stelae.service.tables import AlterAsk
from tests.master.covers import gaps
from tests.master.servers import SETTINGS, Office, named

T = TableName.parse("t")


@pytest.fixture
def office() -> Iterator[Office]:
    made = Office().start()
    yield made
    made.close()


def written(office: Office) -> list[TabletRecord]:
    return office.run(read_tablets(office.store))


def check(office: Office) -> None:
    """Records, maps and server agree; all tables are covered by tablets that run."""
    records = written(office)
    assert sorted(office.master.maps.all(), key=lambda r: (r.table, r.tablet)) == records
    assert gaps(office.master, office.catalog) == []
    for table in office.catalog.latest.tables:
        mine = {r.tablet: r.rows for r in records if r.table == table and r.phase is not TabletPhase.REPLACED}
        assert mine == {each.tablet: each.rows for each in office.server.tablets.values() if each.table == table}
        assert {r.phase for r in records if r.tablet in mine} == {TabletPhase.RUNNING}
    known = {*office.catalog.latest.tables, *office.catalog.latest.dropped}
    assert {record.table for record in records} <= known
    assert {each.table for each in office.server.tablets.values()} <= set(office.catalog.latest.tables)


def phases(office: Office) -> list[str]:
    return [record.phase.name for record in written(office)]


# -- creating


def test_a_table_is_made_of_tablets_that_run(office: Office) -> None:
    table = office.create("t", b"g", b"p")
    assert [record.rows.start for record in office.master.maps.of_table(table)] == [b"", b"g", b"p"]
    assert office.master.maps.at(table, b"h").rows.start == b"g"
    with pytest.raises(NotFound, match="no tablet of table 99"):
        office.master.maps.at(TableId(99), b"h")
    check(office)


@pytest.mark.parametrize("mood", ["lost", "silent", "unanswered", "hung"])
def test_a_tablet_that_is_not_reported_in_time_is_replaced(office: Office, mood: str) -> None:
    office.server.moods = [mood]
    table = office.create("t", b"m")
    assert sorted(phases(office)) == ["REPLACED", "REPLACED", "RUNNING", "RUNNING"]
    assert [record.rows.start for record in office.master.maps.of_table(table)] == [b"", b"m"]
    check(office)
    office.restart()
    assert phases(office) == ["RUNNING", "RUNNING"]
    check(office)


def test_a_replaced_tablet_is_deleted_when_it_is_reported_later(office: Office) -> None:
    office.server.moods = ["silent"]
    table = office.create("t")
    (late,) = [record for record in written(office) if record.phase is TabletPhase.REPLACED]
    running = office.server.tablets
    shown = office.server.fresh(late.tablet, table, late.rows)
    office.server.tablets = {**running, late.tablet: shown}
    office.restart()
    assert DeleteTablets((late.tablet,)) in office.server.asked
    assert office.server.tablets == running
    check(office)


def test_only_those_that_are_missing_are_replaced(office: Office) -> None:
    plain = office.server._done
    office.server._done = lambda request: plain(request)[:1]  # type: ignore[method-assign]
    office.create("t", b"d", b"m")
    office.server._done = plain  # type: ignore[method-assign]
    check(office)
    creates = [len(request.tablets) for request in office.server.asked if isinstance(request, CreateTablets)]
    assert creates == [3, 2, 1]


def test_a_server_that_never_answers_is_given_up_and_tended_later(office: Office) -> None:
    office.server.moods = ["lost"] * SETTINGS.attempts_max
    with pytest.raises(UnknownOutcome, match=r"table 't' is created, .*: 2 tablets are not running yet"):
        office.create("t", b"m")
    assert office.master.has_work
    office.run(office.master.tend())
    check(office)
    with pytest.raises(AlreadyExists):
        office.create("t")


def test_a_tablet_long_asked_for_is_overdue(office: Office) -> None:
    office.create("t")
    (record,) = written(office)
    waiting = tablet_records.TabletRecord(
        TabletId(900), record.table, record.rows, TabletPhase.CREATING, "s1", office.clock.wall_ms()
    )
    office.run(office.master._records.write([waiting], [record]))
    office.server.tablets.clear()
    office.run(office.master.tend())
    assert phases(office) == ["CREATING"]
    office.clock.step_wall_ms(int(SETTINGS.assignment_timeout_s * 1_000))
    office.run(office.master.tend())
    assert sorted(phases(office)) == ["REPLACED", "RUNNING"]
    check(office)


def test_what_the_catalog_refuses_leaves_no_records(office: Office) -> None:
    office.create("t", b"m")
    before = written(office)
    revision = office.store._state.revision
    with pytest.raises(AlreadyExists):
        office.create("t", b"m", b"z")
    assert office.store._state.revision == revision, "what is refused at once writes nothing"
    assert written(office) == before

    async def refuse(*_: object, **__: object) -> None:
        raise AlreadyExists("another process was faster")

    office.catalog.execute = refuse  # type: ignore[assignment]
    with pytest.raises(AlreadyExists, match="faster"):
        office.create("u", b"m", b"z")
    assert written(office) == before
    assert office.master.maps.all() == tuple(before)


@pytest.mark.parametrize("cuts", [[b"b", b"a"], [b"a", b"a"], [b""]])
def test_cuts_that_do_not_ascend_are_refused(office: Office, cuts: list[bytes]) -> None:
    with pytest.raises(InvalidArgument, match="splits must ascend"):
        office.create("t", *cuts)
    assert written(office) == []


def test_creating_what_exists_changes_nothing_if_it_may(office: Office) -> None:
    table = office.create("t")
    again = replace(named("t"), if_not_exists=True)
    assert office.run(office.master.create(again, [])).id == table
    check(office)


def test_another_process_took_the_id(office: Office) -> None:
    """The tablets go to the table that was made, and nothing is left of the one that was expected."""
    plain = office.catalog.execute

    async def slower(*commands: object, **_: object) -> object:
        office.catalog.execute = plain  # type: ignore[method-assign]
        await plain(named("theirs"))
        return await plain(*commands)  # type: ignore[arg-type]

    office.catalog.execute = slower  # type: ignore[assignment]
    table = office.create("t", b"m")
    mine = office.master.maps.of_table(table)
    check_cover([record.rows for record in mine])
    assert {record.table for record in written(office)} == {table}


# -- lost answers


def test_a_lost_answer_of_the_catalog_is_looked_for(office: Office) -> None:
    office.run(tablet_records.take_tablet_ids(office.store, 1))
    office.store.faults.arm("answer", UnknownOutcome, 3)  # ids, records, then the catalog
    office.create("t", b"m")
    check(office)


@pytest.mark.parametrize("is_made", [True, False])
def test_an_unknown_outcome_is_settled_when_it_is_tended(office: Office, is_made: bool) -> None:
    """Whether the table is there or not, the next one gets tablets of its own, and nothing overlaps."""
    plain = office.catalog.execute

    async def lost(*commands: object, **_: object) -> object:
        office.catalog.execute = plain  # type: ignore[method-assign]
        if is_made:
            await plain(*commands)  # type: ignore[arg-type]
        raise UnknownOutcome("nobody can tell")

    office.catalog.execute = lost  # type: ignore[assignment]
    with pytest.raises(UnknownOutcome):
        office.create("t", b"m")
    office.create("u", b"k")
    office.run(office.master.tend())
    check(office)
    assert len(office.catalog.latest.tables) == 1 + is_made
    office.restart()
    check(office)


@pytest.mark.parametrize("kind", ["txn", "answer"])
@pytest.mark.parametrize("nth", range(1, 6))
def test_maps_never_show_what_is_not_written(office: Office, kind: str, nth: int) -> None:
    """Each transaction of a creation fails in turn: the maps are what the metastore has, or older; never newer. All is
    brought in line when it is tended, and so by a restart."""
    office.create("first")
    office.store.faults.arm(kind, Unavailable if kind == "txn" else UnknownOutcome, nth)
    try:
        office.create("t", b"m")
    except (Unavailable, UnknownOutcome):
        before = {record.tablet: record for record in written(office)}
        for record in office.master.maps.all():
            assert record.tablet in before
            assert record.phase <= before[record.tablet].phase
    office.create("second")
    office.run(office.master.tend())
    check(office)
    office.restart()
    check(office)


def test_pairs_of_replaced_and_following_tablets_are_never_parted(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of many tablets are written in pieces: a crash between pieces must not leave a gap."""
    monkeypatch.setattr(tablet_records, "_CHANGES_MAX", 4)
    cuts = [b"%02d" % number for number in range(1, 10)]
    office.server.moods = ["silent"]
    office.store.faults.arm("txn", Unavailable, 1 + 3 + 1 + 3 + 1 + 2)
    with pytest.raises(UnknownOutcome):
        office.create("t", *cuts)
    assert "REPLACED" in phases(office), "the fault came in the midst of replacing"
    office.server.tablets.clear()
    office.restart()
    check(office)


# -- changing


def test_an_alteration_that_did_not_arrive_is_sent_again(office: Office) -> None:
    table = office.create("t", b"m")
    office.server.minds, office.server.moods = AlterTable, ["lost"]
    with pytest.raises(UnknownOutcome, match="table 't' is altered"):
        office.run(office.master.alter(T, AlterAsk(add={"data": {"b": "int32"}})))
    newest = office.catalog.latest.tables[table].schema.version
    assert {each.schema_version for each in office.server.tablets.values()} != {newest}
    assert office.master.has_work
    office.run(office.master.tend())
    assert {each.schema_version for each in office.server.tablets.values()} == {newest}
    assert not office.master.has_work


def test_whoever_reports_an_older_schema_is_asked(office: Office) -> None:
    office.create("t")
    (each,) = office.server.tablets.values()
    office.server.tablets[each.tablet] = msgspec.structs.replace(each, schema_version=0)
    office.restart()
    assert office.server.asked[-1] == AlterTable(each.table)


def test_a_change_without_changes_asks_nobody(office: Office) -> None:
    office.create("t")
    asked = len(office.server.asked)
    office.run(office.master.alter(T, AlterAsk()))
    office.run(office.master.alter(T, AlterAsk(properties={"comment": "words"})))
    assert len(office.server.asked) == asked


@pytest.mark.parametrize("mood", ["lost", "unanswered"])
@pytest.mark.parametrize("what", [SplitTablet, JoinTablets])
def test_a_split_or_join_with_a_lost_answer(office: Office, what: type, mood: str) -> None:
    table = office.create("t", b"m")
    left, right = (record.tablet for record in office.master.maps.of_table(table))
    office.server.minds, office.server.moods = what, [mood]
    job = (
        office.master.split(left, Row(b"c")) if what is SplitTablet else office.master.join(left, right, is_asked=True)
    )
    with pytest.raises(Unavailable):
        office.run(job)
    office.create("u")
    office.run(office.master.tend())
    check(office)
    count = len(office.master.maps.of_table(table))
    assert count == (2 if mood == "lost" else 3 if what is SplitTablet else 1)


def test_a_split_whose_record_is_not_written(office: Office) -> None:
    table = office.create("t")
    (record,) = office.master.maps.of_table(table)
    office.store.faults.arm("txn", Unavailable, 2)
    with pytest.raises(UnknownOutcome, match=f"tablet {record.tablet} is split"):
        office.run(office.master.split(record.tablet, Row(b"m")))
    assert office.master.maps.of_table(table) == (record,)
    office.run(office.master.tend())
    check(office)
    assert len(office.master.maps.of_table(table)) == 2


def test_what_cannot_be_split_or_joined(office: Office) -> None:
    table, other = office.create("t", b"g", b"p"), office.create("u")
    first, _, third = office.master.maps.of_table(table)
    (alone,) = office.master.maps.of_table(other)
    for at in (b"", b"g", b"x"):
        with pytest.raises(InvalidArgument, match="cannot be split at row"):
            office.run(office.master.split(first.tablet, Row(at)))
    for pair in ((first, third), (first, alone)):
        with pytest.raises(InvalidArgument, match="no neighbours"):
            office.run(office.master.join(pair[0].tablet, pair[1].tablet, is_asked=True))
    with pytest.raises(NotFound, match="no tablet 999"):
        office.run(office.master.split(TabletId(999), Row(b"c")))
    assert not office.master.has_work, "a refusal leaves nobody in doubt"


def test_tablets_that_somebody_asked_for_are_joined_by_nobody_else(office: Office) -> None:
    table = office.create("t")
    (whole,) = office.master.maps.of_table(table)
    office.run(office.master.split(whole.tablet, Row(b"m"), is_asked=True))
    left, right = (record.tablet for record in office.master.maps.of_table(table))
    office.run(office.master.join(left, right))
    assert len(office.master.maps.of_table(table)) == 2
    office.run(office.master.join(left, right, is_asked=True))
    assert len(office.master.maps.of_table(table)) == 1


# -- dropping


def test_a_dropped_table_is_recalled_under_a_new_name_if_its_own_is_taken(office: Office) -> None:
    old = office.create("t", b"m")
    office.run(office.master.drop(T, if_exists=False))
    assert office.server.asked[-1] == UnloadTable(old)
    new = office.create("t")
    with pytest.raises(AlreadyExists):
        office.run(office.master.recall(T, None))
    recalled = office.run(office.master.recall(T, "again"))
    assert (recalled.id, recalled.name) == (old, "again")
    assert isinstance(office.server.asked[-1], LoadTable)
    assert set(office.catalog.latest.tables) == {old, new}
    check(office)


def test_a_table_is_forgotten_with_all_that_was_its_own_when_its_grace_is_over(office: Office) -> None:
    table, kept = office.create("t", b"m"), office.create("u")
    office.run(office.master.drop(T, if_exists=False))
    office.run(office.master.drop(T, if_exists=True))
    with pytest.raises(NotFound):
        office.run(office.master.drop(T, if_exists=False))
    office.clock.step_wall_ms(int(SETTINGS.grace_s * 1_000) - 10_000)
    assert office.run(office.master.clean()) == ()
    assert table in office.catalog.latest.dropped
    office.clock.step_wall_ms(10_000)
    assert office.run(office.master.clean()) == (table,)
    with pytest.raises(NotFound, match="recalled"):
        office.run(office.master.recall(T, None))
    assert {record.table for record in written(office)} == {kept}
    assert office.server.unloaded == {}
    check(office)


@pytest.mark.parametrize("mood", ["lost", "unanswered"])
@pytest.mark.parametrize("what", [UnloadTable, LoadTable, DeleteTablets])
def test_dropping_and_recalling_with_a_lost_answer(office: Office, what: type, mood: str) -> None:
    """No tablet that ran is ever made anew: its data would be gone."""
    table = office.create("t", b"m")
    before = {record.tablet for record in office.master.maps.of_table(table)}
    office.server.minds, office.server.moods = what, [mood]
    creations = sum(isinstance(request, CreateTablets) for request in office.server.asked)
    failures = 0
    for is_recalled in (False, True, False):
        try:
            office.run(office.master.recall(T, None) if is_recalled else office.master.drop(T, if_exists=True))
        except UnknownOutcome:
            failures += 1
        if what is not DeleteTablets:
            office.run(office.master.tend())
            check(office)
    office.clock.step_wall_ms(int(SETTINGS.grace_s * 1_000))
    office.run(office.master.clean())
    assert bool(written(office)) == (what is DeleteTablets)
    office.run(office.master.tend())
    assert failures == (what is LoadTable)
    assert sum(isinstance(request, CreateTablets) for request in office.server.asked) == creations
    assert (office.server.tablets, office.server.unloaded, written(office)) == ({}, {}, [])
    assert before.isdisjoint(record.tablet for record in office.master.maps.all())


def test_a_table_is_dropped_without_a_server_that_is_silent_which_hears_of_it_later(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    office.create("t", b"m")
    office.server.minds, office.server.moods = UnloadTable, ["hung"] * 3
    monkeypatch.setattr(OneServer, "is_silent", lambda *_: True)
    office.run(office.master.drop(T, if_exists=False))
    office.run(office.master.tend())
    assert not office.catalog.latest.tables
    assert office.server.tablets
    assert not any(isinstance(each, UnloadTable) for each in office.server.asked)
    monkeypatch.setattr(OneServer, "is_silent", lambda *_: False)
    office.server.moods = []
    office.run(office.master.tend())
    assert office.server.tablets == {}
    check(office)


def test_a_table_is_dropped_though_a_server_works_at_it_without_an_end(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    office.create("t", b"m")
    office.server.minds, office.server.moods = UnloadTable, ["hung"]
    monkeypatch.setattr(OneServer, "patience_s", 3.0)
    begun_s = office.clock.monotonic_s()
    office.run(office.master.drop(T, if_exists=False))
    assert 3.0 <= office.clock.monotonic_s() - begun_s < 4.0
    office.run(office.master.tend())
    assert office.server.tablets == {}
    check(office)


def test_a_lost_tablet_that_ran_is_not_made_anew(office: Office) -> None:
    """An empty one in its place would hide that its data is gone."""
    table = office.create("t", b"m")
    gone = office.master.maps.of_table(table)[0]
    del office.server.tablets[gone.tablet]
    office.restart()
    assert gone.tablet not in office.server.tablets
    assert office.server.asked[-1] == LoadTable(table)
    assert gone in written(office)


def test_a_start_that_a_full_disk_disturbs_goes_on_later(office: Office) -> None:
    office.create("t")
    office.run(office.master.drop(T, if_exists=False))
    office.server.tablets, office.server.unloaded = office.server.unloaded, {}
    office.server.minds, office.server.moods = UnloadTable, ["lost"]
    office.restart()
    assert office.master.has_work
    assert office.server.tablets
    office.run(office.master.tend())
    assert office.server.tablets == {}
    check(office)


def test_the_script_refuses_what_a_real_server_would(office: Office) -> None:
    left, _ = office.master.maps.of_table(office.create("t", b"m"))
    with pytest.raises(InvalidArgument, match="overlap"):
        office.server._done(CreateTablets((NewTablet(TabletId(5), left.table, left.rows),)))


# -- namespaces and zones


def test_namespaces_and_zones_change_without_asking_a_server(office: Office) -> None:
    office.create("t")
    asked = len(office.server.asked)
    office.run(office.master.change_spaces(CreateNamespaceAsk("sales")))
    office.run(office.master.change_spaces(CreateZoneAsk("fast", racks=("a",), is_default=True)))
    catalog = office.run(office.master.change_spaces(AlterZoneAsk("fast", tablet_bytes=2**21, rename="quick")))
    assert catalog == office.catalog.latest
    assert catalog.namespace("sales").name == "sales"
    zone = catalog.zone("quick")
    assert (zone.racks, zone.tablet_bytes, catalog.default_zone) == (("a",), 2**21, zone.id)
    assert len(office.server.asked) == asked
    check(office)


@pytest.mark.parametrize("ask", [CreateZoneAsk("z", replicas=2), AlterZoneAsk("default", replicas=3)])
def test_one_server_has_one_replica(office: Office, ask: CreateZoneAsk | AlterZoneAsk) -> None:
    with pytest.raises(InvalidArgument, match="a store of one process has one replica"):
        office.run(office.master.change_spaces(ask))
    assert office.catalog.latest.version == 0


def test_a_change_of_zones_that_is_refused_leaves_no_doubt(office: Office) -> None:
    with pytest.raises(NotFound, match="no zone 'fast'"):
        office.run(office.master.change_spaces(DropZoneAsk("fast")))
    assert not office.master.has_work


def test_a_change_waits_for_its_turn_until_its_deadline_and_other_tables_do_not(office: Office) -> None:
    office.create("t")
    office.create("other")
    office.server.minds, office.server.moods = AlterTable, ["hung"]

    async def story() -> None:
        first = asyncio.create_task(office.master.alter(T, AlterAsk(add={"data": {"b": "int32"}})))
        while not isinstance(office.server.asked[-1], AlterTable):
            await asyncio.sleep(0.001)
        begun_s = office.clock.monotonic_s()
        with pytest.raises(DeadlineExceeded, match="another change"):
            await office.master.alter(T, AlterAsk(rename="u"), deadline=Deadline(office.clock, 1.0))
        assert office.clock.monotonic_s() - begun_s == pytest.approx(1.0)
        other = TableName.parse("other")
        await office.master.alter(other, AlterAsk(add={"data": {"b": "int32"}}), deadline=Deadline(office.clock, 1.0))
        await office.master.drop(other, if_exists=False, deadline=Deadline(office.clock, 1.0))
        await office.master.create(named("third"), [], deadline=Deadline(office.clock, 1.0))
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await office.master.alter(T, AlterAsk(rename="u"), deadline=Deadline(office.clock, 1.0))

    office.run(story())
