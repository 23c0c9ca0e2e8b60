"""Delta without Spark, by PyPI's `deltalake`: its MERGE rewrites files, which any Spark then reads natively."""

from __future__ import annotations

import importlib
import shutil
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
        return str(_module().__version__)
    except ImportError:
        return None


def _module() -> Any:
    return importlib.import_module("deltalake")


class DeltaLake:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.title = f"deltalake {version()}, files rewritten"

    def make(self, table: str, files: Path) -> None:
        """One file for each that is there, as they are sorted."""
        lake = _module()
        properties = lake.WriterProperties(compression="ZSTD", max_row_group_size=_PARTS_ROWS_MAX)
        for number, file in enumerate(sorted(files.glob("*.parquet"))):
            mode = "overwrite" if number == 0 else "append"
            content = ds.dataset(file).to_table()
            lake.write_deltalake(str(self._directory / table), content, mode=mode, writer_properties=properties)

    def merge_s(self, table: str, updates: Path) -> float:
        lake = _module()
        start = time.perf_counter()
        merging = lake.DeltaTable(str(self._directory / table)).merge(
            pq.read_table(updates),
            predicate=f"t.{KEY} = c.{KEY}",
            source_alias="c",
            target_alias="t",
            writer_properties=lake.WriterProperties(compression="ZSTD"),
        )
        merging.when_matched_update_all().when_not_matched_insert_all().execute()
        return time.perf_counter() - start

    def frame(self, spark: Any, table: str) -> Any:
        return spark.read.parquet(*_module().DeltaTable(str(self._directory / table)).file_uris())

    def drop(self, table: str) -> None:
        shutil.rmtree(self._directory / table, ignore_errors=True)
