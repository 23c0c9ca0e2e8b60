"""What is to be done about tablets, as pure functions: whatever is recorded and reported, all is brought in line."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.catalog.commands.tables import CreateTable, DropTable, ForgetTable, TableName
from stelae.catalog.decide import Command
from stelae.catalog.entries import Update, apply_update
from stelae.catalog.value import Catalog, CatalogVersion, empty_catalog
from stelae.master.plan import Corrections, behind, corrections, forgettable, in_phase, overdue, prepared
from stelae.model.hybrid import pack
from stelae.model.ids import SchemaVersion, TableId, TabletId, Txn
from stelae.model.ranges import RowRange, check_cover
from stelae.registry.control import SERVING, ReportedReplica, ReportedTablet, TabletReport, cut_ranges
from stelae.registry.tablet_records import TabletPhase, TabletRecord
from stelae.tserver.lives import Life
from tests.effort import examples
from tests.master.servers import SCHEMA

NOW_MS = 1_000_000
NEVER_HEARD_OF = TableId(999)


def catalog_of(names: list[str], dropped: list[str], forgotten: str) -> tuple[Catalog, TableId]:
    """And the id of the table that was forgotten."""
    catalog = empty_catalog()

    def carry_out(*commands: Command) -> None:
        nonlocal catalog
        for command in commands:
            number = catalog.version + 1
            update = Update(CatalogVersion(number), Txn(pack(NOW_MS) + number), b"", "", command.decide(catalog))
            catalog = apply_update(catalog, update)

    carry_out(CreateTable(TableName.parse(forgotten), SCHEMA))
    (gone,) = catalog.tables
    carry_out(DropTable(TableName.parse(forgotten)), ForgetTable(gone))
    carry_out(*(CreateTable(TableName.parse(name), SCHEMA) for name in (*names, *dropped)))
    carry_out(*(DropTable(TableName.parse(name)) for name in dropped))
    return catalog, gone


CATALOG, UNKNOWN = catalog_of(["a", "b"], ["c"], "d")
LIVE, DROPPED = sorted(CATALOG.tables), sorted(CATALOG.dropped)


@dataclass(frozen=True)
class Found:
    records: list[TabletRecord]
    report: TabletReport


def reported(tablet: int, table: TableId, rows: RowRange, life: int = SERVING) -> ReportedTablet:
    return ReportedTablet(TabletId(tablet), table, rows, life, SchemaVersion(1))


def recorded(tablet: int, table: TableId, rows: RowRange, phase: TabletPhase) -> TabletRecord:
    return TabletRecord(TabletId(tablet), table, rows, phase, "s1", 5)


@st.composite
def crashes(draw: st.DrawFn) -> Found:
    """What a crash can leave: each table as one of its stories does."""
    ids = iter(range(16, 10_000))
    records: list[TabletRecord] = []
    tablets: list[ReportedTablet] = []
    cuts = st.lists(st.sampled_from([b"b", b"d", b"f", b"h"]), unique=True).map(sorted)
    for table in (*LIVE, *DROPPED, UNKNOWN):
        ranges = cut_ranges(draw(cuts))  # type: ignore[arg-type]
        for rows in ranges:
            tablet = next(ids)
            story = draw(st.sampled_from(["prepared", "creating", "made", "running", "replaced", "split", "joined"]))
            match story:
                case "prepared":
                    records.append(recorded(tablet, table, rows, TabletPhase.PREPARING))
                case "creating" | "made":
                    records.append(recorded(tablet, table, rows, TabletPhase.CREATING))
                    tablets += [reported(tablet, table, rows)] if story == "made" else []
                case "running":
                    records.append(recorded(tablet, table, rows, TabletPhase.RUNNING))
                    tablets.append(reported(tablet, table, rows, draw(st.sampled_from([SERVING, 6]))))
                case "replaced":
                    records.append(recorded(tablet, table, rows, TabletPhase.REPLACED))
                    records.append(recorded(next(ids), table, rows, TabletPhase.PREPARING))
                    tablets += [reported(tablet, table, rows)] if draw(st.booleans()) else []
                case "split":
                    # Of the two that take over the first was saved, or both; the old one keeps the rest, or goes.
                    records.append(recorded(tablet, table, rows, TabletPhase.RUNNING))
                    low, high = rows.split(rows.start + b"1")
                    tablets.append(reported(next(ids), table, low))
                    tablets.append(reported(tablet if draw(st.booleans()) else next(ids), table, high))
                case _:
                    low, high = rows.split(rows.start + b"1")
                    records.append(recorded(tablet, table, low, TabletPhase.RUNNING))
                    records.append(recorded(next(ids), table, high, TabletPhase.RUNNING))
                    tablets.append(reported(next(ids), table, rows))
    return Found(records, TabletReport("s1", tuple(tablets), is_full=True))


def carried_out(found: Found, settling: Corrections) -> Found:
    """Records and server afterwards, if nothing goes wrong."""
    gone = {record.tablet for record in settling.removed}
    records = {r.tablet: r for r in found.records if r.tablet not in gone}
    records |= {r.tablet: r for r in settling.puts}
    made = in_phase(settling.missing, TabletPhase.RUNNING, NOW_MS)
    records |= {r.tablet: r for r in made}
    kept = [each for each in found.report.tablets if each.tablet not in settling.unwanted]
    tablets = [*kept, *(reported(r.tablet, r.table, r.rows) for r in made)]
    served = [
        reported(each.tablet, each.table, each.rows) if each.table in settling.unserved else each for each in tablets
    ]
    return Found(list(records.values()), TabletReport("s1", tuple(served), is_full=True))


@settings(max_examples=examples(200))
@given(crashes())
def test_settling_brings_everything_in_line(found: Found) -> None:
    settling = corrections(found.records, found.report, CATALOG, NOW_MS)
    after = carried_out(found, settling)
    here = {(each.tablet, each.table, each.rows) for each in after.report.tablets}
    for table in LIVE:
        mine = [record for record in after.records if record.table == table]
        check_cover(sorted((r.rows for r in mine if r.phase is TabletPhase.RUNNING), key=lambda rows: rows.start))
        assert {(r.tablet, r.table, r.rows) for r in mine if r.phase is TabletPhase.RUNNING} <= here
    assert {record.table for record in after.records} <= {*LIVE, *DROPPED}
    assert {each.table for each in after.report.tablets} <= {*LIVE, *DROPPED}
    assert all(each.life == SERVING for each in after.report.tablets if each.table in LIVE)


@settings(max_examples=examples(200))
@given(crashes())
def test_settling_twice_does_nothing_the_second_time(found: Found) -> None:
    after = carried_out(found, corrections(found.records, found.report, CATALOG, NOW_MS))
    again = corrections(after.records, after.report, CATALOG, NOW_MS + 5)
    assert (again.puts, again.missing, again.unwanted, again.unserved) == ((), (), (), ())
    assert all(record.phase is TabletPhase.REPLACED for record in again.removed)


@settings(max_examples=examples(200))
@given(crashes())
def test_a_tablet_with_data_is_never_deleted_nor_made_anew(found: Found) -> None:
    settling = corrections(found.records, found.report, CATALOG, NOW_MS)
    known = {record.tablet: record for record in found.records}
    here = {each.tablet: each for each in found.report.tablets}
    for tablet in settling.unwanted:
        table = here[tablet].table if tablet in here else known[tablet].table
        assert table == UNKNOWN or known[tablet].phase is TabletPhase.REPLACED
    for record in settling.missing:
        assert record.phase in (TabletPhase.PREPARING, TabletPhase.CREATING)
        assert record.tablet not in here
        assert record.table in LIVE
    for record in settling.removed:
        assert record.table == UNKNOWN or record.tablet not in here or record.tablet in settling.unwanted


def test_one_that_ran_and_is_not_served_is_loaded_and_never_created() -> None:
    record = recorded(20, LIVE[0], RowRange(b"", None), TabletPhase.RUNNING)
    settling = corrections([record], TabletReport("s1", ()), CATALOG, NOW_MS)
    assert settling == Corrections(unserved=(LIVE[0],))


def test_what_somebody_asked_for_stays_so() -> None:
    rows, before = RowRange(b"", None), recorded(20, LIVE[0], RowRange(b"", b"z"), TabletPhase.RUNNING)
    record = msgspec.structs.replace(before, is_asked=True)
    settling = corrections([record], TabletReport("s1", (reported(20, LIVE[0], rows),)), CATALOG, NOW_MS)
    (put,) = settling.puts
    assert (put.rows, put.is_asked) == (rows, True)


def test_serving_is_the_number_of_an_active_tablet() -> None:
    assert int(Life.ACTIVE) == SERVING


def test_phases_begin_now() -> None:
    ids = [TabletId(20), TabletId(21)]
    records = prepared(ids, LIVE[0], cut_ranges([b"m"]), 7)  # type: ignore[list-item]
    assert [(r.tablet, r.phase, r.since_ms, r.server) for r in records] == [(id_, 1, 7, "") for id_ in ids]
    creating = in_phase(records, TabletPhase.CREATING, 9)
    assert [(r.tablet, r.phase, r.since_ms, r.server) for r in creating] == [(id_, 2, 9, "") for id_ in ids]
    assert overdue([*records, *creating], 19, 10) == creating
    assert overdue(creating, 18, 10) == []


def test_who_is_behind() -> None:
    rows = cut_ranges([b"m"])  # type: ignore[list-item]
    tablets = (reported(20, LIVE[0], rows[0]), reported(21, LIVE[1], rows[0]), reported(22, DROPPED[0], rows[0]))
    newest = {LIVE[0]: SchemaVersion(1), LIVE[1]: SchemaVersion(2)}
    assert behind(TabletReport("s1", tablets), newest) == (LIVE[1],)


def test_nothing_is_done_about_tablets_of_a_table_that_was_never_heard_of() -> None:
    """T47: the catalog of whoever asks may be the one that is behind."""
    rows = cut_ranges([])[0]
    report = TabletReport("s1", (reported(77, NEVER_HEARD_OF, rows),), is_full=True)
    assert corrections([], report, CATALOG, NOW_MS) == Corrections()


def test_a_replaced_tablet_that_is_not_there_is_deleted_before_its_record_goes() -> None:
    """The request to create it may come late: then it must not be made, since nobody would know of it."""
    record = recorded(20, LIVE[0], RowRange(b"", None), TabletPhase.REPLACED)
    settling = corrections([record], TabletReport("s1", ()), CATALOG, NOW_MS)
    assert (settling.unwanted, settling.removed) == ((record.tablet,), (record,))


def test_a_replica_that_no_record_names_is_not_taken_for_the_half_of_a_split() -> None:
    each = reported(20, LIVE[0], RowRange(b"", None))
    copied = TabletReport("s1", (each,), replicas=(ReportedReplica(each.tablet, each.table, 1, (1, 1)),))
    assert corrections([], copied, CATALOG, NOW_MS) == Corrections()
    assert corrections([], TabletReport("s1", (each,)), CATALOG, NOW_MS).puts, "a server that splits by itself"


def test_grace() -> None:
    dropped_ms = NOW_MS
    assert forgettable(CATALOG, dropped_ms + 9, 10) == ()
    assert forgettable(CATALOG, dropped_ms + 10, 10) == tuple(DROPPED)
    assert forgettable(CATALOG, dropped_ms, 0) == tuple(DROPPED)
