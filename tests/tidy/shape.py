"""Rules on the shape of the package: how long a module is, where a name lives, what is written only once."""

from __future__ import annotations

import ast
import copy
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from tests.tidy.sources import Source

MODULE_LINES_MAX = 400
ASSEMBLY_LINES_MAX = 499
MODULES_MAX = 20
README_LINES_MAX = 60
STATEMENTS_MIN = 4

NO_PACKAGES: Mapping[str, str] = {}
"""Folders and first words of modules that are alike and no package, and why."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def too_long(source: Source) -> list[str]:
    lines = len(source.text.splitlines())
    if lines <= MODULE_LINES_MAX:
        return []
    return [f"{source.path}: {lines} lines, at most {MODULE_LINES_MAX}: give one of its nouns a file of its own"]


def swollen_assembly(sources: Iterable[Source]) -> list[str]:
    """Assembly only constructs: what it would do besides belongs to the rooms it constructs of."""
    lines = sum(len(source.text.splitlines()) for source in sources if source.room == "assembly")
    if lines <= ASSEMBLY_LINES_MAX:
        return []
    return [f"assembly: {lines} lines, at most {ASSEMBLY_LINES_MAX}: move what is no constructor to its room"]


def names_with_two_homes(sources: Iterable[Source]) -> list[str]:
    """A public class or function is defined in one module of its room."""
    homes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for source in sources:
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_") and not _is_overload(node):
                homes[source.room, node.name].append(f"{source.path}:{node.lineno}")
    return [
        f"{name} has {len(places)} homes ({', '.join(places)}): keep one, or say in the name what differs"
        for (_, name), places in sorted(homes.items())
        if len({place.partition(":")[0] for place in places}) > 1
    ]


def crowded_folders(sources: Iterable[Source]) -> list[str]:
    """A folder has a number of modules that a reader takes in at a glance."""
    return [
        f"{folder}: {len(names)} modules, at most {MODULES_MAX}: give some of them a folder of their own"
        for folder, names in _folders(sources).items()
        if len(names) > MODULES_MAX
    ]


def unmade_packages(sources: Iterable[Source], wrong: Mapping[str, str] = NO_PACKAGES) -> list[str]:
    """Two modules of a folder whose names begin with the same word and go on (`wal_replay`, `wal_segments`) are a
    package that was not made (`wal/`)."""
    complaints, found = [], set()
    for folder, names in _folders(sources).items():
        alike: dict[str, list[str]] = defaultdict(list)
        for name in names:
            word, _, rest = name.partition("_")
            if rest:
                alike[word].append(name)
        for word, some in alike.items():
            found |= {f"{folder}/{word}"} if len(some) > 1 else set()
            if len(some) > 1 and f"{folder}/{word}" not in wrong:
                complaints.append(f"{folder}: {', '.join(sorted(some))}: make a package {word}/ of them")
    return [*complaints, *(f"{each} is excused, and needs no excuse" for each in wrong if each not in found)]


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
    alike: dict[tuple[type[ast.AST], ...], list[tuple[Source, Function]]] = defaultdict(list)
    for source in sources:
        for function in _functions(source.tree):
            kinds = tuple(type(node) for statement in _without_docstring(function.body) for node in ast.walk(statement))
            if sum(issubclass(kind, ast.stmt) for kind in kinds) >= STATEMENTS_MIN:
                alike[kinds].append((source, function))
    places: dict[str, list[str]] = defaultdict(list)
    for source, function in (each for some in alike.values() if len(some) > 1 for each in some):
        form = _normal_form(function, _without_docstring(function.body))
        places[form].append(f"{source.path}:{function.lineno} {function.name}")
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


def _folders(sources: Iterable[Source]) -> dict[str, list[str]]:
    """The names of the modules in each folder."""
    folders: dict[str, list[str]] = defaultdict(list)
    for source in sources:
        if not source.is_init:
            path = PurePosixPath(source.path)
            folders[path.parent.as_posix()].append(path.stem)
    return folders


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
