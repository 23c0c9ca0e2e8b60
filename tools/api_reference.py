"""Writes docs/api.md and docs/api-aio.md: the public API, from its signatures and docstrings.

    python tools/api_reference.py            # writes the pages
    python tools/api_reference.py --check    # says which are not as they would be written

What is indented in a docstring, or is a paragraph of Python, is an example and becomes a Python block; the tests run
each of them.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any, get_args

import stelae
import stelae.aio
import stelae.schema
from stelae.model import errors
from stelae.model.predicate.build import Term

DOCS = Path(__file__).parent.parent / "docs"
_NAMES = {
    "GroupSpec": "Group",
    "SchemaVersion": "int",
    "ColumnId": "int",
    "GroupId": "int",
}
_LINE_MAX = 100
_GENERATED = "*Made by `tools/api_reference.py` from the docstrings: change those.*"
_CLASSES: tuple[tuple[str, type], ...] = (
    ("Database", stelae.Database),
    ("Table", stelae.Table),
    ("Scan", stelae.Scan),
    ("Batch", stelae.Batch),
    ("Snapshot", stelae.Snapshot),
    ("Row", stelae.Row),
    ("Version", stelae.Version),
    ("Description", stelae.Description),
)
_VALUES: tuple[tuple[str, type], ...] = (
    ("TableSchema", stelae.TableSchema),
    ("TableStats", stelae.TableStats),
    ("TabletInfo", stelae.TabletInfo),
    ("ZoneInfo", stelae.ZoneInfo),
    ("CheckReport", stelae.CheckReport),
    ("Problem", stelae.Problem),
)
"""What calls give back, to be read: fields without methods."""
_PARTS = ("KeyColumn", "ColumnsGroup", "Column", "CellsGroup", "Family", "GroupOptions")
"""Of stelae.schema: what schemas are made of, but for types and policies, which are told in a line."""
_INTERNAL = {"operand"}
"""Members that are for other parts of the package."""


def pages() -> dict[str, str]:
    """By the name of the file."""
    return {"api.md": _page(_plain_parts()), "api-aio.md": _page(_async_parts())}


def _page(parts: Iterator[str]) -> str:
    return "\n\n".join(parts) + "\n"


def _plain_parts() -> Iterator[str]:
    yield "# API"
    yield f"{_GENERATED}\nSee also [stelae.aio](api-aio.md), for event loops, and the [tutorial](tutorial.md)."
    yield "## Module stelae"
    for name in ("open", "connect", "columns", "cells", "col"):
        yield from _callable(f"stelae.{name}", getattr(stelae, name))
    yield "## Conditions"
    yield (
        "What `col()` gives is compared with `== != < <= > >=`, or as below; conditions are joined with `&`, `|` and\n"
        '`~`. As text, it is the same language: `age > 30 and (name ~= "A" or not visits is null)`.'
    )
    yield from _members("col(name)", Term)
    for name, kind in _CLASSES:
        yield from _class(name, kind)
    for name, kind in _VALUES:
        yield from _value(name, kind)
    yield "## Module stelae.schema"
    yield from _documented(stelae.schema.__doc__)
    for name in _PARTS:
        yield from _value(name, getattr(stelae.schema, name), depth=3)
    others = ", ".join(f"`{name}`" for name in stelae.schema.__all__ if name not in _PARTS)
    yield f"Types and purge policies: {others}."
    yield "## Errors"
    yield "All are names of `stelae`. A `Retryable` one is tried again by the client."
    yield "\n".join(["| error | is a | |", "|---|---|---|", *_error_lines()])


def _async_parts() -> Iterator[str]:
    yield "# API for event loops: stelae.aio"
    yield f"{_GENERATED} Arguments, results and errors are those of the [plain API](api.md)."
    yield from _documented(stelae.aio.__doc__)
    for name in ("open", "connect"):
        yield from _callable(f"stelae.aio.{name}", getattr(stelae.aio, name))
    for name in ("AsyncDatabase", "AsyncTable", "AsyncScan", "AsyncBatch"):
        yield from _class(name, getattr(stelae.aio, name))


def _class(name: str, kind: type) -> Iterator[str]:
    yield f"## {name}"
    yield from _documented(kind.__doc__)
    fields = getattr(kind, "_fields", ())
    if fields:
        hints = inspect.get_annotations(kind)
        yield "\n".join(f"- `{each}: {_type_text(hints[each])}`" for each in fields)
    yield from _members(name, kind)


def _value(name: str, kind: type, depth: int = 2) -> Iterator[str]:
    yield f"{'#' * depth} {name}"
    yield from _documented(kind.__doc__)
    yield "\n".join(f"- `{each}: {_type_text(hint)}`" for each, hint in inspect.get_annotations(kind).items())


def _members(owner: str, kind: type) -> Iterator[str]:
    for name, member in vars(kind).items():
        if name.startswith("_") or name in _INTERNAL:
            continue
        if isinstance(member, property):
            if member.__doc__:
                yield f"### {owner}.{name}"
                yield from _documented(member.__doc__)
        elif inspect.isfunction(member):
            yield from _callable(f"{owner}.{name}", member)


def _callable(title: str, function: Callable[..., Any]) -> Iterator[str]:
    yield f"### {title}"
    yield f"```text\n{signature_text(title.rpartition('.')[2], function)}\n```"
    yield from _documented(function.__doc__)


def signature_text(name: str, function: Callable[..., Any]) -> str:
    """On one line, or one parameter a line."""
    signature = inspect.signature(function)
    parts: list[str] = []
    is_keyword_only = False
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword_only:
            is_keyword_only = True
            parts.append("*")
        parts.append(_parameter_text(parameter))
    waits = "async " if inspect.iscoroutinefunction(function) else ""
    tail = "" if signature.return_annotation is signature.empty else f" -> {_type_text(signature.return_annotation)}"
    line = f"{waits}{name}({', '.join(parts)}){tail}"
    if len(line) <= _LINE_MAX:
        return line
    return f"{waits}{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){tail}"


def _parameter_text(parameter: inspect.Parameter) -> str:
    stars = (
        "*" if parameter.kind is parameter.VAR_POSITIONAL else "**" if parameter.kind is parameter.VAR_KEYWORD else ""
    )
    text = f"{stars}{parameter.name}"
    if parameter.annotation is not parameter.empty:
        text += f": {_type_text(parameter.annotation)}"
    return text if parameter.default is parameter.empty else f"{text} = {parameter.default!r}"


def _type_text(annotation: object) -> str:
    if isinstance(annotation, str):
        text = annotation
    elif get_args(annotation):
        text = re.sub(r"\bstelae\.([a-z_]+\.)*", "", str(annotation))
    else:
        text = getattr(annotation, "__name__", str(annotation))
    for inside, outside in _NAMES.items():
        text = text.replace(inside, outside)
    return text.replace("os.PathLike[str]", "PathLike").replace("Txn", "int").replace("Micros", "int")


def _documented(text: str | None) -> Iterator[str]:
    """Its paragraphs: prose as it is, examples as code."""
    example: list[str] = []
    for paragraph in inspect.cleandoc(text or "").split("\n\n"):
        if _is_code(paragraph):
            example.append(dedent(paragraph))
            continue
        if example:
            yield _block(example)
            example = []
        if paragraph:
            yield paragraph
    if example:
        yield _block(example)


def _block(paragraphs: list[str]) -> str:
    return "```python\n" + "\n\n".join(paragraphs).rstrip() + "\n```"


def _is_code(paragraph: str) -> bool:
    if not paragraph.strip() or paragraph.rstrip().endswith("."):
        return paragraph.rstrip().endswith("...") and paragraph.startswith((" ", "async "))
    try:
        compile(dedent(paragraph), "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError:
        return False
    return True


def _error_lines() -> Iterator[str]:
    """Of those that users can meet, in the order in which they are defined."""
    exported = {name: getattr(stelae, name) for name in stelae.__all__}
    for name in (*(name for name in vars(errors) if name in exported), *exported):
        kind = exported.pop(name, None)
        if isinstance(kind, type) and issubclass(kind, errors.StelaeError):
            said = " ".join(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].split())
            base = "" if kind is errors.StelaeError else f"`{kind.__bases__[0].__name__}`"
            yield f"| `{name}` | {base} | {said} |"


def main(arguments: list[str]) -> int:
    stale = [name for name, text in pages().items() if _read(DOCS / name) != text]
    if "--check" in arguments:
        for name in stale:
            print(f"docs/{name} is not what its docstrings say: run python tools/api_reference.py")
        return int(bool(stale))
    for name in stale:
        (DOCS / name).write_text(pages()[name], "utf-8")
        print(f"docs/{name} written")
    return 0


def _read(path: Path) -> str:
    return path.read_text("utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
