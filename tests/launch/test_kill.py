"""Processes that are killed with -9 at any moment: what was acknowledged is there, nothing is half there, and whoever
was attached goes on."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

import stelae
from tests.effort import tries

# Prints each row number once it is acknowledged. Rows have a number that says what they must hold.
WRITER = """
import sys, random
import stelae
path, first, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
chance = random.Random(seed)
db = stelae.open(path)
table = db.create_table("t", key={"id": "int64"}, groups=[
    stelae.columns("a", {"twice": "int64", "text": "string"}),
    stelae.cells("c", families=["f"])], splits=[2000, 4000], if_not_exists=True) or db.table("t")
table = db.table("t")
number = first
while True:
    kind = chance.random()
    if kind < 0.5:
        rows = [number]
        table.put({"id": number, "twice": 2 * number, "text": "x" * chance.randrange(200), "f:q": b"%d" % number})
    elif kind < 0.8:
        rows = list(range(number, number + chance.randrange(1, 200)))
        table.put_many([{"id": n, "twice": 2 * n, "text": "y", "f:q": b"%d" % n} for n in rows])
    else:
        rows = [number]
        with table.batch() as batch:
            batch.put({"id": number, "twice": 2 * number, "f:q": b"%d" % number})
    number = rows[-1] + 1
    print(rows[0], rows[-1], flush=True)
    if chance.random() < 0.05:
        table.flush()
    if chance.random() < 0.02:
        table.compact()
    if chance.random() < 0.02:
        table.split(number - 1 if number > 1 else None)
"""


def wrong(row: dict[str, object]) -> bool:
    number = row["id"]
    return row["twice"] != 2 * int(str(number)) or row["f:q"] != str(number).encode()


def acknowledged(process: subprocess.Popen[str], count: int) -> list[tuple[int, int]]:
    """The first so many lines; then the process is killed, and what it had said until then is read, too."""
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(count)]
    process.kill()
    lines += process.stdout.readlines()
    process.stdout.close()
    process.wait()
    return [(int(a), int(b)) for line in lines if line.endswith("\n") for a, b in [line.split()]]


@pytest.mark.parametrize("seed", range(tries(5)))
def test_a_writer_that_is_killed_loses_nothing_it_was_told_is_safe(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    said: list[tuple[int, int]] = []
    for _ in range(2):
        first = max((last for _, last in said), default=-1) + 1_000
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "data"), str(first), str(chance.randrange(2**30))],
            stdout=subprocess.PIPE,
            text=True,
        )
        said += acknowledged(process, chance.randrange(1, 120))
        with stelae.open(tmp_path / "data") as db:
            report = db.check()
            assert report.problems == ()
            rows = {row["id"]: row for row in db.table("t").scan()}
            missing = [n for a, b in said for n in range(a, b + 1) if n not in rows]
            assert missing == []
            assert [row for row in rows.values() if wrong(row)] == []


def test_whoever_is_attached_takes_over_from_an_owner_that_is_killed(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "data"), "0", "1"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    with stelae.open(tmp_path / "data") as db:
        table = db.table("t")
        with db.snapshot() as snapshot:
            before = table.scan(at=snapshot).to_arrow()
            scan = iter(table.scan(at=snapshot))
            given = [next(scan)] if before.num_rows else []
            said = acknowledged(process, 20)
            assert table.count() >= before.num_rows  # this call is the one that takes over
            given += list(scan)
            assert [row["id"] for row in given] == before.column("id").to_pylist()
            assert table.scan(at=snapshot).to_arrow().equals(before)
        found = {row["id"] for row in table.scan()}
        assert [n for a, b in said for n in range(a, b + 1) if n not in found] == []
        table.put({"id": -1, "twice": -2, "f:q": b"-1"})
        assert dict(table.get(-1) or {})["twice"] == -2
        assert db.check().problems == ()
        numbers = db.metrics()
        assert (numbers["takeovers"], numbers["owners_lost"]) == (1, 1)
        assert numbers["takeover_seconds"] > 0


HOLDER = """
import sys
import stelae
db = stelae.open(sys.argv[1])
snapshot = db.snapshot()
print("ready", flush=True)
sys.stdin.readline()
print(dict(db.table("t").get("a", at=snapshot) or {}), flush=True)
"""

IDLE = """
import sys
import stelae
db = stelae.open(sys.argv[1])
print("ready", flush=True)
sys.stdin.read()
"""


def started(program: str, path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_snapshot_is_kept_by_whoever_takes_over_though_its_holder_does_nothing(tmp_path: Path) -> None:
    with started(IDLE, tmp_path / "data") as owner, stelae.open(tmp_path / "data") as db:
        groups = [stelae.columns("g", {"v": "int64"})]
        table = db.create_table("t", key={"k": "string"}, groups=groups, retention="0s")
        table.put({"k": "a", "v": 1})
        with started(HOLDER, tmp_path / "data") as holder:
            owner.kill()
            owner.wait()
            table.put({"k": "a", "v": 2})  # takes over
            table.erase("a")
            table.compact(erase_now=True)  # after others have had the time to say what they hold
            said, _ = holder.communicate("\n")
        assert said == "{'k': 'a', 'v': 1}\n"


def test_a_log_that_was_cut_short_since_it_was_closed_is_noticed(tmp_path: Path) -> None:
    with stelae.open(tmp_path / "data") as db:
        db.create_table("t", key={"k": "int64"}, groups=[stelae.columns("g", {"v": "int64"})])
        for number in range(10):
            db.table("t").put({"k": number, "v": number})
    segment = max((tmp_path / "data" / "log").iterdir())
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-200])
    with pytest.raises(stelae.Corruption, match=segment.name):
        stelae.open(tmp_path / "data")
    assert [file.name for file in (tmp_path / "data" / "log").iterdir()] == [segment.name]
    assert segment.read_bytes() == whole[:-200]
    segment.write_bytes(whole)
    with stelae.open(tmp_path / "data") as db:
        assert db.table("t").count() == 10
