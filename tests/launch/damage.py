"""A small store, closed in order or killed, and what becomes of it when one of its bytes is another.

What is allowed: the right answers, or Corruption. If the store does not open, nothing in its directory has changed; if
it does, no fragment is gone.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import stelae

MAKE = """
import os, sys
import stelae

db = stelae.open(sys.argv[1])
for name in ("old", "new"):
    t = db.create_table(name, key={"id": "int64"}, groups=[stelae.columns("g", {"v": "int64"})])
    t.put_many([{"id": i, "v": i} for i in range(20)])
    t.flush()
    t.put({"id": 5000, "v": 1})
db.drop_table("old")
db.recall_table("old")
db.alter_table("old", add={"g": {"w": "int64"}})
db.table("old").put({"id": 5001, "w": 1})
if sys.argv[2] == "killed":
    os.kill(os.getpid(), 9)
db.close()
"""

EXPECTED = {
    "new": [*((i, i) for i in range(20)), (5000, 1)],
    "old": [*((i, i, None) for i in range(20)), (5000, 1, None), (5001, None, 1)],
}

_PASSING = ("owner", "socket", "socket.lock", "metastore.db-shm")
"""Files that say nothing once nobody has the store open."""

Answers = dict[str, list[tuple[object, ...]]]


def make_store(path: Path, how: str) -> None:
    """`how`: closed or killed."""
    subprocess.run([sys.executable, "-c", MAKE, str(path), how], check=how == "closed")
    for name in ("socket", "socket.lock"):
        (path / name).unlink(missing_ok=True)


def files_of(path: Path) -> dict[str, bytes]:
    """Everything that counts. SQLite leaves an empty log where one only looked."""
    found = {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}
    return {name: data for name, data in found.items() if Path(name).name not in _PASSING and data}


def answers(path: Path, opened: Callable[[], None] = lambda: None) -> Answers:
    """All rows of all tables, the same before and after all that a store does by itself was done to it. `opened` is
    called in between."""
    with stelae.open(path) as db:
        opened()
        found = {name: [tuple(row.values()) for row in db.table(name).scan()] for name in db.tables()}
        for name in db.tables():
            db.table(name).compact()
        again = {name: [tuple(row.values()) for row in db.table(name).scan()] for name in db.tables()}
        problems = db.check().problems
    assert again == found
    assert not problems, problems
    return found


def places(data: bytes, count: int) -> Iterator[int]:
    """So many bytes of a file, evenly, or all if it has no more. The zeros at a log's end are not looked at."""
    used = len(data.rstrip(b"\0")) + 1 if len(data) > 1 << 20 else len(data)
    step = max(1, used // count)
    return iter(range(min(step // 2, used - 1), min(used, len(data)), step))


def verdict(whole: Path, copy: Path, damage: Callable[[Path], None]) -> str:
    """What a damaged copy of the store says: "right", "Corruption", or what is wrong with it."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(whole, copy)
    damage(copy)
    before = files_of(copy)
    opened: list[bool] = []
    try:
        found = answers(copy, lambda: opened.append(True))
    except stelae.Corruption:
        after = files_of(copy)
        changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
        if opened:
            changed = {name for name in changed if name.endswith(".parquet") and name not in after}
        return f"Corruption, but it changed {sorted(changed)}" if changed else "Corruption"
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told
        return f"{type(error).__name__}: {error}"
    return "right" if found == EXPECTED else f"wrong answers: { {name: len(rows) for name, rows in found.items()} }"


def flip(name: str, at: int, mask: int = 1) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = bytearray((path / name).read_bytes())
        data[at] ^= mask
        (path / name).write_bytes(data)

    return damage


def lose(*names: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        for name in names:
            (path / name).unlink()

    return damage


def cut(name: str, size_bytes: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        (path / name).write_bytes((path / name).read_bytes()[:size_bytes])

    return damage
