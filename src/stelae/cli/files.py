"""Files of rows, read part by part in bounded memory, each row with the place it stood at.

CSV is parsed by Arrow as text, and each field then read as its column's type says: in vectors where Arrow means the
same, else one by one, which finds the culprit. An empty field that is not quoted is NULL. JSON lines are in the form of
`values`. Parquet is taken as it is; its rows have numbers, not lines.
"""

from __future__ import annotations

import csv as python_csv
import io
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv as arrow_csv
from pyarrow import json as arrow_json

from stelae.adapters.signals import standard_input
from stelae.cli.words.values import BINARY, FLOAT, SAYS_BYTES, decoded, from_text, row_from_json, type_of
from stelae.model import types as t
from stelae.model.arrow import from_arrow, to_arrow
from stelae.model.arrow_values import array_of
from stelae.model.errors import InvalidArgument, InvalidSchema, NotFound
from stelae.model.values import coerce, show

STANDARD_INPUT = Path("-")
KINDS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_COLUMNS_MAX = 10_000
_ROWS_LOOKED_AT = 100
_ZONE = re.compile(r"(Z|[+-]\d\d:?\d\d)$")
_LINE_BYTES_MAX = 64 * 2**20
_BLOCK_BYTES = 4 * 2**20
_JSON_PART_BYTES_MAX = 16 * 2**20


@dataclass(frozen=True, slots=True)
class FileForm:
    """How files are read. `kind` None: by the end of their names."""

    kind: str | None = None
    delimiter: str | None = None
    null_texts: tuple[str, ...] = ("",)
    part_rows: int = 10_000


@dataclass(frozen=True, slots=True)
class FilePart:
    """Some rows of a file, as `put_many` takes them; `place_of` the number of one says where it stood."""

    rows: Any
    count: int
    place_of: Callable[[int | None], str]
    read_bytes: float


def file_kind(file: Path, form: FileForm) -> str:
    if form.kind is not None:
        return form.kind
    if file == STANDARD_INPUT:
        raise InvalidArgument("say what standard input is with --format csv, json or parquet")
    name = file.with_suffix("") if file.suffix.lower() in _COMPRESSED else file
    kind = KINDS.get(name.suffix.lower())
    if kind is None:
        raise InvalidArgument(f"{file}: the name ends in none of {', '.join(KINDS)}; say what it is with --format")
    return kind


def check_file(file: Path) -> None:
    if file == STANDARD_INPUT:
        return
    if not file.exists():
        raise NotFound(f"no file {file}")
    if not file.is_file():
        raise InvalidArgument(f"{file} is a directory; name the files in it")


