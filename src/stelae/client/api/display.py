"""Tables and databases as people see them: in a terminal, in a notebook, and as plain dicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from stelae.model.errors import StelaeError
from stelae.model.public import public
from stelae.model.purge import print_duration
from stelae.model.schema import WILDCARD, ColumnsGroup, Group, TableSchema
from stelae.model.words import counted

if TYPE_CHECKING:
    # The command line shows sizes before it needs any of these, and what they import.
    from stelae.client.calls.session import Session
    from stelae.service.backend import Backend
    from stelae.service.deadlines import Deadline
    from stelae.service.tables import TableInfo, TableStats

T = TypeVar("T")

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_TABLES_SHOWN_MAX = 50
SHOWN_ROWS_MAX = 20
_CELL_MAX = 80
_GLANCE_S = 1.0
"""So long a store is waited for to show something: debuggers and notebooks do so without being asked."""


def glance(session: Session, look: Callable[[Backend, Deadline], T]) -> T | None:
    """What a look at the store gives, once and at once; None if the store does not answer, or is closed."""
    try:
        return look(session.backend, session.patience.deadline().within(_GLANCE_S))
    except StelaeError:
        return None


@public("Description")
class Description(dict[str, Any]):
    """A dict of everything there is to know about a table; it prints as a short text."""

    def __repr__(self) -> str:
        lines = [f"table {self['name']}  ({self['partition']}, zone {self['zone']})"]
        lines += [f"  {part:<10} {name:<20} {text}" for part, name, text in _lines(self)]
        tail = [*_sizes(self), f"retention {self['retention']}"]
        return "\n".join([*lines, "  " + ", ".join(tail), *([f"  {self['comment']}"] if self["comment"] else [])])

    def _repr_html_(self) -> str:
        caption = ": ".join([self["name"], *filter(None, [", ".join(_sizes(self))])])
        return html_table(caption, ("", "name", "type"), _lines(self))


def _sizes(described: dict[str, Any]) -> list[str]:
    if "tablets" not in described:
        return []
    return [counted(described["tablets"], "tablet"), shown_bytes(described["size_bytes"])]


def _lines(described: dict[str, Any]) -> list[tuple[str, str, str]]:
    lines = [("key", name, text) for name, text in described["key"].items()]
    for group, said in described["groups"].items():
        purge = "" if said["purge"] == "none" else f"purge {said['purge']}"
        lines += [(group, name, text) for name, text in said.get("columns", {}).items()]
        lines += [(group, f"{family}:", "binary cells") for family in said.get("families", ())]
        lines += [(group, "", purge)] if purge else []
    return lines


def described(info: TableInfo, stats: TableStats | None) -> Description:
    """Without stats, of a table that cannot be asked: nothing of its size."""
    properties = info.table.properties
    sizes = {} if stats is None else _stats(stats)
    return Description(
        name=info.name,
        id=info.id,
        zone=info.zone,
        partition="hash" if info.schema.hashed else "range",
        key={key.name: str(key.type) for key in info.schema.key},
        groups={group.name: _group(group) for group in info.schema.groups},
        retention=print_duration(properties.retention_us),
        comment=properties.comment,
        schema_version=info.schema.version,
        **sizes,
    )


def _stats(stats: TableStats) -> dict[str, int]:
    size_bytes = stats.file_bytes + stats.memory_bytes
    return {"tablets": stats.tablets, "files": stats.files, "size_bytes": size_bytes}


def _group(group: Group) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if isinstance(group, ColumnsGroup):
        found["columns"] = {column.name: str(column) for column in group.columns}
    else:
        found["families"] = [family.name for family in group.families] or [WILDCARD]
    options = group.options
    found["purge"] = "none" if options.purge is None else str(options.purge)
    found |= {name: getattr(options, name) for name in ("compression", "block_bytes", "in_memory", "bloom")}
    return found


def shown_bytes(size_bytes: int) -> str:
    """1536 is 1.5 KiB."""
    size, unit = float(size_bytes), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size_bytes} B" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


def table_line(info: TableInfo, stats: TableStats | None) -> str:
    """The repr of a table; without stats, of one that cannot be asked any more."""
    size = "" if stats is None else f"; {', '.join(_sizes(_stats(stats)))}"
    return f"<Table {info.name}: {_schema_line(info.schema)}{size}>"


def _schema_line(schema: TableSchema) -> str:
    keys = ", ".join(f"{key.name} {key.type}" for key in schema.key)
    groups = []
    for group in schema.groups:
        if isinstance(group, ColumnsGroup):
            groups.append(f"{group.name}({', '.join(f'{column.name} {column.type}' for column in group.columns)})")
        else:
            groups.append(f"{group.name}({', '.join(f'{f.name}:' for f in group.families) or WILDCARD})")
    return f"key({keys}), {', '.join(groups)}"


def database_line(place: str, names: Sequence[str] | None, *, is_closed: bool) -> str:
    """The repr of a database; without names, of one that cannot be asked."""
    if is_closed or names is None:
        return f"<Database {place}, {'closed' if is_closed else 'not answering now'}>"
    return f"<Database {place}: {counted(len(names), 'table')}>"


def database_html(place: str, names: Sequence[str] | None, *, is_closed: bool) -> str:
    if is_closed or names is None:
        return _escaped(database_line(place, names, is_closed=is_closed))
    rows = [(name,) for name in names[:_TABLES_SHOWN_MAX]]
    more = f", the first {_TABLES_SHOWN_MAX} of which are" if len(names) > _TABLES_SHOWN_MAX else ""
    return html_table(f"{place}: {counted(len(names), 'table')}{more}", ("table",), rows)


def _escaped(text: str) -> str:
    from html import escape  # only notebooks need it

    return escape(text)


def html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = "".join(f"<th>{_escaped(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{_escaped(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><caption>{_escaped(caption)}</caption><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"


def rows_html(caption: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """The first rows under the names of all their columns, in the order in which they come."""
    shown = rows[:SHOWN_ROWS_MAX]
    names = list(dict.fromkeys(name for row in shown for name in row))
    more = f"the first {len(shown)} rows" if len(rows) > len(shown) else counted(len(shown), "row")
    return html_table(f"{caption}; {more}", names, ([_cell(row, name) for name in names] for row in shown))


def row_html(row: Mapping[str, Any], caption: str) -> str:
    return html_table(caption, ("column", "value"), ((name, _cell(row, name)) for name in row))


def _cell(row: Mapping[str, Any], name: str) -> str:
    """What is not there is empty, NULL says so."""
    if name not in row:
        return ""
    value = row[name]
    text = "NULL" if value is None else value if isinstance(value, str) else str(value)
    return text if len(text) <= _CELL_MAX else text[: _CELL_MAX - 3] + "..."
