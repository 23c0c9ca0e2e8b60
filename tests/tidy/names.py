"""What a dotted name in a file stands for, seen through its imports."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache


@cache
def resolved(tree: ast.Module) -> tuple[tuple[int, str, ast.expr], ...]:
    """Each outermost use of an imported name, as (line, full dotted name, node): `t.time` after `import time as t`.
    Several rules ask for those of the same file."""
    wanted = (ast.Attribute, ast.Name, ast.Import, ast.ImportFrom)
    nodes = [node for node in ast.walk(tree) if isinstance(node, wanted)]
    meanings = _imports(nodes)
    inner: set[ast.expr] = set()
    found = []
    for node in nodes:
        if isinstance(node, ast.Attribute | ast.Name) and node not in inner:
            dotted = _dotted(node, inner)
            if dotted and dotted[0] in meanings:
                found.append((node.lineno, ".".join([meanings[dotted[0]], *dotted[1:]]), node))
    return tuple(found)


def _imports(nodes: Iterable[ast.AST]) -> dict[str, str]:
    meanings: dict[str, str] = {}
    for node in nodes:
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
