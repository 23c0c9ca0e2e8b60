"""What `columns=` costs as a projection: rows that exist without the columns have to be known of.

    python bench/bench_columns.py [--rows 300000] [--rounds 5]

One table has one group of columns, the others a second group (of columns, or of cells) that has the same rows, or a
tenth of them and a tenth more. Each is scanned for two columns of its first group: every row that exists, and only the
rows having one of the columns, which looks at the first group alone. Prints a table of ratios (all against having, 1.0
is as fast) and writes the same to bench/results/columns.json. Rounds alternate; the best of each counts.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from harness import Row, best, report

import stelae

FIRST = {"a": "int64", "b": "float64", "text": "string", "c": "int32"}
SHAPES: dict[str, list[Any]] = {
    "one group": [],
    "a second group of columns, all rows": [stelae.columns("more", {"x": "int64", "note": "string"})],
    "a second group of columns, few rows": [stelae.columns("more", {"x": "int64", "note": "string"})],
    "a group of cells, few rows": [stelae.cells("events", families=["click"])],
}

QUESTIONS: dict[str, dict[str, Any]] = {
    "two columns": {"columns": ["a", "b"]},
    "two columns where a > 10": {"columns": ["a", "b"], "where": "a > 10"},
}


def filled(db: stelae.Database, name: str, rows: int, number: int) -> stelae.Table:
    groups = [stelae.columns("data", FIRST), *SHAPES[name]]
    table = db.create_table(f"t{number}", key={"id": "int64"}, groups=groups)
    ids = np.arange(rows)
    frame = {"id": ids, "a": ids, "b": ids / 3, "text": [f"row {n}" for n in ids], "c": (ids % 100).astype(np.int32)}
    table.put_many(pa.table(frame))
    few = np.concatenate([ids[::10], np.arange(rows, rows + rows // 10)])
    if "cells" in name:
        cells = {"id": few, "family": ["click"] * len(few), "qualifier": ["x"] * len(few), "value": [b"1"] * len(few)}
        table.put_many(pa.table(cells), cells="long")
    elif len(groups) > 1:
        some = ids if "all rows" in name else few
        table.put_many(pa.table({"id": some, "x": some, "note": [f"note {n}" for n in some]}))
    table.flush()
    table.compact()
    return table


def scanned(table: stelae.Table, **asked: Any) -> Callable[[], int]:
    return lambda: sum(batch.num_rows for batch in table.scan(**asked).batches())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    found: list[Row] = []
    with tempfile.TemporaryDirectory() as place, stelae.open(Path(place) / "db") as db:
        for number, name in enumerate(SHAPES):
            table = filled(db, name, given.rows, number)
            for what, asked in QUESTIONS.items():
                every, having = best(given.rounds, scanned(table, **asked), scanned(table, rows="having", **asked))
                found.append(Row(f"{name}: {what}", every, having, 'rows="having"'))
    report("columns", found)


if __name__ == "__main__":
    main()