class _Counted(io.RawIOBase):
    """Counts what was read."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.count_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        self.count_bytes += len(data)
        return len(data)


@contextmanager
def _open_counting(file: Path) -> Iterator[tuple[IO[bytes], _Counted]]:
    """The bytes, decompressed, and how many of the file they took."""
    if file == STANDARD_INPUT:
        with standard_input() as source:
            counted = _Counted(source)
            yield io.BufferedReader(counted), counted
        return
    compression = _COMPRESSED.get(file.suffix.lower())
    with file.open("rb") as stream:
        counted = _Counted(stream)
        if compression is None:
            yield io.BufferedReader(counted), counted
        else:
            yield io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(counted, "r"), compression)), counted


def parts_of(file: Path, form: FileForm, types: Mapping[str, t.ColumnType]) -> Iterator[FilePart]:
    """All rows, in order."""
    kind = file_kind(file, form)
    try:
        match kind:
            case "parquet":
                yield from _parquet_parts(file, form)
            case "json":
                yield from _json_parts(file, form, types)
            case _:
                yield from _csv_parts(file, form, types, _delimiter(kind, form))
    except pa.ArrowInvalid as error:
        raise _unreadable(error, file, kind) from None
    except (OSError, EOFError) as error:
        raise InvalidArgument(f"{file}: {error}") from None


def _unreadable(error: pa.ArrowInvalid, file: Path, kind: str) -> InvalidArgument:
    if "Empty CSV" in str(error):
        return InvalidArgument(f"{file}: is empty; the first line of a CSV file names its columns")
    return InvalidArgument(f"{file}: cannot be read as {kind}: {str(error).partition(chr(10))[0]}")


def _delimiter(kind: str, form: FileForm) -> str:
    return form.delimiter or ("\t" if kind == "tsv" else ",")


# -- Parquet


def _parquet_parts(file: Path, form: FileForm) -> Iterator[FilePart]:
    source = pa.BufferReader(sys.stdin.buffer.read()) if file == STANDARD_INPUT else file
    with pq.ParquetFile(source) as parquet:
        size_bytes = 0 if file == STANDARD_INPUT else file.stat().st_size
        total, before = max(1, parquet.metadata.num_rows), 0
        for batch in parquet.iter_batches(batch_size=form.part_rows):
            first, before = before, before + batch.num_rows
            yield FilePart(batch, batch.num_rows, _numbered(file, first), size_bytes * before / total)


def _numbered(file: Path, first: int) -> Callable[[int | None], str]:
    return lambda at: str(file) if at is None else f"{file}, row {first + at + 1:,}"


# -- JSON lines


def _json_parts(file: Path, form: FileForm, types: Mapping[str, t.ColumnType]) -> Iterator[FilePart]:
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    number, gathered_bytes = 0, 0

    def part(read_bytes: int) -> FilePart:
        given, at_lines = list(rows), list(lines)
        return FilePart(
            given,
            len(given),
            lambda at: str(file) if at is None else f"{file}, line {at_lines[at]}",
            read_bytes,
        )

    with _open_counting(file) as (stream, counted):
        while line := stream.readline(_LINE_BYTES_MAX + 1):
            number += 1
            if len(line) > _LINE_BYTES_MAX:
                raise InvalidArgument(f"{file}, line {number}: is longer than {_LINE_BYTES_MAX:,} bytes")
            if not line.strip():
                continue
            where = f"{file}, line {number}"
            if not rows and number == 1 and line.lstrip().startswith(b"["):
                raise InvalidArgument(
                    f"{file} is one JSON list; JSON lines have one object a line: jq -c '.[]' makes them"
                )
            rows.append(row_from_json(types, decoded(line, where), where))
            lines.append(number)
            gathered_bytes += len(line)
            if len(rows) >= form.part_rows or gathered_bytes >= _JSON_PART_BYTES_MAX:
                yield part(counted.count_bytes)
                rows, lines, gathered_bytes = [], [], 0
        if rows:
            yield part(counted.count_bytes)


# -- CSV


def _csv_parts(file: Path, form: FileForm, types: Mapping[str, t.ColumnType], delimiter: str) -> Iterator[FilePart]:
    names: list[str] | None = None
    seen = 0
    refused: list[str] = []
    try:
        with _open_counting(file) as (stream, counted):
            for block in _csv_reader(file, stream, delimiter, form.null_texts, refused):
                if names is None:
                    names = _header(file, block)
                    block = block.slice(1)
                for first in range(0, block.num_rows, form.part_rows):
                    texts = block.slice(first, form.part_rows)
                    place_of = _csv_place(file, delimiter, seen)
                    columns = [typed_column(types, name, texts.column(at), place_of) for at, name in enumerate(names)]
                    seen += texts.num_rows
                    rows = pa.RecordBatch.from_arrays(columns, names=names)
                    yield FilePart(rows, texts.num_rows, place_of, counted.count_bytes)
    except pa.ArrowInvalid:
        if not refused:
            raise
        raise InvalidArgument(refused[0]) from None


def _csv_reader(
    file: Path, stream: IO[bytes], delimiter: str, null_texts: Sequence[str], refused: list[str]
) -> arrow_csv.CSVStreamingReader:
    """What is wrong with a row's number of fields goes to `refused`: Arrow lets no exception through."""

    def refuse(row: Any) -> str:
        place = _csv_place(file, delimiter, 0)(None if row.number is None else row.number - 2)
        refused.append(
            f"{place}: has {row.actual_columns} fields, the header has {row.expected_columns}: {show(row.text)}"
        )
        return "error"

    return arrow_csv.open_csv(
        stream,
        # The header is read as a row, since the types of all columns must be said before their names are known.
        read_options=arrow_csv.ReadOptions(autogenerate_column_names=True, use_threads=False, block_size=_BLOCK_BYTES),
        parse_options=arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=refuse),
        convert_options=arrow_csv.ConvertOptions(
            column_types={f"f{at}": pa.string() for at in range(_COLUMNS_MAX)},
            null_values=list(null_texts),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _header(file: Path, block: pa.RecordBatch) -> list[str]:
    names = [column[0].as_py() for column in block.columns]
    for at, name in enumerate(names):
        if not name:
            raise InvalidArgument(f"{file}, line 1: column {at + 1} has no name")
        if name in names[:at]:
            raise InvalidArgument(f"{file}, line 1: column {name!r} is there twice")
    return names


def _csv_place(file: Path, delimiter: str, first: int) -> Callable[[int | None], str]:
    """Fields may hold line ends, so the line is looked up in the file, and only when somebody asks."""

    def place(at: int | None) -> str:
        if at is None:
            return str(file)
        if file == STANDARD_INPUT or file.suffix.lower() in _COMPRESSED:
            return f"{file}, row {first + at + 1:,}"
        return f"{file}, line {_line_of_record(file, delimiter, first + at + 1)}"

    return place


def _line_of_record(file: Path, delimiter: str, record: int) -> int:
    """Where a record begins; the header is record 0. Empty lines are no records."""
    with file.open(encoding="utf-8-sig", errors="replace", newline="") as stream:
        reader = python_csv.reader(stream, delimiter=delimiter)
        found, end = -1, 0
        for fields in reader:
            begin, end = end + 1, reader.line_num
            found += 1 if fields else 0
            if found == record and fields:
                return begin
    return end


def typed_column(
    types: Mapping[str, t.ColumnType], name: str, texts: pa.Array, place_of: Callable[[int | None], str]
) -> pa.Array:
    """Fields as their column's type; those of a column that the table has not stay text, and the store tells."""
    type_ = type_of(types, name) or t.String()
    if isinstance(type_, t.KeyType) and not (isinstance(type_, t.Binary) and _say_bytes(texts)):
        try:
            found = pc.cast(texts, to_arrow(type_))
            # Numbers that are too large are infinite for Arrow.
            if not isinstance(type_, t.Float) or not pc.any(pc.is_inf(found)).as_py():
                return found
        except pa.ArrowInvalid:
            pass  # one by one, to find it
    values = []
    for at, text in enumerate(texts.to_pylist()):
        try:
            value = None if text is None else from_text(type_, text, f"column {name!r}")
            values.append(None if value is None else coerce(type_, value, f"column {name!r}"))
        except InvalidArgument as error:
            raise InvalidArgument(f"{place_of(at)}: {error}") from None
    return array_of(type_, values)


def _say_bytes(texts: pa.Array) -> bool:
    """Whether any of the fields says its bytes otherwise than by its text."""
    return bool(pc.any(pc.match_substring_regex(texts, SAYS_BYTES)).as_py())


# -- schemas


def arrow_schema_of_file(file: Path, form: FileForm | None = None) -> pa.Schema:
    """What a file's columns are; of text, what its first rows look like."""
    check_file(file)
    form = form or FileForm()
    kind = file_kind(file, form)
    if file == STANDARD_INPUT:
        raise InvalidArgument("standard input can be read only once: make the table first, with `stelae table create`")
    try:
        schema = _read_schema(file, form, kind)
    except pa.ArrowInvalid as error:
        raise _unreadable(error, file, kind) from None
    return pa.schema([_known(field) for field in schema])


def _read_schema(file: Path, form: FileForm, kind: str) -> pa.Schema:
    if kind == "parquet":
        return pq.read_schema(file)
    with _open_counting(file) as (stream, _):
        if kind == "json":
            options = arrow_json.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES)
            with arrow_json.open_json(stream, read_options=options) as reader:
                return _with_zones(reader.schema, file)
        parse = arrow_csv.ParseOptions(delimiter=_delimiter(kind, form), newlines_in_values=True)
        convert = arrow_csv.ConvertOptions(null_values=list(form.null_texts))
        return arrow_csv.open_csv(stream, parse_options=parse, convert_options=convert).schema


def _with_zones(schema: pa.Schema, file: Path) -> pa.Schema:
    """Arrow takes texts for times without regard to their zones: where the first rows have one, so has the column."""
    moments = [field for field in schema if pa.types.is_timestamp(field.type)]
    zoned: set[str] = set()
    if moments:
        with _open_counting(file) as (stream, _):
            for line in islice(stream, _ROWS_LOOKED_AT):
                row = decoded(line, str(file)) if line.strip() else {}
                texts = [(field.name, row.get(field.name)) for field in moments]
                zoned |= {name for name, text in texts if isinstance(text, str) and _ZONE.search(text)}
    for field in moments:
        type_ = pa.timestamp("us", "UTC" if field.name in zoned else None)
        schema = schema.set(schema.get_field_index(field.name), field.with_type(type_))
    return schema


def _known(field: pa.Field) -> pa.Field:
    """A column of nothing but NULL, or of a type that no column has, is text."""
    if pa.types.is_struct(field.type) and [each.name for each in field.type] in ([BINARY], [FLOAT]):
        return field.with_type(pa.binary() if field.type[0].name == BINARY else pa.float64())
    try:
        from_arrow(field.type, field.name)
    except InvalidSchema:
        return field.with_type(pa.string())
    return field
