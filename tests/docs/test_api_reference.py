"""The API reference is what the docstrings say, names all there is, and its examples run."""

from __future__ import annotations

import ast
import asyncio
import inspect
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stelae
import stelae.aio
import stelae.schema
import stelae.spark
from stelae.client.api.rows import Row
from tests.docs.player import ROOT, CodeBlock, blocks_of
from tools.api_reference import pages, signature_text

NOT_RUN = {
    'with stelae.connect("localhost:7100") as db:\n    db.tables()': "it needs a cluster",
}
PAGES = pages()
EXAMPLES = [
    pytest.param(name, block, id=f"{name}-{block.line}")
    for name, text in PAGES.items()
    for block in blocks_of(text)
    if block.language == "python"
]


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_what_the_docstrings_say(name: str) -> None:
    assert (ROOT / "docs" / name).read_text("utf-8") == PAGES[name], "run python tools/api_reference.py"


@pytest.mark.parametrize("name", sorted(set(stelae.__all__) - {"aio", "schema"}))
def test_every_public_name_is_there(name: str) -> None:
    assert (
        f"## {name}\n" in PAGES["api.md"]
        or f"### stelae.{name}\n" in PAGES["api.md"]
        or f"| `{name}` |" in PAGES["api.md"]
    )


@pytest.mark.parametrize("kind", [stelae.Database, stelae.Table, stelae.Scan, stelae.Batch, stelae.Snapshot])
def test_every_public_method_says_what_it_does(kind: type) -> None:
    methods = [member for name, member in vars(kind).items() if not name.startswith("_") and inspect.isfunction(member)]
    assert methods
    assert [method.__name__ for method in methods if not method.__doc__] == []


def test_a_signature() -> None:
    def scan(self: object, where: object = None, *, limit: int | None = None) -> Row:
        raise NotImplementedError

    assert signature_text("scan", scan) == "scan(where: object = None, *, limit: int | None = None) -> Row"


def made() -> stelae.Database:
    db = stelae.open("data")
    groups = [
        stelae.columns("profile", {"name": "string", "age": "int32 not null default 0", "visits": "int64"}),
        stelae.cells("events", families=["click", "view"]),
    ]
    users = db.create_table("users", key={"id": "string"}, groups=groups)
    users.put_many([{"id": name, "name": name.title(), "age": 31} for name in ("ann", "bob", "cay")])
    return db


def prepared(block: CodeBlock, db: stelae.Database) -> None:
    """An example that makes the table, or has it back, begins without it."""
    if "create_table(" in block.text or "recall_table(" in block.text:
        db.drop_table("users")


