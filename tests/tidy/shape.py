"""Rules on the shape of the package: how long a module is, where a name lives, what is written only once."""

from __future__ import annotations

import ast
import copy
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.tidy.sources import Source

MODULE_LINES_MAX = 400
README_LINES_MAX = 60
STATEMENTS_MIN = 4

Function = ast.FunctionDef | ast.AsyncFunctionDef


def too_long(source: Source) -> list[str]:
    lines = len(source.text.splitlines())
    if lines <= MODULE_LINES_MAX:
        return []
    return [f"{source.path}: {lines} lines, at most {MODULE_LINES_MAX}: give one of its nouns a file of its own"]


def names_with_two_homes(sources: Iterable[Source]) -> list[str]:
    """A public class or function is defined in one module of the whole package."""
    homes: dict[str, list[str]] = defaultdict(list)
    for source in sources:
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_") and not _is_overload(node):
                homes[node.name].append(f"{source.path}:{node.lineno}")
    return [
        f"{name} has {len(places)} homes ({', '.join(places)}): keep one, or say in the name what differs"
        for name, places in sorted(homes.items())
        if len({place.partition(":")[0] for place in places}) > 1
    ]


def busy_init(source: Source) -> list[str]:
    """Names are imported from where they live; only what users import gathers its public ones."""
    if not source.is_init or source.path in ("__init__.py", "spark/__init__.py"):
        return []
    return [
        f"{source.path}:{node.lineno}: a room's __init__.py holds at most a docstring"
        for node in source.tree.body
        if not (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
    ]


def duplicated_bodies(sources: Iterable[Source]) -> list[str]:
    """No two functions of four or more statements do the same, whatever they call their variables."""
    places: dict[str, list[str]] = defaultdict(list)
    for source in sources:
        for function in _functions(source.tree):
            body = _without_docstring(function.body)
            if sum(isinstance(node, ast.stmt) for statement in body for node in ast.walk(statement)) >= STATEMENTS_MIN:
                places[_normal_form(function, body)].append(f"{source.path}:{function.lineno} {function.name}")
    return [f"the same body {len(same)} times: {', '.join(same)}" for same in places.values() if len(same) > 1]


def bad_room(room: Path) -> list[str]:
    """A room has something to do, is a package, and says in a short README what it promises."""
    complaints = []
    modules = [file for file in room.rglob("*.py") if file.name != "__init__.py"]
    if not modules:
        complaints.append(f"{room.name}: an empty room: it appears when it has something to do")
    if not (room / "__init__.py").is_file():
        complaints.append(f"{room.name}: no __init__.py, so import-linter does not see it")
    readme = room / "README.md"
    if not readme.is_file():
        complaints.append(f"{room.name}: no README.md: its guarantee, its invariants, what it is not for")
    elif len(readme.read_text("utf-8").splitlines()) > README_LINES_MAX:
        complaints.append(f"{room.name}: README.md is longer than {README_LINES_MAX} lines")
    return complaints


def _is_overload(node: ast.ClassDef | Function) -> bool:
    return any(ast.unparse(decorator).rpartition(".")[2] == "overload" for decorator in node.decorator_list)


def _functions(tree: ast.Module) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return body[1:] if documented else body


def _normal_form(function: Function, body: list[ast.stmt]) -> str:
    """The body with its own variables numbered as they appear. What it calls, and its constants, stay themselves."""
    own = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
    nodes = [node for statement in body for node in ast.walk(statement)]
    own |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return _Numbering(own).text(body)


class _Numbering(ast.NodeTransformer):
    def __init__(self, own: set[str]) -> None:
        self._own = own
        self._numbers: dict[str, str] = {}

    def text(self, body: list[ast.stmt]) -> str:
        return "\n".join(ast.dump(self.visit(copy.deepcopy(statement))) for statement in body)

    def visit_Name(self, node: ast.Name) -> ast.Name:
        if node.id in self._own:
            node.id = self._numbers.setdefault(node.id, f"v{len(self._numbers)}")
        return node
