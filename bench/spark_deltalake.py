"""Delta without Spark, by PyPI's `deltalake`: its MERGE rewrites files, which any Spark then reads natively."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
from spark_data import KEY

_PARTS_ROWS_MAX = 1_000_000


def version() -> str | None:
    """None if it is not installed."""
    try:
        import deltalake
    except ImportError:
        return None
    return str(deltalake.__version__)


class DeltaLake:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.title = f"deltalake {version()}, files rewritten"

    def make(self, table: str, files: Path) -> None:
        """One file for each that is there, as they are sorted."""
        from deltalake import WriterProperties, write_deltalake

        properties = WriterProperties(compression="ZSTD", max_row_group_size=_PARTS_ROWS_MAX)
        for number, file in enumerate(sorted(files.glob("*.parquet"))):
            mode: Any = "overwrite" if number == 0 else "append"
            content = ds.dataset(file).to_table()
            write_deltalake(str(self._directory / table), content, mode=mode, writer_properties=properties)

    def merge_s(self, table: str, updates: Path) -> float:
        from deltalake import DeltaTable, WriterProperties

        start = time.perf_counter()
        merging = DeltaTable(str(self._directory / table)).merge(
            pq.read_table(updates),
            predicate=f"t.{KEY} = c.{KEY}",
            source_alias="c",
            target_alias="t",
            writer_properties=WriterProperties(compression="ZSTD"),
        )
        merging.when_matched_update_all().when_not_matched_insert_all().execute()
        return time.perf_counter() - start

    def frame(self, spark: Any, table: str) -> Any:
        from deltalake import DeltaTable

        return spark.read.parquet(*DeltaTable(str(self._directory / table)).file_uris())
