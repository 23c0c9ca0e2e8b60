"""What a dotted name in a file stands for, seen through its imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def resolved(tree: ast.Module) -> Iterator[tuple[int, str, ast.expr]]:
    """Each outermost use of an imported name, as (line, full dotted name, node): `t.time` after `import time as t`."""
    meanings = _imports(tree)
    inner: set[ast.expr] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name) and node not in inner:
            dotted = _dotted(node, inner)
            if dotted and dotted[0] in meanings:
                yield node.lineno, ".".join([meanings[dotted[0]], *dotted[1:]]), node


def _imports(tree: ast.Module) -> dict[str, str]:
    meanings: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                meanings[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                meanings[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return meanings


def _dotted(node: ast.expr, inner: set[ast.expr]) -> list[str]:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
        inner.add(node)
    if not isinstance(node, ast.Name):
        return []
    return [node.id, *reversed(parts)]
