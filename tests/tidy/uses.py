"""Rules on what is finished: a public name is used by the package or by its users, and every adapter is held to its
port's contract."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath

from tests.tidy.names import resolved
from tests.tidy.sources import Source

EXPORTING = ("__init__.py", "aio.py", "schema.py", "spark/__init__.py")
"""What users import names from."""

ROOMS_FOR_TESTS = ("sim",)
"""Rooms whose users are the tests."""

KEPT: Mapping[str, str] = {
    "stelae.spark.source.source.StelaeSource": "Spark finds it by itself, through pyspark_stelae",
    "stelae.ports.transport.Transport": "the port that local sockets and the simulated network are held to",
}
"""Public names that nothing in the package uses, and why each is there."""

USERS_CALL = ("client/api/", "model/predicate/build.py")
"""Where the methods are those that users call."""

KEPT_METHODS: Mapping[str, str] = {
    "adapters.signals._Interruptible": "the standard library's buffers call it",
    "adapters.sockets.streams.StreamConnection": "asyncio calls it",
    "catalog.serial.registry.SerializerRegistry.serializers": "the golden files have one sample for each",
    "cli.app._Verbs": "typer calls it",
    "cli.cluster.processes._NodeGroup": "typer calls it",
    "cli.files._Counted": "the standard library's buffers call it",
    "cli.screens._Screen": "rich calls it",
    "cli.words.plain._Taker": "what typer calls on the type that it takes the place of",
    "format.fragment.reader.FragmentReader.lookup": "what a file alone says of a row: bench times it",
    "format.fragment.window.Window": "pyarrow calls it as a file",
    "format.fragment.writer._ChecksummingSink": "pyarrow calls it as a file",
    "registry.catalog.service.CatalogService.catalog_at": "the simulations hold what commands promise to it",
    "spark.driver.tasks._Listed": "Spark calls it as an accumulator's parameter",
    "spark.reading.overlays._BoundedSink": "pyarrow calls it as a file",
    "spark.source.reader.HeldReader": "Spark calls it",
    "spark.source.source.StelaeSource": "Spark calls it",
}
"""Public methods that nothing in the package calls (of a class: all of them), and why each is there."""

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def unused_names(sources: Iterable[Source], kept: Mapping[str, str] = KEPT) -> list[str]:
    """A public class or function is used by other code of the package, or exported, or kept for a reason. A reason for
    what is used, or is not there, is one too many."""
    sources = list(sources)
    used = {name for source in sources for name in _uses(source)}
    unused = {
        f"{_module(source)}.{node.name}": f"{source.path}:{node.lineno}"
        for source in sources
        if source.room not in ROOMS_FOR_TESTS and source.path not in EXPORTING
        for node in _public(source)
        if not _is_command(node) and f"{_module(source)}.{node.name}" not in used
    }
    return [
        *(f"{place}: nothing uses {name}: use it, or drop it" for name, place in unused.items() if name not in kept),
        *(f"{name} is kept for a reason, and needs none" for name in kept if name not in unused),
    ]


def unused_methods(sources: Iterable[Source], kept: Mapping[str, str] = KEPT_METHODS) -> list[str]:
    """A public method or property is used by other code of the package, on whatever has one of that name; or users call
    it; or it is kept for a reason."""
    sources = list(sources)
    named = Counter(name for source in sources for name in _attributes(source.tree))
    unused = {
        (f"{_module(source).removeprefix('stelae.')}.{kind.name}", method.name): f"{source.path}:{method.lineno}"
        for source in sources
        if source.room not in ROOMS_FOR_TESTS and not source.path.startswith(USERS_CALL)
        for kind in ast.walk(source.tree)
        if isinstance(kind, ast.ClassDef)
        for method in kind.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and not method.name.startswith("_")
        if named[method.name] == sum(name == method.name for name in _attributes(method))
    }
    reasons = {name for owner, method in unused for name in (owner, f"{owner}.{method}")}
    return [
        *(
            f"{place}: nothing uses {owner}.{method}: use it, or drop it"
            for (owner, method), place in unused.items()
            if not {owner, f"{owner}.{method}"} & kept.keys()
        ),
        *(f"{name} is kept for a reason, and needs none" for name in kept if name not in reasons),
    ]


def unproven_adapters(adapters: Iterable[Source], ports: Iterable[Source], suites: Iterable[Source]) -> list[str]:
    """A class of adapters that has all members of a port is named by the contract suites. Of what another port gives
    out (a connection, an open file) the suite of that other port is the proof."""
    wanted = _entry_ports(ports)
    named = {
        node.id if isinstance(node, ast.Name) else node.attr
        for source in suites
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Name | ast.Attribute)
    }
    return [
        f"{source.path}:{node.lineno}: {node.name} has all that a {port} has, and no suite in tests/contract runs on it"
        for source in adapters
        for node in source.tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and node.name not in named
        for port, members in wanted.items()
        if members <= _members(node)
    ]


def _uses(source: Source) -> Iterator[str]:
    """Full names that this file uses: of other modules, and of its own outside of their own definition."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
    yield from (name for _, name, _ in resolved(source.tree))
    module = _module(source)
    for statement in source.tree.body:
        own = statement.name if isinstance(statement, Definition) else None
        yield from (
            f"{module}.{node.id}"
            for node in ast.walk(statement)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id != own
        )
    if source.path in EXPORTING:
        yield from _exported(source)


def _attributes(tree: ast.AST) -> Iterator[str]:
    """What is asked of objects by name: `x.name`, and names as text, for `getattr` and tables of methods."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            yield node.value


def _exported(source: Source) -> Iterator[str]:
    """Names that are imported when they are first asked for: `"Row": "stelae.client.api.rows"`."""
    package = f"{_module(source)}." if source.path == "spark/__init__.py" else ""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
                    yield f"{package}{value.value!s}.{key.value!s}"


def _public(source: Source) -> Iterator[Definition]:
    return (node for node in source.tree.body if isinstance(node, Definition) and not node.name.startswith("_"))


def _is_command(node: Definition) -> bool:
    """A function that a decorator hands to somebody: `@app.command()`."""
    calls = [decorator.func for decorator in node.decorator_list if isinstance(decorator, ast.Call)]
    return any(isinstance(call, ast.Attribute) and call.attr in ("command", "callback") for call in calls)


def _module(source: Source) -> str:
    path = PurePosixPath(source.path)
    parts = path.parent.parts if source.is_init else path.with_suffix("").parts
    return ".".join(("stelae", *parts))


def _entry_ports(ports: Iterable[Source]) -> dict[str, set[str]]:
    """The protocols that no other protocol gives out, with their members."""
    protocols = {
        node.name: node
        for source in ports
        for node in source.tree.body
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).startswith("Protocol") for base in node.bases)
    }
    given_out = {
        name.id
        for node in protocols.values()
        for function in node.body
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and function.returns is not None
        for name in ast.walk(function.returns)
        if isinstance(name, ast.Name)
    }
    return {name: _members(node) for name, node in protocols.items() if name not in given_out}


def _members(node: ast.ClassDef) -> set[str]:
    """Public methods and properties, and attributes that a method sets."""
    functions = {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    assigned = {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and ast.unparse(each.value) == "self"
    }
    return {name for name in functions | assigned if not name.startswith("_")}
