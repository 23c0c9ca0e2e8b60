"""Whether long work stalls short work: single gets and durable puts beside a load, against RocksDB under the same one.

    bench_stalls.py [--seconds 20] [--mb-per-s 20] [--rows 100000] [--switch-ms 5]

One thread gets hot rows, one puts rows, a call about every millisecond each: first alone, and then while a third writes
batches at a steady rate, so memory is flushed and files are compacted; it also compacts everything by hand in the
middle of each slice of time. The contenders take turns in slices. Shown is how long half of the calls take, and the
slowest thousandth (p99.9). Both are called from Python in one process, so what holds its interpreter counts for both.

The longest pause of the interpreter is named: a thread that wakes every half millisecond looks, when it is late, which
thread has used the processor meanwhile, and where that is. A pause in which no thread of the process ran is the
machine's, and not counted.
"""

from __future__ import annotations

import argparse
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from bench_api import rocks, rocks_put_batch, stelae_table
from harness import Row, report, write_facts
from made_rows import batch_of, fields_of, key_of, place, seconds
from rich.console import Console

FIELDS = 10
HOT_ROWS = 20_000
LOAD_ROWS = 1_000
SLICE_S = 2.0
REST_S = 0.5
"""After a slice, for what it has left to be done."""
PACE_S = 0.001
PULSE_S = 0.0005
HELD_SHARE = 0.8
"""So much of a pause one thread must have been running for it to be the interpreter's."""
SWITCH_S = 0.007
"""Python takes the interpreter away from a thread after 5 ms, if that runs Python: such pauses are everybody's."""

console = Console(width=140)


@dataclass
class Contender:
    """`get` and `put` of a row by its number; `load`: one batch from a number on; `compact`: all files."""

    get: Callable[[int], object]
    put: Callable[[int], object]
    load: Callable[[int], object]
    compact: Callable[[], object]
    close: Callable[[], object]


def ours(path: Path) -> Contender:
    db, table = stelae_table(path, FIELDS)
    row = batch_of(0, 1, FIELDS).to_pylist()[0]
    return Contender(
        get=lambda number: table.get(key_of(number)),
        put=lambda number: table.put({**row, "id": key_of(number)}),
        load=lambda first: table.put_many(batch_of(first, LOAD_ROWS, FIELDS)),
        compact=table.compact,
        close=db.close,
    )


def of_rocks(path: Path) -> Contender:
    from bench_api import _pack, _unpack

    db, synced = rocks(path)
    names = fields_of(FIELDS)
    row = [batch_of(0, 1, FIELDS).column(name)[0].as_py() for name in names]

    def get(number: int) -> dict[str, Any] | None:
        found = db.get(key_of(number))
        return None if found is None else dict(zip(names, _unpack(found), strict=True))

    return Contender(
        get=get,
        put=lambda number: db.put(key_of(number), _pack(row), synced),
        load=lambda first: rocks_put_batch(db, synced, batch_of(first, LOAD_ROWS, FIELDS)),
        compact=lambda: db.compact_range(None, None),
        close=db.close,
    )


@dataclass
class Pulse:
    """Finds pauses of the interpreter, and who made them: how long, and where the thread was then."""

    pauses: list[tuple[float, str]] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)
    _collected_s: float = 0.0
    _collection_began: float = 0.0

    def note_collection(self, phase: str, _: dict[str, int]) -> None:
        """Python's own collection of garbage holds the interpreter, too, whoever allocates when it is due."""
        if phase == "start":
            self._collection_began = time.perf_counter()
        else:
            self._collected_s += time.perf_counter() - self._collection_began

    def run(self) -> None:
        me, used = threading.get_ident(), self._used()
        last = time.perf_counter()
        while not self._ended.is_set():
            self._collected_s = 0.0
            time.sleep(PULSE_S)
            frames = sys._current_frames()
            now = time.perf_counter()
            before, used = used, self._used()
            late_s = now - last - PULSE_S
            if late_s > SWITCH_S:
                grown = {ident: used_s - before.get(ident, used_s) for ident, used_s in used.items() if ident != me}
                most = max(grown, key=lambda ident: grown[ident], default=me)
                if grown.get(most, 0.0) > HELD_SHARE * late_s and most in frames:
                    frame, what = frames[most], ""
                    is_collecting = frame.f_code is Pulse.note_collection.__code__
                    if is_collecting or self._collected_s > late_s / 2:
                        what = "Python's collection of garbage, in "
                    at = frame.f_back if is_collecting else frame
                    self.pauses.append((late_s, what + _place_of(at or frame)))
            last = time.perf_counter()

    @staticmethod
    def _used() -> dict[int, float]:
        found = {}
        for thread in threading.enumerate():
            if thread.ident is not None and thread.is_alive():
                found[thread.ident] = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
        return found

    @contextmanager
    def running(self) -> Iterator[Pulse]:
        thread = threading.Thread(target=self.run, name="pulse", daemon=True)
        thread.start()
        gc.callbacks.append(self.note_collection)
        try:
            yield self
        finally:
            gc.callbacks.remove(self.note_collection)
            self._ended.set()
            thread.join()


def _place_of(frame: FrameType) -> str:
    """The innermost frames, outermost first."""
    found: list[str] = []
    at: FrameType | None = frame
    while at is not None and len(found) < 3:
        found.append(f"{Path(at.f_code.co_filename).stem}:{at.f_lineno} {at.f_code.co_name}")
        at = at.f_back
    return " > ".join(reversed(found))


