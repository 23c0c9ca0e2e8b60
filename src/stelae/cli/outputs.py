"""What a scan found, on its way into a file: Parquet, CSV, or JSON lines.

The file appears under its name when it is whole. CSV is what `stelae import` reads back: text is quoted, so that an
empty field is NULL; bytes that are no text are the JSON that says them; what CSV has no place for (cells without fixed
names, versions) is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

import stelae
from stelae.cli.screens import as_shown, counted, out, print_json, progress_bar
from stelae.cli.words.values import column_types, json_row, json_value, json_versions, says_bytes
from stelae.model.arrow import to_arrow
from stelae.model.errors import InvalidArgument
from stelae.model.schema import TableSchema
from stelae.model.types import Binary, Bool, ColumnType, Date, Float, Int

SUFFIXES = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
_PART_ROWS = 1_000


class FoundRows:
    """A scan, with what is known of its columns. `wanted` are the names that were asked for."""

    def __init__(self, scan: stelae.Scan, schema: TableSchema, wanted: Sequence[str] | None) -> None:
        self.scan = scan
        self.types = column_types(schema)
        self.wanted = wanted or ()
        self.keys = schema.codec.names
        self.has_versions = any(field.type != self._plain_type(field.name) for field in scan.schema)

    def _plain_type(self, name: str) -> pa.DataType:
        known = self.types.get(name)
        return pa.map_(pa.string(), pa.binary()) if known is None else to_arrow(known)

    def json(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """With `history = N`, lists of versions stand for values."""
        if not self.has_versions:
            return json_row(self.types, row)
        told = {name: self.types.get(name, Binary()) for name in row}
        return {
            name: json_value(told[name], value) if name in self.keys else json_versions(told[name], value)
            for name, value in row.items()
        }


def write_file(found: FoundRows, file: Path, kind: str, json: bool) -> None:
    if kind == "csv":
        _check_for_csv(found)
    with progress_bar(f"writing {file.name}") as bar, _appearing(file) as part:
        done = 0
        for count in _write_rows(found, part, kind):
            done += count
            bar.at(done, words=counted(done, "row"))
    if json:
        print_json({"rows": done, "file": str(file), "size_bytes": file.stat().st_size})
    else:
        out().print(f"[green]written[/] {counted(done, 'row')} to {as_shown(file)}")


def _write_rows(found: FoundRows, part: Path, kind: str) -> Iterator[int]:
    match kind:
        case "parquet":
            return _to_parquet(found, part)
        case "csv":
            return _to_csv(found, part)
        case _:
            return _to_json(found, part)


@contextmanager
def _appearing(file: Path) -> Iterator[Path]:
    """A name beside the file's; the file has it when all went well, and else nothing is left of it."""
    part = file.with_name(f".{file.name}.part")
    try:
        yield part
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def _to_parquet(found: FoundRows, file: Path) -> Iterator[int]:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(file, found.scan.schema, compression="zstd") as writer:
        for batch in found.scan.batches():
            writer.write_batch(batch)
            yield batch.num_rows


def _to_json(found: FoundRows, file: Path) -> Iterator[int]:
    encode = msgspec.json.Encoder().encode
    with file.open("wb") as stream:
        for rows in _parts(found.scan):
            stream.writelines(encode(found.json(row)) + b"\n" for row in rows)
            yield len(rows)


def _parts(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    stream = iter(rows)
    while some := list(islice(stream, _PART_ROWS)):
        yield some


def _check_for_csv(found: FoundRows) -> None:
    if found.has_versions:
        raise InvalidArgument("CSV has no place for versions: write a .json or .parquet file")
    exact = {name for name in found.wanted if ":" in name and not name.endswith(":")}
    for name in found.scan.schema.names:
        if name not in found.types and not any(cell.startswith(f"{name}:") for cell in exact):
            raise InvalidArgument(
                f"CSV has no place for the cells of family {name!r}: name cells, as in --columns {name}:x, "
                "choose other columns, or write a .json or .parquet file"
            )


def _to_csv(found: FoundRows, file: Path) -> Iterator[int]:
    from pyarrow import csv

    cells = [name for name in found.wanted if ":" in name]
    names = [*(name for name in found.scan.schema.names if name in found.types), *cells]
    schema = pa.schema([pa.field(name, _csv_type(found.types.get(name, Binary()))) for name in names])
    options = csv.WriteOptions(quoting_style="needed")
    with csv.CSVWriter(str(file), schema, write_options=options) as writer:
        for rows in _parts(found.scan):
            texts = {name: [csv_value(found.types, name, row.get(name)) for row in rows] for name in names}
            writer.write_batch(pa.RecordBatch.from_pydict(texts, schema=schema))
            yield len(rows)


def _csv_type(type_: ColumnType) -> pa.DataType:
    return to_arrow(type_) if isinstance(type_, Bool | Int | Float | Date) else pa.string()


def _said_bytes(value: bytes) -> str:
    return msgspec.json.encode(json_value(Binary(), value)).decode()


def csv_value(types: Mapping[str, ColumnType], name: str, value: Any) -> Any:
    """As `values.from_text` reads it back."""
    match value:
        case None | str() | bool() | int() | float():
            return value
        case bytes():
            try:
                text = value.decode()
            except UnicodeDecodeError:
                return _said_bytes(value)
            return _said_bytes(value) if says_bytes(text) else text
        case list() | dict():
            return msgspec.json.encode(json_value(types[name], value)).decode()
        case datetime():
            return value.isoformat()
        case date():
            return value
        case _:
            return str(value)
