"""`stelae inspect`: what one file of a store holds, and whether it is whole."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stelae.cli.places import MACHINE_PANEL, JsonOption
from stelae.cli.screens import as_shown, facts, number_text, out, print_json
from stelae.model.errors import Corruption, NotFound
from stelae.model.hybrid import to_datetime

if TYPE_CHECKING:
    from stelae.model.ids import Txn


def register_inspect(app: typer.Typer) -> None:
    epilog = "Example: stelae inspect data/fragments/00000000.parquet --json"
    app.command("inspect", rich_help_panel=MACHINE_PANEL, epilog=epilog)(inspect_file)


class _File:
    """Any file as a blob: a store has rules for names, a person who looks at a file has none."""

    def __init__(self, file: Path) -> None:
        self.name = file.name
        self._data = file.read_bytes()
        self.size_bytes = len(self._data)

    def read(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]

    def close(self) -> None:
        """All of it is in memory."""


def inspect_file(
    file: Annotated[Path, typer.Argument(help="A fragment (.parquet) or a log segment (.log).")],
    json: JsonOption = False,
) -> None:
    """What a file of a store holds, and whether its bytes are whole. Changes nothing."""
    from stelae.format.log.positions import NAME_SUFFIX

    if not file.is_file():
        raise NotFound(f"no file {file}")
    found = _segment(file) if file.suffix == NAME_SUFFIX else _fragment(file)
    if json:
        print_json(found)
        return
    title = f"[bold]{as_shown(file.name)}[/]"
    out().print(facts(((name.replace("_", " "), as_shown(_text(value))) for name, value in found.items()), title))


def _text(value: Any) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case int():
            return number_text(value)
        case dict():
            return "\n".join(f"{name}: {_text(part)}" for name, part in value.items())
        case list():
            return "\n".join(_text(part) for part in value)
        case _:
            return str(value)


def _fragment(file: Path) -> dict[str, Any]:
    from stelae.format.fragment.reader import FragmentReader

    reader = FragmentReader(_File(file))
    reader.verify()
    footer = reader.footer
    spec, stats = footer.spec, footer.stats
    return {
        "kind": f"fragment of a {spec.kind} group",
        "format_version": footer.version,
        "table": spec.table,
        "group": spec.group,
        "schema_version": spec.schema_version,
        "key": {column.name: column.type for column in spec.key},
        "columns": {column.name: column.type for column in spec.columns},
        "families": [name for name, _ in spec.families],
        "nulls_are": spec.nulls,
        "records": stats.records,
        "erasures": stats.erasures,
        "first_row": repr(stats.first_row),
        "last_row": repr(stats.last_row),
        "commits": _commits(stats.txn_min, stats.txn_max),
        "blocks": reader.block_count,
        "size_bytes": file.stat().st_size,
        "data_pages_whole": True,
        "footer_and_filters": "not checked: their checksums are kept by the tablet that refers to the file",
    }


def _commits(first: Txn, last: Txn) -> str:
    if first > last:
        return "as the tablet's config says"
    return f"{first} ({to_datetime(first):%Y-%m-%d %H:%M:%S} UTC) to {last} ({to_datetime(last):%Y-%m-%d %H:%M:%S} UTC)"


def _segment(file: Path) -> dict[str, Any]:
    from stelae.format.log.reader import read_segment

    data = file.read_bytes()
    content = read_segment(file.name, data)
    tail = len(data[content.end :].rstrip(b"\0"))  # room that was taken ahead is no torn group
    if content.end == 0 and tail:
        raise Corruption("has no whole segment header: nothing in it can be read", file.name, 0)
    tablets = Counter((record.table, record.tablet) for record in content.records)
    return {
        "kind": "log segment",
        "version": content.version,
        "segment": content.segment,
        "previous": f"{content.previous.segment}, up to byte {content.previous.end}" if content.previous else "none",
        "records": len(content.records),
        "records_by_tablet": {f"table {table}, tablet {tablet}": n for (table, tablet), n in sorted(tablets.items())},
        "valid_bytes": content.end,
        "torn_tail_bytes": tail,
        "room_ahead_bytes": len(data) - content.end - tail,
    }
