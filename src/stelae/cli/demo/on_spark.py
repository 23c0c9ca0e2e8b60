"""The fleet on Spark: loaded, scanned while single rows are served, upserted, compacted, backed up and restored."""

from __future__ import annotations

from typing import Any

from rich.markup import escape

from stelae.cli.demo.fleet import FLEET, NEW_FIRMWARE, ROLLED_OUT, TABLETS, device, fleet_frame, make_fleet
from stelae.cli.demo.stage import DemoStage, halves_and_worst, percentile, short_time
from stelae.cli.demo.traffic import Traffic, TrafficPanel
from stelae.cli.jobs.starting import quiet_interrupts
from stelae.client.api.display import shown_bytes
from stelae.model.errors import Corruption

_SCAN_S_MAX, _IDLE_S_MAX = 8.0, 2.0
_WARMING = 400
_ROWS_PER_SCAN_S = 250_000
_ROLLOUT = "rollout-5.0.0"
_QUESTIONS = (
    "SELECT city, count(*) AS devices, round(avg(battery), 1) AS battery FROM {fleet} GROUP BY city ORDER BY city",
    "SELECT model, count(*) AS devices, round(avg(temperature), 1) AS temperature FROM {fleet} GROUP BY model",
    "SELECT firmware, count_if(status = 'offline') AS offline FROM {fleet} GROUP BY firmware",
)


def start_demo_spark(stage: DemoStage) -> Any:
    """Whatever Spark writes of its own lies in the demo's directory, and goes with its end."""
    from stelae.spark.driver.sessions import session

    place = stage.directory / "spark"
    with stage.console.status("starting Spark"), quiet_interrupts():
        return session(
            "stelae-demo",
            **{
                "spark.sql.shuffle.partitions": "4",
                "spark.local.dir": str(place),
                "spark.sql.warehouse.dir": (place / "warehouse").as_uri(),
            },
        )


def load_fleet(stage: DemoStage, spark: Any) -> None:
    from stelae.spark.loading.loads import load

    stage.fleet = make_fleet(stage.db, stage.rows, TABLETS)
    stage.say(escape(repr(stage.fleet)))
    frame = fleet_frame(spark, stage.rows)
    with stage.bar("Spark makes, sorts, cuts and writes them") as told:
        result = load(spark, stage.db, FLEET, frame, job="first-load", progress=told)
    stage.say(
        f"{result.rows:,} rows in {result.seconds:.1f} s: {result.files} sorted Parquet files, visible at one txn"
    )
    stage.figure("load with Spark", f"{result.rows / result.seconds:,.0f} rows/s", "loaded with Spark")
    stage.figure("on disk, loaded", f"{result.size_bytes / result.rows:.1f} bytes a row")


def serve_while_scanning(stage: DemoStage, spark: Any) -> None:
    seconds = max(1.0, stage.rows / _ROWS_PER_SCAN_S)
    _warm(stage)
    traffic, scans = Traffic(stage), stage.story.scans
    answers: list[list[Any]] = []
    with traffic, TrafficPanel(stage, traffic) as panel:
        traffic.wait(min(_IDLE_S_MAX, seconds / 2), lambda: panel.show("nothing else going on"))
        idle_until_s = traffic.elapsed_s
        while len(scans) < len(_QUESTIONS) or traffic.elapsed_s < idle_until_s + min(_SCAN_S_MAX, seconds):
            begun_s = traffic.elapsed_s
            answers.append(_ask_spark(stage, spark, _QUESTIONS[len(scans) % len(_QUESTIONS)], panel))
            scans.append((begun_s, traffic.elapsed_s))
    scan_s = sum(stop - start for start, stop in scans)
    stage.story.latencies = list(traffic.latencies)
    stage.say(f"spark> [cyan]{escape(_QUESTIONS[0].format(fleet=FLEET))}[/]")
    stage.say_rows(("city", "devices", "battery"), [tuple(row) for row in answers[0]])
    stage.say(f"Spark scanned all {stage.rows:,} rows {len(scans)} times, each time as they were at that moment;")
    stage.say("meanwhile the store went on serving:")
    _tell_latencies(stage, traffic, idle_until_s)
    stage.figure(
        "Spark scans meanwhile", f"{len(scans) * stage.rows / scan_s:,.0f} rows/s", "scanned by Spark at the same time"
    )


