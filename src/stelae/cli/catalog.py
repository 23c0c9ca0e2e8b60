"""`stelae catalog log|show|diff`: what the catalog was, is, and how it came about."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from msgspec.structs import asdict

from stelae.cli.places import JsonOption, metastore_placed
from stelae.cli.screens import as_shown, grid, out, print_json
from stelae.cli.words.keys import typed_at
from stelae.launch.metastores import MetastorePlace
from stelae.model.errors import InvalidArgument

if TYPE_CHECKING:
    from rich.tree import Tree

    from stelae.catalog.value import Catalog
    from stelae.registry.catalog.reader import CatalogReader, HistoryStep

catalog_app = typer.Typer(
    help="Look at the catalog: its versions, one of them, or what changed between two.",
    no_args_is_help=True,
)
T = TypeVar("T")


def _read(place: MetastorePlace, job: Callable[[CatalogReader], Awaitable[T]]) -> T:
    import asyncio

    from stelae.launch.metastores import open_metastore
    from stelae.registry.catalog.reader import CatalogReader

    async def run() -> T:
        async with open_metastore(place, read_only=True) as store:
            return await job(CatalogReader(store))

    return asyncio.run(run())


@catalog_app.command("log", epilog="Example: stelae catalog log --path data --limit 5")
@metastore_placed
def log_versions(
    place: MetastorePlace,
    limit: Annotated[int, typer.Option(min=1, help="How many versions, the newest.")] = 20,
    json: JsonOption = False,
) -> None:
    """Versions, newest first: when each became active, who made it, what changed."""
    from stelae.catalog.describe import describe_update

    async def newest(reader: CatalogReader) -> list[dict[str, Any]]:
        kept: deque[HistoryStep] = deque(maxlen=limit)
        async for step in reader.history():
            kept.append(step)
        return [describe_update(step.before, step.update) for step in reversed(kept)]

    versions = _read(place, newest)
    if json:
        print_json(versions)
        return
    table = grid("version", "active from", "by", "what changed", right=("version",))
    for version in versions:
        row = (version["version"], version["active_from"], version["author"] or "-", "\n".join(version["changes"]))
        table.add_row(*(as_shown(part) for part in row))
    out().print(table if versions else "no version yet: the catalog is empty")


@catalog_app.command("show", epilog="Example: stelae catalog show users --path data --version 12")
@metastore_placed
def show_catalog(
    place: MetastorePlace,
    table: Annotated[str | None, typer.Argument(help="Only this table.")] = None,
    version: Annotated[int | None, typer.Option(min=0, help="As of this version.")] = None,
    at: Annotated[str | None, typer.Option(metavar="TXN|TIME", help="As of then, e.g. 2026-01-31T12:00:00Z.")] = None,
    json: JsonOption = False,
) -> None:
    """The catalog now, at a version, or at a time."""
    from rich.tree import Tree

    from stelae.catalog.commands.tables import TableName
    from stelae.catalog.describe import describe_catalog, describe_table, show_time
    from stelae.catalog.value import CatalogVersion

    if version is not None and at is not None:
        raise InvalidArgument("give --version or --at, not both")
    moment = typed_at(at)

    async def wanted(reader: CatalogReader) -> Catalog:
        if version is not None:
            return await reader.version(CatalogVersion(version))
        return await reader.latest() if moment is None else await reader.at(moment)

    catalog = _read(place, wanted)
    if table is None:
        shown, title = describe_catalog(catalog), f"catalog version {catalog.version}"
    else:
        name = TableName.parse(table)
        shown = describe_table(catalog, catalog.table(name.namespace, name.name))
        title = f"table {name}, in catalog version {catalog.version}"
    if json:
        print_json(shown)
        return
    tree = Tree(f"[bold]{as_shown(title)}[/], active from {show_time(catalog.activation)}")
    _grow(tree, {key: value for key, value in shown.items() if key not in ("version", "active_from")})
    out().print(tree)


def _grow(tree: Tree, values: dict[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, dict):
            if value:
                _grow(tree.add(f"[cyan]{as_shown(key)}[/]"), value)
        elif value != "":
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            tree.add(f"[cyan]{as_shown(key)}[/]: {as_shown(text)}", highlight=False)


@catalog_app.command("diff", epilog="Example: stelae catalog diff 10 12 --path data")
@metastore_placed
def diff_versions(
    place: MetastorePlace,
    before: Annotated[int, typer.Argument(min=0, help="A version.")],
    after: Annotated[int | None, typer.Argument(min=0, help="Another; the newest if left out.")] = None,
    json: JsonOption = False,
) -> None:
    """What differs between two versions."""
    from stelae.catalog.describe import differences
    from stelae.catalog.value import CatalogVersion

    async def both(reader: CatalogReader) -> tuple[Catalog, Catalog]:
        first = await reader.version(CatalogVersion(before))
        return first, await reader.latest() if after is None else await reader.version(CatalogVersion(after))

    first, second = _read(place, both)
    found = differences(first, second)
    if json:
        print_json({"before": first.version, "after": second.version, "differences": [asdict(d) for d in found]})
        return
    table = grid("what", f"version {first.version}", f"version {second.version}")
    for each in found:
        colour = "green" if each.before is None else "red" if each.after is None else "yellow"
        table.add_row(
            f"[{colour}]{as_shown(each.path)}[/]", as_shown(_short(each.before)), as_shown(_short(each.after))
        )
    out().print(table if found else f"versions {first.version} and {second.version} hold the same")


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{key}: {_short(part)}" for key, part in value.items() if part not in ("", {}, None))
    return "" if value is None else str(value)
