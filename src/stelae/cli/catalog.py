"""`stelae catalog log|show|diff`: what the catalog was, is, and how it came about."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from stelae.catalog.commands_tables import TableName
from stelae.catalog.describe import describe_catalog, describe_table, describe_update, differences, show_time
from stelae.catalog.value import Catalog, CatalogVersion
from stelae.cli import places as p
from stelae.launch.metastores import MetastorePlace, open_metastore
from stelae.model.errors import InvalidArgument
from stelae.model.hybrid import at_datetime
from stelae.model.ids import Txn
from stelae.registry.catalog_reader import CatalogReader, HistoryStep

catalog_app = typer.Typer(
    help="Look at the catalog: its versions, one of them, or what changed between two. Changes nothing.",
    no_args_is_help=True,
)
T = TypeVar("T")


def _read(place: MetastorePlace, job: Callable[[CatalogReader], Awaitable[T]]) -> T:
    async def run() -> T:
        async with open_metastore(place, read_only=True) as store:
            return await job(CatalogReader(store))

    return asyncio.run(run())


def _print_json(value: Any) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


@catalog_app.command("log", epilog="Example: stelae catalog log --path data --limit 5")
def log_versions(
    path: p.PathOption = None,
    etcd: p.EtcdOption = None,
    etcd_namespace: p.NamespaceOption = p.DEFAULT_NAMESPACE_OPTION,
    etcd_user: p.UserOption = None,
    etcd_password: p.PasswordOption = "",
    etcd_ca: p.CaOption = None,
    etcd_cert: p.CertOption = None,
    etcd_key: p.KeyOption = None,
    limit: Annotated[int, typer.Option(min=1, help="How many versions, the newest.")] = 20,
    json: p.JsonOption = False,
) -> None:
    """Versions, newest first: when each became active, who made it, what changed."""
    place = p.place_of(path, etcd, etcd_namespace, etcd_user, etcd_password, etcd_ca, etcd_cert, etcd_key)

    async def newest(reader: CatalogReader) -> list[dict[str, Any]]:
        kept: deque[HistoryStep] = deque(maxlen=limit)
        async for step in reader.history():
            kept.append(step)
        return [describe_update(step.before, step.update) for step in reversed(kept)]

    versions = _read(place, newest)
    if json:
        _print_json(versions)
        return
    table = Table("version", "active from", "by", "what changed")
    for version in versions:
        row = (version["version"], version["active_from"], version["author"] or "-", "\n".join(version["changes"]))
        table.add_row(*(_plain(part) for part in row))
    Console().print(table if versions else "no version yet: the catalog is empty")


@catalog_app.command("show", epilog="Example: stelae catalog show users --path data --version 12")
def show_catalog(
    table: Annotated[str | None, typer.Argument(help="Only this table.")] = None,
    path: p.PathOption = None,
    etcd: p.EtcdOption = None,
    etcd_namespace: p.NamespaceOption = p.DEFAULT_NAMESPACE_OPTION,
    etcd_user: p.UserOption = None,
    etcd_password: p.PasswordOption = "",
    etcd_ca: p.CaOption = None,
    etcd_cert: p.CertOption = None,
    etcd_key: p.KeyOption = None,
    version: Annotated[int | None, typer.Option(min=0, help="As of this version.")] = None,
    at: Annotated[str | None, typer.Option(help="As of this time, e.g. 2026-01-31T12:00:00+00:00.")] = None,
    json: p.JsonOption = False,
) -> None:
    """The catalog now, at a version, or at a time."""
    place = p.place_of(path, etcd, etcd_namespace, etcd_user, etcd_password, etcd_ca, etcd_cert, etcd_key)
    if version is not None and at is not None:
        raise InvalidArgument("give --version or --at, not both")
    moment = None if at is None else _moment(at)

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
        _print_json(shown)
        return
    tree = Tree(f"[bold]{_plain(title)}[/], active from {show_time(catalog.activation)}")
    _grow(tree, {key: value for key, value in shown.items() if key not in ("version", "active_from")})
    Console().print(tree)


def _moment(text: str) -> Txn:
    try:
        return at_datetime(datetime.fromisoformat(text))
    except ValueError:
        raise InvalidArgument(f"--at {text!r}: not a time; write e.g. 2026-01-31T12:00:00+00:00") from None


def _grow(tree: Tree, values: dict[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, dict):
            if value:
                _grow(tree.add(f"[cyan]{_plain(key)}[/]"), value)
        elif value != "":
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            tree.add(f"[cyan]{_plain(key)}[/]: {_plain(text)}", highlight=False)


@catalog_app.command("diff", epilog="Example: stelae catalog diff 10 12 --path data")
def diff_versions(
    before: Annotated[int, typer.Argument(min=0, help="A version.")],
    after: Annotated[int | None, typer.Argument(min=0, help="Another; the newest if left out.")] = None,
    path: p.PathOption = None,
    etcd: p.EtcdOption = None,
    etcd_namespace: p.NamespaceOption = p.DEFAULT_NAMESPACE_OPTION,
    etcd_user: p.UserOption = None,
    etcd_password: p.PasswordOption = "",
    etcd_ca: p.CaOption = None,
    etcd_cert: p.CertOption = None,
    etcd_key: p.KeyOption = None,
    json: p.JsonOption = False,
) -> None:
    """What differs between two versions."""
    place = p.place_of(path, etcd, etcd_namespace, etcd_user, etcd_password, etcd_ca, etcd_cert, etcd_key)

    async def both(reader: CatalogReader) -> tuple[Catalog, Catalog]:
        first = await reader.version(CatalogVersion(before))
        return first, await reader.latest() if after is None else await reader.version(CatalogVersion(after))

    first, second = _read(place, both)
    found = differences(first, second)
    if json:
        _print_json({"before": first.version, "after": second.version, "differences": [asdict(d) for d in found]})
        return
    table = Table("what", f"version {first.version}", f"version {second.version}")
    for each in found:
        colour = "green" if each.before is None else "red" if each.after is None else "yellow"
        table.add_row(f"[{colour}]{_plain(each.path)}[/]", _plain(_short(each.before)), _plain(_short(each.after)))
    Console().print(table if found else f"versions {first.version} and {second.version} hold the same")


def _plain(value: object) -> str:
    """Names and texts are shown as they are: no markup of theirs counts, and what is not printable is written out."""
    text = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in str(value))
    return escape(text)


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{key}: {_short(part)}" for key, part in value.items() if part not in ("", {}, None))
    return "" if value is None else str(value)