def _warm(stage: DemoStage) -> None:
    """Rows from all over the table, so that what is timed is a store in use, and not one just opened."""
    with stage.bar("reading a few rows from all over the table") as told:
        for number in range(_WARMING):
            stage.fleet.get(device(stage.rows * number // _WARMING))
            told(number + 1, _WARMING)


def _ask_spark(stage: DemoStage, spark: Any, question: str, panel: TrafficPanel) -> list[Any]:
    """Ask Spark a question of all rows as they are now; the panel shows the traffic meanwhile."""
    from stelae.spark.driver.tasks import run_action
    from stelae.spark.reading.frames import read

    frame = spark.sql(question, fleet=read(spark, stage.db, FLEET))
    doing = f"spark> {question.format(fleet=FLEET)}"
    return run_action(spark, "scan", frame.collect, None, lambda: panel.show(doing))


def _tell_latencies(stage: DemoStage, traffic: Traffic, idle_until_s: float) -> None:
    idle = traffic.took(is_update=False, until_s=idle_until_s)
    busy = traffic.took(is_update=False, since_s=idle_until_s)
    updates = traffic.took(is_update=True, since_s=idle_until_s)
    stage.say_rows(
        ("single rows", "requests", "p50", "p99"),
        [
            (name, len(took), short_time(percentile(took, 0.5)), short_time(percentile(took, 0.99)))
            for name, took in (
                ("reads, nothing else going on", idle),
                ("reads, while Spark scans", busy),
                ("updates, durable, while Spark scans", updates),
            )
        ],
    )
    stage.figure("get of one row, idle", halves_and_worst(idle))
    stage.figure(
        "get of one row, while Spark scans", halves_and_worst(busy), "p99 of reading one row while Spark scans"
    )
    stage.figure("update of one row, while Spark scans", halves_and_worst(updates))


def upsert(stage: DemoStage, spark: Any) -> None:
    from stelae.spark.loading.loads import load

    before = stage.db.now()
    changes = _changes(stage, spark)
    start = stage.clock.monotonic_s()
    with stage.bar("upserting") as told:
        result = load(spark, stage.db, FLEET, changes, job=_ROLLOUT, progress=told)
    took = stage.clock.monotonic_s() - start
    stage.say(f"{result.rows:,} devices get firmware {NEW_FIRMWARE}, all at txn {result.txn}, in {took:.1f} s")
    again = load(spark, stage.db, FLEET, changes, job=_ROLLOUT)
    if not again.was_done or again.txn != result.txn:
        raise Corruption(f"job {_ROLLOUT} was done twice", FLEET)
    stage.say(f"the same job again: {escape(str(again).splitlines()[0])}")
    counts = [_firmwares(stage, spark, at) for at in (before, None)]
    names = sorted({name for count in counts for name in count})
    stage.story.firmware = [(name, counts[0].get(name, 0), counts[1].get(name, 0)) for name in names]
    stage.say_rows(("firmware", f"at={before}", "now"), stage.story.firmware)
    if counts[1].get(NEW_FIRMWARE) != result.rows or sum(counts[0].values()) != sum(counts[1].values()):
        raise Corruption("Spark does not see what was upserted", FLEET)
    stage.figure(
        f"upsert of {result.rows:,} rows with Spark, at one txn",
        short_time(took),
        f"to upsert {result.rows:,} rows at one txn",
    )


def _changes(stage: DemoStage, spark: Any) -> Any:
    """Read from the table, written back to it."""
    from stelae.spark.reading.frames import read

    frame = read(spark, stage.db, FLEET, columns=["model"])
    chosen = f"pmod(xxhash64(device), {ROLLED_OUT}) = 0"
    return frame.where(chosen).selectExpr("device", f"'{NEW_FIRMWARE}' AS firmware")


def _firmwares(stage: DemoStage, spark: Any, at: int | None) -> dict[str, int]:
    from stelae.spark.reading.frames import read

    frame = read(spark, stage.db, FLEET, columns=["firmware"], at=at)
    return {row["firmware"]: row["count"] for row in frame.groupBy("firmware").count().collect() if row["firmware"]}


def compact_fleet(stage: DemoStage, spark: Any) -> None:
    from stelae.spark.jobs.compacting import compact
    from stelae.spark.jobs.statistics import stats

    before = stats(spark, stage.db, FLEET)
    with stage.bar("compacting") as told:
        result = compact(spark, stage.db, FLEET, progress=told)
    after = stats(spark, stage.db, FLEET)
    files = {each.tablet: each.files for each in before.tablets}
    stage.story.tablets = [
        (each.begins or "first row", files.get(each.tablet, 0), each.files) for each in after.tablets
    ]
    stage.say(f"{result.files_before} files to {result.files_after}; reading and writing go on meanwhile")
    stage.say(escape(str(after)))
    stage.figure("compaction with Spark", f"{result.records_before / max(result.seconds, 1e-3):,.0f} records/s")


def back_up_and_restore(stage: DemoStage, spark: Any) -> None:
    from stelae.spark.jobs.backups import backup
    from stelae.spark.jobs.restoring import restore
    from stelae.spark.jobs.verifying import verify

    with stage.bar("backing up") as told:
        taken = backup(spark, stage.db, FLEET, stage.backups, progress=told)
    stage.say(f"backed up {shown_bytes(taken.size_bytes)} in {taken.seconds:.1f} s, while the store is open")
    first, last = device(stage.rows // 4), device(stage.rows // 4 + max(1, stage.rows // 100))
    gone = stage.fleet.erase_range(first, last)
    stage.say(f"[red]a mistake: somebody erases {gone:,} devices[/], from {first} to {last}")
    spoilt = verify(spark, stage.db, FLEET, stage.backups, at=stage.db.now(), other_at=taken.txn, samples=0)
    stage.say(f"verify finds it: {spoilt.only_there:,} rows are only in the backup")
    with stage.bar("restoring") as told:
        restored = restore(spark, stage.db, stage.backups, FLEET, in_place=True, progress=told)
    with stage.bar("verifying") as told:
        proof = verify(spark, stage.db, FLEET, stage.backups, at=stage.db.now(), other_at=taken.txn, progress=told)
    if spoilt.only_there != gone or not proof.is_same:
        raise Corruption(f"what was restored is not what was backed up: {proof}", FLEET)
    stage.say(
        f"restored {restored.records:,} records at one txn in {restored.seconds:.1f} s; "
        f"[green]every value of {proof.rows_here:,} rows is the same as in the backup[/]"
    )
    stage.figure("backup of an open store", f"{taken.size_bytes / 2**20 / max(taken.seconds, 1e-3):,.1f} MiB/s")
    stage.figure("restore in place", f"{restored.records / max(restored.seconds, 1e-3):,.0f} records/s")
    rate = f"{proof.rows_here / max(proof.seconds, 1e-3):,.0f} rows/s"
    stage.figure("verify, value by value", rate, "compared value by value, after the restore")
