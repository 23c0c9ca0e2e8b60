"""The API reference is what the docstrings say, names all there is, and its examples run."""

from __future__ import annotations

import ast
import asyncio
import inspect
import pickle
from pathlib import Path
from typing import Any

import pytest

import stelae
import stelae.aio
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


@pytest.mark.parametrize("name", sorted(set(stelae.__all__) - {"aio"}))
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


@pytest.mark.parametrize("module", [stelae, stelae.aio, stelae.spark], ids=lambda module: module.__name__)
def test_public_names_show_where_they_are_imported_from(module: Any) -> None:
    for name in set(module.__all__) - {"aio"}:
        found = getattr(module, name)
        if inspect.isclass(found) or inspect.isfunction(found):
            assert (found.__module__, found.__qualname__) == (module.__name__, name)
        if inspect.isfunction(found):
            assert pickle.loads(pickle.dumps(found)) is found
