"""`format("stelae")`: a table of a store as a source and a sink of Spark, in Python and SQL.

    spark.read.format("stelae").option("path", "data").option("table", "users").load()
    spark.read.format("stelae").option("cluster", "db1:7100").option("table", "users").load()
    CREATE TEMPORARY VIEW users USING stelae OPTIONS (path 'data', table 'users')

Spark makes an object of this class in a process of its own, and sends it to others as it is, so whatever is known by
then goes with it: the snapshot that a frame is of, for one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSource

from stelae.model.errors import InvalidArgument
from stelae.spark.reading.question import Question
from stelae.spark.source.reader import HeldParts, HeldReader, held_parts
from stelae.spark.types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType


class StelaeSource(DataSource):  # type: ignore[misc]
    """A table of a store. Reading takes `path` or `cluster`, `table`, and `columns`, `where`, `start`, `stop`,
    `prefix`, `at`, `history`, `cells`, `rows` and `ttl`."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._held: HeldParts | None = None

    @classmethod
    def name(cls) -> str:
        return "stelae"

    def schema(self) -> StructType:
        self._held = held_parts(self.options)
        return spark_schema(Question(self._held.job).arrow_schema)

    def reader(self, schema: StructType) -> HeldReader:
        if self._held is None:
            # A schema was given: it says which columns are read.
            self._held = held_parts(self.options, None if "columns" in self.options else schema.fieldNames())
        return HeldReader(self._held, schema)

    def streamReader(self, schema: StructType) -> NoReturn:  # noqa: N802, ARG002 - Spark's name
        raise InvalidArgument("a table is no stream to read from: spark.read.format('stelae') reads it at a snapshot")

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from stelae.spark.source import writer as source_write

        return source_write.batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        from stelae.spark.source import writer as source_write

        return source_write.stream_writer(self.options, schema, overwrite)