@dataclass
class Measured:
    gets_s: list[float] = field(default_factory=list)
    puts_s: list[float] = field(default_factory=list)
    pauses: list[tuple[float, str]] = field(default_factory=list)
    next_put: int = 0
    next_load: int = 0


class Slice:
    """Calls of several threads until a moment, or until one of them fails."""

    def __init__(self, contender: Contender, found: Measured, rows: int) -> None:
        self._contender = contender
        self._found = found
        self._rows = rows
        self._numbers = np.random.default_rng(11).integers(0, min(rows, HOT_ROWS), 10_000).tolist()
        self._began = time.perf_counter()
        self._failed: list[BaseException] = []

    @property
    def is_over(self) -> bool:
        return bool(self._failed) or time.perf_counter() >= self._began + SLICE_S

    def run(self, mb_per_s: float) -> None:
        """`mb_per_s` 0: nothing else is done meanwhile."""
        jobs: list[Callable[[], None]] = [self._get, self._put]
        if mb_per_s:
            jobs.append(lambda: self._load(mb_per_s))
        with Pulse().running() as pulse:
            threads = [threading.Thread(target=self._guarded, args=(job,)) for job in jobs]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if self._failed:
            raise SystemExit(f"a thread failed: {self._failed[0]!r}")
        self._found.pauses += pulse.pauses
        time.sleep(REST_S)

    def _guarded(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            self._failed.append(error)
            raise

    def _get(self) -> None:
        numbers = cycle(self._numbers)
        while not self.is_over:
            number = next(numbers)
            self._found.gets_s.append(seconds(lambda: self._contender.get(number)))  # noqa: B023 - called at once
            time.sleep(PACE_S)

    def _put(self) -> None:
        while not self.is_over:
            self._found.next_put += 1
            number = 2 * self._rows + self._found.next_put
            self._found.puts_s.append(seconds(lambda: self._contender.put(number)))  # noqa: B023 - called at once
            time.sleep(PACE_S)

    def _load(self, mb_per_s: float) -> None:
        batch_s = batch_of(0, LOAD_ROWS, FIELDS).nbytes / (mb_per_s * 1e6)
        is_compacted, due = False, self._began
        while not self.is_over:
            self._contender.load(100 * self._rows + self._found.next_load)
            self._found.next_load += LOAD_ROWS
            if not is_compacted and time.perf_counter() > self._began + SLICE_S / 2:
                self._contender.compact()
                is_compacted = True
            due += batch_s
            time.sleep(max(0.0, due - time.perf_counter()))


def slowest(times_s: list[float], share: float) -> float:
    """What this share of the calls was quicker than."""
    return float(np.quantile(np.array(times_s), share))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20, help="of each of the four parts")
    parser.add_argument("--mb-per-s", type=float, default=20, help="how much is loaded meanwhile")
    parser.add_argument("--rows", type=int, default=100_000, help="that are there to be got")
    parser.add_argument("--switch-ms", type=float, default=5, help="after so long Python gives others a turn")
    options = parser.parse_args()
    sys.setswitchinterval(options.switch_ms / 1e3)
    makers = {"stelae": ours, "RocksDB": of_rocks}
    loads = {"alone": 0.0, "beside a load": options.mb_per_s}
    found = {(name, how): Measured() for name in makers for how in loads}
    with place("stalls") as path:
        contenders = {name: make(path) for name, make in makers.items()}
        for contender in contenders.values():
            for first in range(0, options.rows, LOAD_ROWS):
                contender.load(first)
            contender.compact()
            for number in [*range(HOT_ROWS)] * 3:
                contender.get(number)
        time.sleep(SLICE_S)
        for how, mb_per_s in loads.items():
            for turn in range(max(1, round(options.seconds / SLICE_S))):
                console.print(f"[dim]{how}, slice {turn + 1} ...[/]")
                for name, contender in contenders.items():
                    Slice(contender, found[name, how], options.rows).run(mb_per_s)
        for contender in contenders.values():
            contender.close()
    rows = []
    for how in ("alone", "beside a load"):
        mine, theirs = found["stelae", how], found["RocksDB", how]
        for what, of in (("get", "gets_s"), ("durable put", "puts_s")):
            for share in (0.5, 0.999):
                mine_s, theirs_s = (slowest(getattr(each, of), share) for each in (mine, theirs))
                wanted = 1.0 if share > 0.5 and how != "alone" else None
                rows.append(
                    Row(
                        f"{what} {how}, p{100 * share:g} of {len(getattr(mine, of)):,}",
                        mine_s,
                        theirs_s,
                        "RocksDB",
                        wanted,
                    )
                )
    report("stalls", rows)
    named = {}
    for (name, how), measured in found.items():
        longest = sorted(measured.pauses, reverse=True)[:3]
        named[f"{name}, {how}"] = [{"ms": round(1e3 * late_s, 1), "where": where} for late_s, where in longest]
        words = "; ".join(f"{1e3 * late_s:.1f} ms in {where}" for late_s, where in longest) or "none"
        console.print(f"longest pauses of the interpreter ({len(measured.pauses)} above 7 ms), {name} {how}: {words}")
    write_facts("stalls", {"pauses": named})


if __name__ == "__main__":
    main()