@pytest.mark.parametrize(("page", "block"), EXAMPLES)
def test_examples_run(page: str, block: CodeBlock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if block.text.strip() in NOT_RUN:
        pytest.skip(NOT_RUN[block.text.strip()])
    monkeypatch.chdir(tmp_path)
    with made() as db:
        prepared(block, db)
        code = compile(block.text, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if page == "api.md":
            names = {"stelae": stelae, "db": db, "print": lambda *_: None}
            if "users" in db.tables():
                names |= {"users": db.table("users")}
            eval(code, names)
        else:
            asyncio.run(_run_async(code))


async def _run_async(code: Any) -> None:
    async with stelae.aio.open("data") as db:
        names = {"stelae": stelae, "asyncio": asyncio, "db": db, "print": lambda *_: None}
        if "users" in await db.tables():
            names |= {"users": await db.table("users")}
        outcome = eval(code, names)
        if inspect.iscoroutine(outcome):
            await outcome


def test_there_are_examples() -> None:
    assert len(EXAMPLES) > 40
    assert {page for page, _ in (each.values for each in EXAMPLES)} == set(PAGES)


@pytest.mark.parametrize(
    "module", [stelae, stelae.aio, stelae.schema, stelae.spark], ids=lambda module: module.__name__
)
def test_public_names_show_where_they_are_imported_from(module: Any) -> None:
    for name in set(module.__all__) - {"aio", "schema"}:
        found = getattr(module, name)
        if inspect.isclass(found) or inspect.isfunction(found):
            assert (found.__module__, found.__qualname__) == (module.__name__, name)
        if inspect.isfunction(found):
            assert pickle.loads(pickle.dumps(found)) is found


HOMES = {"stelae", "stelae.aio", "stelae.schema", "stelae.spark"}


def shown_of(value: object) -> Iterator[type]:
    """The package's types of a value and of all that is in it."""
    kind = type(value)
    if kind.__module__.partition(".")[0] == "stelae":
        yield kind
    fields = getattr(value, "__struct_fields__", ())
    parts: list[object] = [getattr(value, name) for name in fields]
    if isinstance(value, dict):
        parts += [*value, *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        parts += value
    for part in parts:
        yield from shown_of(part)


def given_by(owner: object, arguments: dict[str, Any]) -> dict[str, object]:
    """What each public property of an object is, and each public method returns that needs no arguments, or for which
    there are some."""
    given: dict[str, object] = {}
    for name in dir(type(owner)):
        member = getattr(type(owner), name)
        if name.startswith("_") or name in APART:
            continue
        if isinstance(member, property):
            given[name] = getattr(owner, name)
        elif inspect.isfunction(member):
            needs = [each.name for each in inspect.signature(member).parameters.values() if _is_needed(each)]
            if name in arguments or needs == ["self"]:
                given[name] = getattr(owner, name)(**arguments.get(name, {}))
    return given


def _is_needed(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD


APART = {"close", "batch", "snapshot", "scan"}
"""What ends an object; and what gives objects that are looked into by themselves, and closed."""

ARGUMENTS: dict[str, dict[str, Any]] = {
    "table": {"name": "all"},
    "describe": {"name": "all"},
    "create_zone": {"name": "small"},
    "alter_zone": {"name": "default", "tablet_bytes": 2**26},
    "get": {"key": "a"},
    "get_many": {"keys": ["a"]},
    "history": {"key": "a"},
    "put": {"row": {"id": "b", "n": 1}},
    "increment": {"key": "a", "by": {"n": 1}},
    "update": {"key": "a", "function": lambda row: {**row, "n": 7}},
    "erase_range": {"prefix": "z"},
    "page": {"count": 1},
}


def test_what_calls_give_back_shows_where_users_import_it_from(tmp_path: Path) -> None:
    with stelae.open(tmp_path / "data") as db:
        columns = {
            "n": "int64",
            "a": "array<decimal(5, 2)>",
            "s": "struct<t: timestamp, u: timestamp_ntz>",
            "m": "map<date, binary>",
            "v": "vector(float32, 2)",
            "b": "bool",
            "f": "float64",
        }
        groups = [
            stelae.columns("data", columns, purge="max-age=7d and max-history=3 or max-history=9"),
            stelae.cells("cells", families=["tags"]),
            stelae.cells("others", families="*"),
        ]
        table = db.create_table("all", {"id": "string"}, groups)
        table.put_many([{"id": "a", "n": 1, "tags:x": b"y"}])
        db.alter_table("all", purge={"data": "max-age=8d"}, add_families={"cells": ["more"]})
        seen: set[type] = set()
        with table.scan() as scan, table.batch() as batch, db.snapshot() as snapshot:
            for owner in (db, table, scan, batch, snapshot):
                given = [owner, *given_by(owner, ARGUMENTS).values()]
                seen |= {kind for value in given for kind in shown_of(value)}
        private = sorted(f"{kind.__module__}.{kind.__qualname__}" for kind in seen if kind.__module__ not in HOMES)
        assert private == []
        for kind in seen:
            assert getattr(sys.modules[kind.__module__], kind.__qualname__) is kind
        assert {stelae.ZoneInfo, stelae.TableStats, stelae.schema.Family, stelae.schema.AnyOf} <= seen


def test_values_that_are_pickled_by_name_are_found_by_whoever_imports_the_package() -> None:
    """Spark pickles a class by value if the module that it shows is not imported."""
    code = """
import pickle, sys, stelae
from stelae.model.declare import columns, declare
assert all(name in sys.modules for name in ("stelae", "stelae.schema"))
from pyspark import cloudpickle
schema = declare({"id": "string"}, [columns("g", {"n": "array<int32>"}, purge="max-age=7d")])
assert cloudpickle.loads(cloudpickle.dumps(schema)) == schema
assert b"stelae.schema" in cloudpickle.dumps(schema.groups[0].columns[0].type)
assert len(cloudpickle.dumps(type(schema.groups[0].columns[0].type))) < 200
"""
    subprocess.run([sys.executable, "-c", code], check=True)
