"""A rule on who may write to the metastore without a compare: who writes where nobody else does, by the type of its
store, and who stands on a list."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

from tests.tidy.sources import Source
from tests.tidy.waiting import functions_of, name_at_end

OWN = frozenset({"ComparedStore", "FencedStore", "GuardedStore", "OwnStore", "OwnPart", "OwnWhole"})
"""Types of stores: each transaction compares that nobody has taken the writer's place, or the writer is alone."""

ROOM_OF_THE_CATALOG = "registry/catalog/"

ALLOWED: Mapping[str, str] = {}
"""Who else may, and why that is safe: outside the catalog, which has a protocol of its own, nobody."""


def blind_writes(sources: Iterable[Source], allowed: Mapping[str, str] = ALLOWED) -> list[str]:
    """Whoever writes to the metastore compares something, unless the store that it was given does. A reason for what
    compares is one too many."""
    seen: set[str] = set()
    complaints = []
    for place, line in _blind(sources):
        seen.add(place)
        if place not in allowed:
            complaints.append(f"{place} (line {line}) writes without a compare: take an OwnStore, or compare something")
    return [*complaints, *(f"{place} has a reason, and needs none" for place in allowed if place not in seen)]


def _blind(sources: Iterable[Source]) -> Iterator[tuple[str, int]]:
    for source in sources:
        if source.path.startswith(ROOM_OF_THE_CATALOG):
            continue
        for place, function in functions_of(source):
            own = _own_names(function)
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and _is_blind(node) and not _is_own(node.func, own):
                    yield place, node.lineno


def _is_blind(call: ast.Call) -> bool:
    if not (isinstance(call.func, ast.Attribute) and call.func.attr == "txn"):
        return False
    given = call.args[0] if call.args else next((each.value for each in call.keywords if each.arg == "compares"), None)
    return isinstance(given, ast.List | ast.Tuple) and not given.elts


def _is_own(method: ast.expr, own: set[str]) -> bool:
    match method:
        case ast.Attribute(value=ast.Name(id=name)):
            return name in own
        case ast.Attribute(value=ast.Call(func=made)):
            return name_at_end(made) in OWN
        case _:
            return False


def _own_names(function: ast.AST) -> set[str]:
    """Parameters that are annotated as such stores, and what is made as one."""
    found = set()
    for node in ast.walk(function):
        match node:
            case ast.arg(arg=name, annotation=ast.expr() as said) if _is_own_type(said):
                found.add(name)
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                found |= {name_at_end(name) for name, value in zip(names, values, strict=False) if _makes_own(value)}
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _makes_own(value):
                found.add(name)
    return found


def _is_own_type(said: ast.expr) -> bool:
    match said:
        case ast.BinOp(left=left, right=right):
            return _is_own_type(left) and _is_own_type(right)
        case _:
            return name_at_end(said) in OWN


def _makes_own(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and name_at_end(value.func) in OWN
