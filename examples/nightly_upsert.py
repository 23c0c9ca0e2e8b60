"""A nightly upsert: orders from CSV files into a table that goes on answering while it is loaded.

Every night a file arrives. It is read as text, checked, and loaded under the name of the night: run twice, by a
scheduler that lost count or by hand after a crash, it is loaded once. Rows that break a rule go aside with the reason;
the others are visible all at once. At the end the table is compared with all files in one load, value by value.

    python examples/nightly_upsert.py             # three nights, in a temporary directory
    python examples/nightly_upsert.py --dir shop  # leaves them in shop/
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import stelae
import stelae.spark

NIGHTS = ("2026-11-14", "2026-11-15", "2026-11-16")
STATES = ("placed", "paid", "sent")
console = Console(highlight=False, soft_wrap=True)


def write_arrivals(directory: Path) -> None:
    """What another system leaves each night: new orders, old ones that changed, and a few broken lines."""
    directory.mkdir()
    for night, name in enumerate(NIGHTS):
        numbers = range(night * 500, night * 500 + 1_500)
        lines = [f"{number},c-{number % 97:02d},{number % 90 + 1}.50,{STATES[night]}" for number in numbers]
        lines += [",c-97,1.00,placed", "soon,c-98,2.00,placed", f"{10_000 + night},c-99,a lot,placed"]
        (directory / f"{name}.csv").write_text("\n".join(["id,customer,amount,state", *lines, ""]))


def arrived(spark: Any, directory: Path, night: str) -> Any:
    """As the table's types say; what is no number becomes NULL, which the table does not take."""
    text = "id string, customer string, amount string, state string"
    frame = spark.read.option("header", True).schema(text).csv(str(directory / "arrivals" / f"{night}.csv"))
    return frame.selectExpr(
        "TRY_CAST(id AS BIGINT) AS id", "customer", "TRY_CAST(amount AS DECIMAL(10, 2)) AS amount", "state"
    )


def load_night(spark: Any, db: stelae.Database, directory: Path, night: str) -> Any:
    return stelae.spark.load(
        spark,
        db,
        "orders",
        arrived(spark, directory, night),
        job=f"orders-{night}",
        on_bad="skip",
        quarantine=str(directory / "aside" / night),
    )


def is_same_as_all_at_once(spark: Any, db: stelae.Database, directory: Path) -> bool:
    """The same table again: of each order, what the last file says."""
    first, *others = [arrived(spark, directory, night).selectExpr("*", f"'{night}' AS night") for night in NIGHTS]
    for other in others:
        first = first.union(other)
    newest = spark.sql(
        """SELECT id, max_by(customer, night) AS customer, max_by(amount, night) AS amount,
                  max_by(state, night) AS state
           FROM {files} WHERE id IS NOT NULL AND amount IS NOT NULL GROUP BY id""",
        files=first,
    )
    stelae.spark.load(spark, db, "orders_again", newest, create=True, key=["id"])
    return bool(stelae.spark.verify(spark, db, "orders", "orders_again").is_same)


def show_states(spark: Any, db: stelae.Database, before: int) -> None:
    counts = []
    for at in (before, None):
        frame = stelae.spark.read(spark, db, "orders", columns=["state"], at=at)
        counts.append({row["state"]: row["count"] for row in frame.groupBy("state").count().collect()})
    table = Table("state", "before the last night", "now")
    for state in STATES:
        table.add_row(state, *(f"{count.get(state, 0):,}" for count in counts))
    console.print(table)


def show_aside(spark: Any, directory: Path) -> None:
    aside = spark.read.parquet(*(str(path) for path in (directory / "aside").glob("*/*")))
    for row in aside.select("customer", "_reason").distinct().orderBy("customer").collect():
        console.print(f"[yellow]aside[/] from {row['customer']}: {row['_reason']}")


def run(directory: Path) -> bool:
    write_arrivals(directory / "arrivals")
    spark = stelae.spark.session("nightly-upsert")
    with stelae.open(directory / "data") as db:
        columns = {"customer": "string", "amount": "decimal(10, 2) not null default 0", "state": "string"}
        groups = [stelae.columns("state", columns)]
        orders = db.create_table("orders", key={"id": "int64"}, groups=groups, splits=[1_000], retention="7d")
        before = db.now()
        for night in NIGHTS:
            before = db.now()
            result = load_night(spark, db, directory, night)
            again = load_night(spark, db, directory, night)
            console.print(
                f"{night}: [green]{result.rows:,} rows[/] at one txn, [yellow]{result.skipped} aside[/]; "
                f"run again: {'done before' if again.was_done else '[red]loaded twice[/]'}"
            )
        states = [version.value for version in orders.history(1_200, columns=["state"])["state"]]
        console.print(f"order 1200, newest first: {', '.join(states)}")
        show_states(spark, db, before)
        show_aside(spark, directory)
        is_same = is_same_as_all_at_once(spark, db, directory)
        console.print("verify: " + ("[green]the same as all files in one load[/]" if is_same else "[red]different[/]"))
    return is_same


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dir", type=Path, help="a new directory to leave it all in")
    directory = parser.parse_args(argv).dir
    with tempfile.TemporaryDirectory(prefix="nightly-upsert-") as temporary:
        if directory is not None:
            directory.mkdir()
        return 0 if run(Path(temporary) if directory is None else directory.absolute()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
