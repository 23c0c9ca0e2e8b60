"""Jobs at a store: what is held stays, what is loaded is there whole and once, whatever crashes in between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import pytest

from stelae.assembly.embedded import EmbeddedStore
from stelae.format.fragment.footer import FragmentFile
from stelae.model.errors import (
    Conflict,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    SnapshotTooOld,
    StelaeError,
    Unavailable,
)
from stelae.model.ids import Txn
from stelae.model.predicate.plan import ScanPredicate
from stelae.service.tables import AlterAsk
from stelae.service.tickets import (
    STAGED_MS_MAX,
    STAGING,
    CompactionTicket,
    HeldTable,
    LoadedFile,
    overlay_directory,
    staging_prefix,
)
from stelae.storage.offline.merges import merge_files
from stelae.storage.offline.scans import scan_part
from stelae.storage.offline.tablets import HeldTablet, open_fragments
from stelae.tserver.jobs.loads import UNDER_WAY_MS
from stelae.tserver.keeper import FILES_URGENT
from tests.assembly.scripts import (
    PlainStore,
    PlainTable,
    Step,
    alter,
    check_whole,
    create,
    drop,
    id_of,
    keep,
    put,
    row,
    rows_of,
    truncate,
    upkeep,
    work_on,
)
from tests.assembly.test_lives_of_tables import Crash, run_script
from tests.assembly.worlds import Machine
from tests.effort import tries
from tests.tserver.loading import written

HOUR_S = 3_600

# -- jobs, as other processes do them: by the ticket and the files alone


def load(machine: Machine, store: EmbeddedStore, name: str, job: str, values: dict[int, int], **options: Any) -> Txn:
    ticket = store.begin_load(id_of(store, name), job)
    if ticket.committed is not None:
        return ticket.committed
    half = sorted(values)[len(values) // 2]
    parts = [{k: v for k, v in values.items() if (k < half) is low} for low in (True, False)]
    files = [written(machine.blobs, ticket, f"{at:02x}", part) for at, part in enumerate(parts) if part]
    return store.commit_load(ticket.ticket, files, **options)


def held_rows(machine: Machine, held: HeldTable) -> dict[int, Any]:
    fragments = open_fragments(machine.blobs)
    found: dict[int, Any] = {}
    everywhere = ScanPredicate()
    for config in held.configs:
        tablet = HeldTablet.decode(config, held.schema(), held.name)
        for batch in scan_part(tablet, fragments, everywhere.rows, everywhere.columns, held.txn):
            found |= {each["id"]: each["a"] for each in batch.batch.to_pylist()}
    return found


def merged(machine: Machine, ticket: CompactionTicket) -> list[tuple[int, FragmentFile | None]]:
    fragments = open_fragments(machine.blobs)
    done = []
    for work in ticket.works:
        tablet = HeldTablet.decode(work.config, ticket.schema(), "a compaction")
        name = f"{ticket.prefix}{work.number:04x}.parquet"
        file = merge_files(
            tablet,
            fragments,
            machine.blobs,
            name,
            work.group,
            work.files,
            horizon=work.horizon,
            floor=work.floor,
            is_rooted=work.is_rooted,
        )
        done.append((work.number, file))
    return done


# -- steps of a script


def loading(name: str, job: str, values: dict[int, int], *, replaces: bool = False) -> Step:
    def then(plain: PlainStore) -> PlainStore:
        before = PlainTable() if replaces else plain.tables[name]
        return plain.having(name, before.put([{"id": key, "a": value} for key, value in values.items()]))

    return Step(
        f"load {name} {job}", lambda m, store: _done(load(m, store, name, job, values, replaces=replaces)), then
    )


def compacting(name: str) -> Step:
    def act(machine: Machine, store: EmbeddedStore) -> None:
        ticket = store.begin_compaction(id_of(store, name))
        for number, file in merged(machine, ticket):
            store.adopt(ticket.ticket, number, file)
        store.release(ticket.ticket)

    return Step(f"compact {name} elsewhere", act)


def holding(name: str) -> Step:
    return Step(f"hold {name}", lambda _, store: _done(store.hold(id_of(store, name), ttl_s=10.0)))


def _done(_: object) -> None:
    return


SCRIPT = [
    create("t", 10),
    put("t", range(12)),
    loading("t", "monday", {key: 100 + key for key in range(5, 25)}),
    holding("t"),
    put("t", range(20, 30)),
    upkeep("t", "split", row(15)),
    loading("t", "tuesday", {key: 200 + key for key in range(0, 30, 3)}),
    compacting("t"),
    loading("t", "wednesday", {key: 300 + key for key in range(8, 18)}, replaces=True),
    upkeep("t", "join", row(15)),
    keep(),
    put("t", range(3)),
    Step("close", lambda _, store: store.close()),
]


@cache
def all_crashes() -> tuple[Crash, ...]:
    found: list[Crash] = []
    run_script(Machine(1), found, SCRIPT)
    return tuple(found)


@pytest.mark.parametrize("how", ["kill", "power"])
def test_a_crash_at_any_effect_leaves_all_of_a_load_or_nothing(how: str) -> None:
    stride = max(1, 12 // tries(1))
    for number, crash in list(enumerate(all_crashes()))[::stride]:
        try:
            survive(crash, how, Random(number))
        except Exception as error:
            error.add_note(f"after {how} at effect {crash.name}")
            raise


def survive(crash: Crash, how: str, random: Random) -> None:
    machine = crash.machine.fork(random.getrandbits(20))
    machine.end(how)
    store = machine.open()
    plain = check_all(store, crash)
    step = next((each for each in SCRIPT if crash.name.endswith(f"in {each.name}")), None)
    if step is not None and step.name.startswith("load"):
        # The same job again: it is loaded once, whether it was before or not.
        step.act(machine, store)
        plain = crash.after
        assert rows_of(store, "t") == plain.tables["t"].rows
        txn = store.begin_load(id_of(store, "t"), step.name.split()[-1]).committed
        assert txn is not None
        store.write(id_of(store, "t"), [])
    machine.pass_s(HOUR_S)
    while store.compact_step():
        pass
    check_whole(machine, store)
    work_on(machine, store, plain)
    store.close()
    machine.end("closed")


def check_all(store: EmbeddedStore, crash: Crash) -> PlainStore:
    if "t" not in {name.rpartition(".")[2] for name in store.names()}:
        assert not crash.before.tables
        return PlainStore()
    before, after = (plain.tables.get("t", PlainTable()) for plain in (crash.before, crash.after))
    found = rows_of(store, "t")
    if crash.by_row:
        assert all(values in (before.rows.get(key), after.rows[key]) for key, values in found.items())
    else:
        assert found in (before.rows, after.rows)
    return PlainStore({"t": replace(after, rows=found)})


def test_the_script_without_crashes() -> None:
    machine = Machine(1)
    plain = run_script(machine, None, SCRIPT)
    store = machine.open()
    assert rows_of(store, "t") == plain.tables["t"].rows
    names = {crash.name.split(" in ", 1)[1] for crash in all_crashes()}
    assert {"load t monday", "load t wednesday", "hold t", "compact t elsewhere"} <= names
    store.close()
    machine.end("closed")


# -- one thing at a time


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine(7)
    yield made
    made.end("kill")


@pytest.fixture
def store(machine: Machine) -> EmbeddedStore:
    opened = machine.open()
    for step in (create("t", 10), put("t", range(20))):
        step.act(machine, opened)
    return opened


def again(machine: Machine) -> EmbeddedStore:
    machine.end("kill")
    return machine.open()


def reopened(machine: Machine, store: EmbeddedStore) -> EmbeddedStore:
    store.close()
    machine.end("closed")
    return machine.open()


def test_a_held_table_stays_as_it_was(machine: Machine, store: EmbeddedStore) -> None:
    held = store.hold(id_of(store, "t"), ttl_s=60)
    before = held_rows(machine, held)
    assert before == {key: 1 + key for key in range(20)}
    for step in (put("t", range(5, 40), a=50), truncate("t"), upkeep("t", "compact", erase_now=True), drop("t")):
        step.act(machine, store)
        assert held_rows(machine, held) == before, step.name
    machine.pass_s(int(HOUR_S) * 2)
    store.renew(held.ticket, 3 * HOUR_S)  # nobody has looked yet whether it is over
    store.compact_step()
    assert held_rows(machine, held) == before
    store.release(held.ticket)
    store.release(held.ticket)
    while store.compact_step():
        pass
    with pytest.raises(NotFound):
        held_rows(machine, held)
    with pytest.raises(NotFound, match="not held any more"):
        store.renew(held.ticket)


def test_a_hold_outlives_its_store(machine: Machine, store: EmbeddedStore) -> None:
    held = store.hold(id_of(store, "t"), ttl_s=60)
    before = held_rows(machine, held)
    store = reopened(machine, store)
    for step in (put("t", range(40), a=7), upkeep("t", "compact", erase_now=True)):
        step.act(machine, store)
    assert held_rows(machine, held) == before
    machine.pass_s(61)
    store = reopened(machine, store)
    upkeep("t", "compact", erase_now=True).act(machine, store)
    while store.compact_step():
        pass
    with pytest.raises(NotFound):
        held_rows(machine, held)


def test_a_hold_of_a_snapshot_that_is_gone_is_refused(machine: Machine, store: EmbeddedStore) -> None:
    at = store.now()
    for step in (put("t", range(20), a=9), upkeep("t", "compact", erase_now=True)):
        step.act(machine, store)
    with pytest.raises(SnapshotTooOld):
        store.hold(id_of(store, "t"), at)


def test_an_older_snapshot_can_be_held(machine: Machine, store: EmbeddedStore) -> None:
    at = store.now()
    put("t", range(30), a=9).act(machine, store)
    held = store.hold(id_of(store, "t"), at)
    assert held.txn == at
    assert held_rows(machine, held) == {key: 1 + key for key in range(20)}


def test_a_load_is_not_seen_before_its_txn(machine: Machine, store: EmbeddedStore) -> None:
    before = store.now()
    txn = load(machine, store, "t", "job", {3: 33, 30: 300})
    assert rows_of(store, "t")[30]["a"] == 300
    held = store.hold(id_of(store, "t"), Txn(txn - 1))
    assert held_rows(machine, held) == held_rows(machine, store.hold(id_of(store, "t"), before))
    assert held_rows(machine, store.hold(id_of(store, "t"), txn))[3] == 33


def test_a_job_is_loaded_once(machine: Machine, store: EmbeddedStore) -> None:
    txn = load(machine, store, "t", "job", {3: 33})
    put("t", range(3, 4), a=500).act(machine, store)
    assert load(machine, store, "t", "job", {3: 34}) == txn
    assert rows_of(store, "t")[3]["a"] == 503
    store = again(machine)
    assert load(machine, store, "t", "job", {3: 34}) == txn
    table = id_of(store, "t")
    assert store.begin_load(table, "other").committed is None


def test_batches_of_a_job_are_loaded_in_order(machine: Machine, store: EmbeddedStore) -> None:
    table = id_of(store, "t")
    for batch in range(3):
        ticket = store.begin_load(table, "stream", batch)
        assert ticket.committed is None
        store.commit_load(ticket.ticket, [written(machine.blobs, ticket, "00", {batch: batch})])
    assert store.begin_load(table, "stream", 2).committed is not None
    assert store.begin_load(table, "stream", 1).committed is not None
    assert store.begin_load(table, "stream", 3).committed is None


@pytest.mark.parametrize("ending", ["released", "taken over", "expired", "expired while closed"])
def test_an_attempt_that_is_over_cannot_commit(machine: Machine, store: EmbeddedStore, ending: str) -> None:
    table = id_of(store, "t")
    ticket = store.begin_load(table, "job", ttl_s=60)
    file = written(machine.blobs, ticket, "00", {3: 33})
    match ending:
        case "released":
            store.release(ticket.ticket)
        case "taken over":
            store.begin_load(table, "job")
        case "expired":
            machine.pass_s(61)
        case _:
            machine.pass_s(61)
            store = again(machine)
    with pytest.raises(Conflict, match="was given up"):
        store.commit_load(ticket.ticket, [file])
    with pytest.raises(NotFound):
        store.renew(ticket.ticket)
    assert rows_of(store, "t")[3]["a"] == 4
    while store.compact_step():
        pass
    assert file.file.name not in machine.files()


def test_what_was_staged_and_never_committed_goes(machine: Machine, store: EmbeddedStore) -> None:
    """After a day, looked at once an hour. What is not known stays."""
    staged, other = f"{staging_prefix('query', machine.clock.wall_ms())}1.parquet", f"{STAGING}by-hand.parquet"
    for name in (staged, other):
        sink = machine.blobs.create(name)
        sink.write(b"x")
        sink.commit()
    store.compact_step()
    machine.pass_s(STAGED_MS_MAX // 1_000)
    store.compact_step()
    assert staged in machine.files()
    machine.pass_s(HOUR_S)
    store.compact_step()
    assert staged not in machine.files()
    assert other in machine.files()


@pytest.mark.parametrize("ending", ["released", "expired", "expired while closed"])
def test_overlays_go_with_the_hold_that_they_are_for(machine: Machine, store: EmbeddedStore, ending: str) -> None:
    """Also those that are made after it has ended."""
    held, kept = (store.hold(id_of(store, "t"), ttl_s=ttl_s) for ttl_s in (60, 10 * HOUR_S))

    def overlay(ticket: str, name: str) -> str:
        sink = machine.blobs.create(f"{overlay_directory(ticket)}/{name}")
        sink.write(b"x")
        sink.commit()
        return f"{overlay_directory(ticket)}/{name}"

    gone = [overlay(held.ticket, "a.parquet"), overlay(held.ticket, "b/_start=5/c.parquet")]
    stays = overlay(kept.ticket, "a.parquet")
    if ending == "released":
        store.release(held.ticket)
    else:
        machine.pass_s(61)
        if ending == "expired while closed":
            store = again(machine)
        store.compact_step()
    assert not machine.files() & set(gone)
    late = overlay(held.ticket, "late.parquet")
    machine.pass_s(2 * HOUR_S)
    while store.compact_step():
        pass
    assert late not in machine.files()
    assert stays in machine.files()


@pytest.mark.parametrize("error", [PermissionDenied, Unavailable])
def test_a_store_opens_though_overlays_cannot_be_deleted(machine: Machine, error: type[StelaeError]) -> None:
    """As one that is opened read-only after a job was killed. They go later."""
    store = machine.open()
    create("t").act(machine, store)
    held = store.hold(id_of(store, "t"), ttl_s=60)
    name = f"{overlay_directory(held.ticket)}/a.parquet"
    sink = machine.blobs.create(name)
    sink.write(b"x")
    sink.commit()
    machine.pass_s(61)
    machine.blobs.fail("delete", error)
    store = again(machine)
    machine.pass_s(2 * HOUR_S)
    while store.compact_step():
        pass
    assert name not in machine.files()


@pytest.mark.parametrize("ending", ["release", "urgent", "silence"])
def test_upkeep_gives_way_to_a_load(machine: Machine, store: EmbeddedStore, ending: str) -> None:
    """Until it is over, or nothing was heard of it for long, or a tablet cannot wait."""
    table = id_of(store, "t")

    def files_after(*steps: Step) -> int:
        for step in (*steps, keep()):
            step.act(machine, store)
        return store.stats(table).files

    ticket = store.begin_load(table, "slow", ttl_s=HOUR_S)
    before = 0
    while (files := files_after(put("t", range(1)), upkeep("t", "flush"))) < FILES_URGENT - 2:
        assert files > before
        before = files
    if ending == "release":
        store.release(ticket.ticket)
    elif ending == "silence":
        machine.pass_s(UNDER_WAY_MS // 1_000)
    else:
        files_after(put("t", range(1)), upkeep("t", "flush"), put("t", range(1)), upkeep("t", "flush"))
    assert files_after() < files


def test_a_table_that_is_dropped_under_a_load(machine: Machine, store: EmbeddedStore) -> None:
    ticket = store.begin_load(id_of(store, "t"), "late")
    file = written(machine.blobs, ticket, "01", {1: 1})
    drop("t").act(machine, store)
    keep().act(machine, store)
    with pytest.raises(NotFound, match="was dropped during load"):
        store.commit_load(ticket.ticket, [file])
    store.release(ticket.ticket)
    keep().act(machine, store)
    assert file.file.name not in machine.files()


def test_files_of_a_load_under_way_are_kept(machine: Machine, store: EmbeddedStore) -> None:
    ticket = store.begin_load(id_of(store, "t"), "job", ttl_s=60)
    file = written(machine.blobs, ticket, "00", {3: 33})
    upkeep("t", "compact").act(machine, store)
    store = again(machine)
    upkeep("t", "compact").act(machine, store)
    machine.pass_s(50)
    store.renew(ticket.ticket, 60)
    machine.pass_s(50)
    store.compact_step()
    store.commit_load(ticket.ticket, [file])
    assert rows_of(store, "t")[3]["a"] == 33


def test_tablets_and_columns_may_change_under_a_load(machine: Machine, store: EmbeddedStore) -> None:
    ticket = store.begin_load(id_of(store, "t"), "job")
    file = written(machine.blobs, ticket, "00", {key: 1_000 + key for key in range(30)})
    for step in (upkeep("t", "split", row(5)), upkeep("t", "join", row(10)), put("t", range(25))):
        step.act(machine, store)
    store.alter("t", AlterAsk(rename_columns={"a": "z"}, widen={"z": "int64"}, add={"data": {"c": "int64"}}))
    store.commit_load(ticket.ticket, [file])
    alter("t", {}, add={"data": {"d": "int64"}}).act(machine, store)
    found = rows_of(again(machine), "t")
    assert {key: values["z"] for key, values in found.items()} == {key: 1_000 + key for key in range(30)}


def test_a_load_may_be_empty(machine: Machine, store: EmbeddedStore) -> None:
    table = id_of(store, "t")
    ticket = store.begin_load(table, "nothing")
    txn = store.commit_load(ticket.ticket, [])
    assert len(rows_of(store, "t")) == 20
    assert store.begin_load(table, "nothing").committed == txn
    ticket = store.begin_load(table, "empty")
    store.commit_load(ticket.ticket, [], replaces=True)
    put("t", range(3)).act(machine, store)
    store = again(machine)
    assert store.begin_load(table, "empty").committed is not None
    assert len(rows_of(store, "t")) == 3


def test_files_are_looked_at_before_they_are_believed(machine: Machine, store: EmbeddedStore) -> None:
    table = id_of(store, "t")
    ticket = store.begin_load(table, "job")
    file = written(machine.blobs, ticket, "00", {3: 33})
    seal = file.file.seal
    wrong: list[tuple[LoadedFile, str]] = [
        (_with(file, name="fragments/00000001/x.parquet"), "not of this job"),
        (_with(file, name=f"{ticket.prefix}/ff.parquet"), "not of this job"),
        (_with(file, name=f"{ticket.prefix}ff.parquet"), "not on the store"),
        (_with(file, seal=type(seal)(seal.size_bytes + 1, *_rest(seal))), "bytes, not"),
        (_with(file, txn=Txn(5)), "txns of its own"),
        (LoadedFile(type(file.group)(999), file.file), "group 999"),
    ]
    for each, words in wrong:
        with pytest.raises(InvalidArgument, match=words):
            store.commit_load(ticket.ticket, [file, each])
        assert rows_of(store, "t")[3]["a"] == 4
    store.commit_load(ticket.ticket, [file])
    assert rows_of(store, "t")[3]["a"] == 33


def _with(file: LoadedFile, **changes: Any) -> LoadedFile:
    fields = {name: getattr(file.file, name) for name in ("name", "seal", "stats", "txn", "ts")}
    return LoadedFile(file.group, FragmentFile(**(fields | changes)))


def _rest(seal: Any) -> tuple[int, int, int, int]:
    return (seal.data_end, seal.index_crc, seal.footer_start, seal.footer_crc)


@pytest.mark.parametrize("ttl_s", [0.0, -1.0, 1e12])
def test_tickets_live_for_a_while(store: EmbeddedStore, ttl_s: float) -> None:
    with pytest.raises(InvalidArgument, match="a ticket lives"):
        store.hold(id_of(store, "t"), ttl_s=ttl_s)
    with pytest.raises(NotFound, match="no ticket"):
        store.renew("something")
    with pytest.raises(InvalidArgument, match="numbered from 0"):
        store.begin_load(id_of(store, "t"), "job", -1)
    with pytest.raises(InvalidArgument, match="a job is named"):
        store.begin_load(id_of(store, "t"), "")


def test_a_compaction_elsewhere_changes_no_answer(machine: Machine, store: EmbeddedStore) -> None:
    for step in (upkeep("t", "flush"), put("t", range(5, 15), a=70), upkeep("t", "flush")):
        step.act(machine, store)
    before = rows_of(store, "t")
    ticket = store.begin_compaction(id_of(store, "t"))
    assert ticket.works
    results = merged(machine, ticket)
    put("t", range(30, 33)).act(machine, store)
    adopted = [store.adopt(ticket.ticket, number, file) for number, file in results]
    assert all(adopted)
    with pytest.raises(InvalidArgument, match="no work 0"):
        store.adopt(ticket.ticket, *results[0])
    store.release(ticket.ticket)
    with pytest.raises(NotFound, match="not under way"):
        store.adopt(ticket.ticket, *results[0])
    assert {key: values for key, values in rows_of(store, "t").items() if key < 30} == before
    check_whole(machine, store)


def test_what_changed_meanwhile_is_not_replaced(machine: Machine, store: EmbeddedStore) -> None:
    for step in (upkeep("t", "flush"), put("t", range(20), a=70), upkeep("t", "flush")):
        step.act(machine, store)
    before = rows_of(store, "t")
    ticket = store.begin_compaction(id_of(store, "t"), ttl_s=60)
    assert store.begin_compaction(id_of(store, "t")).works == (), "the files are somebody's already"
    results = merged(machine, ticket)
    upkeep("t", "split", row(5)).act(machine, store)
    outcomes = [store.adopt(ticket.ticket, number, file) for number, file in results]
    assert False in outcomes
    assert rows_of(store, "t") == before
    machine.pass_s(61)
    while store.compact_step():
        pass
    check_whole(machine, store)
