"""Where the store is: said once, for every verb.

A verb that works on a store takes one parameter and is wrapped:

    @table_app.command("list")
    @placed
    def list_tables(place: StorePlace, json: JsonOption = False) -> None: ...

`placed` puts the options into its signature in the parameter's place, and hands in what they say. What is said wins in
this order: the verb's own options, those in front of the verb (`stelae --path data get ...`), the environment
(STELAE_PATH, STELAE_CLUSTER), `stelae.toml` in the current directory. Only the first level that says anything counts.

Where a store keeps its fragments (--store, STELAE_STORE, `store =`) is said for the directory that the same level
names; a level that names none says it for whichever directory is meant.
"""

from __future__ import annotations

import inspect
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

import stelae
from stelae.launch.metastores import ETCD_NAMESPACE, METASTORE_FILE, InDirectory, MetastorePlace, OnEtcd, has_metastore
from stelae.model.errors import InvalidArgument, NotFound, StelaeError

if TYPE_CHECKING:
    from stelae.service.reports import CheckReport, Progress

SETTINGS_FILE = "stelae.toml"
_PANEL = "Where the store is"
_PATIENCE_S = 30.0
_COMPLETION_S = 2.0
"""So long does a shell wait for the names of tables."""
ROWS_PANEL, STORE_PANEL, MACHINE_PANEL = "Rows", "The store", "This machine, and files"
CLUSTER_PANEL = "A cluster"

PathOption = Annotated[
    Path | None,
    typer.Option(
        "--path", metavar="DIR", help="The store's directory. Or: STELAE_PATH, or stelae.toml.", rich_help_panel=_PANEL
    ),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="HOST:PORT",
        help="A cluster, by its masters, several with commas. Or: STELAE_CLUSTER, or stelae.toml.",
        rich_help_panel=_PANEL,
    ),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="Where a new store keeps its fragments, if not in its directory: s3://BUCKET/PREFIX, file:///DIR or a "
        "path. Or: STELAE_STORE, or stelae.toml.",
        rich_help_panel=_PANEL,
    ),
]


def complete_table(context: typer.Context, incomplete: str) -> list[str]:
    """For a shell: the tables of the store that the words so far mean. Whatever is wrong is told when they are run."""
    try:
        said = [_said_by_words(each.params) for each in (context, context.parent) if each is not None]
        with store_place(said[0], said[-1]).open(read_only=True, timeout_s=_COMPLETION_S) as database:
            return [name for name in database.tables() if name.startswith(incomplete)]
    except (StelaeError, OSError):
        return []


def _said_by_words(given: Mapping[str, Any]) -> SaidPlace:
    return SaidPlace(given.get("path"), given.get("cluster"), store=given.get("store"))


TableArgument = Annotated[
    str,
    typer.Argument(metavar="TABLE", help="NAME, or NAMESPACE.NAME.", show_default=False, autocompletion=complete_table),
]
JsonOption = Annotated[bool, typer.Option("--json", help="For programs: JSON on standard output.")]


@dataclass(frozen=True, slots=True)
class DirectoryPlace:
    """A directory. What says so, for messages. `store`: where its fragments are said to lie; None: nothing is said."""

    path: Path
    said_by: str = "--path"
    store: str | None = None

    @contextmanager
    def open(
        self, *, make: bool = False, read_only: bool = False, timeout_s: float = _PATIENCE_S
    ) -> Iterator[stelae.Database]:
        """The store, closed again whatever happens. Unless it is to be made, it must be there."""
        if not make and not has_metastore(self.path):
            raise NotFound(
                f"no store in {self.path} ({self.said_by}): there is no {METASTORE_FILE}; "
                "`stelae table create` makes a store, or name another directory with --path"
            )
        with stelae.open(self.path, store=self.store, read_only=read_only, timeout_s=timeout_s) as database:
            yield database

    def check(self, progress: Progress) -> CheckReport:
        """What is wrong with the store. Nothing is changed."""
        from stelae.launch.checking import check_store

        return check_store(self.path, progress, store=self.store)


@dataclass(frozen=True, slots=True)
class ClusterPlace:
    """A cluster, by the addresses of its masters."""

    masters: str

    @contextmanager
    def open(
        self,
        *,
        make: bool = False,  # noqa: ARG002 - a cluster is there, or cannot be reached
        read_only: bool = False,  # noqa: ARG002 - what only reads needs no lock there
        timeout_s: float = _PATIENCE_S,
    ) -> Iterator[stelae.Database]:
        """The store, closed again whatever happens."""
        with stelae.connect(self.masters, timeout_s=timeout_s) as database:
            yield database

    def check(self, progress: Progress) -> CheckReport:
        """What is wrong with the store. Nothing is changed."""
        with self.open() as database:
            return database.check(progress)


StorePlace: TypeAlias = DirectoryPlace | ClusterPlace


@dataclass(frozen=True, slots=True)
class SaidPlace:
    """One level's word on where the store is."""

    path: Path | None = None
    cluster: str | None = None
    said_by: str = ""
    store: str | None = None


def store_place(own: SaidPlace, before: SaidPlace | None) -> StorePlace:
    levels = (own, before or SaidPlace(), _said_by_environment(), _said_by_file())
    said = _first_said(levels)
    if said is None:
        raise InvalidArgument(
            f"say where the store is: --path DIR, or STELAE_PATH, or a {SETTINGS_FILE} with path = ...; of a cluster "
            "--cluster HOST:PORT, STELAE_CLUSTER, cluster = ..."
        )
    if said.cluster is not None:
        if own.store is not None or (before is not None and before.store is not None):
            raise InvalidArgument(f"--store goes with --path: the cluster {said.cluster} knows where its fragments are")
        return cluster_place(said.cluster)
    stores = (each.store for each in levels if each.path in (None, said.path) and each.cluster is None)
    from stelae.adapters.blobs.urls import store_directory

    directory = store_directory(said.path or Path())
    return DirectoryPlace(directory, said.said_by, next((each for each in stores if each is not None), None))


def cluster_place(masters: str) -> ClusterPlace:
    """What `stelae.toml` says of who is let in counts for all that this command does and starts, Spark's tasks
    included."""
    settings = read_settings()
    if settings:
        from stelae.launch.access import environment_of

        os.environ.update(environment_of(settings, os.environ))
    return ClusterPlace(masters)


def _first_said(levels: Iterable[SaidPlace]) -> SaidPlace | None:
    for said in levels:
        if said.path is not None and said.cluster is not None:
            raise InvalidArgument(f"{said.said_by or 'options'}: give --path or --cluster, not both")
        if said.path is not None:
            return said if said.said_by else SaidPlace(said.path, None, "--path")
        if said.cluster is not None:
            return said if said.said_by else SaidPlace(None, said.cluster, "--cluster")
    return None


def _said_by_environment() -> SaidPlace:
    path, cluster = os.environ.get("STELAE_PATH"), os.environ.get("STELAE_CLUSTER")
    said_by = " and ".join(name for name in ("STELAE_PATH", "STELAE_CLUSTER") if os.environ.get(name))
    return SaidPlace(Path(path) if path else None, cluster or None, said_by, os.environ.get("STELAE_STORE") or None)


def read_settings() -> dict[str, Any]:
    """What `stelae.toml` in the current directory says; nothing if there is none."""
    file = Path(SETTINGS_FILE)
    if not file.is_file():
        return {}
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{SETTINGS_FILE}: {error}") from None


def _said_by_file() -> SaidPlace:
    """Relative paths in the file are relative to the file, which is in the current directory."""
    settings = read_settings()
    if not settings:
        return SaidPlace()
    found: dict[str, str | None] = {}
    for name in ("path", "cluster", "store"):
        value = settings.get(name)
        if value is not None and (not isinstance(value, str) or not value):
            from stelae.model.values import show

            raise InvalidArgument(f'{SETTINGS_FILE}: {name} is {show(value)}; write text, as in {name} = "data"')
        found[name] = value
    path = found["path"]
    return SaidPlace(None if path is None else Path(path), found["cluster"], SETTINGS_FILE, found["store"])


def remember_place(context: typer.Context, path: Path | None, cluster: str | None, store: str | None) -> None:
    """What stood in front of the verb, for the verb."""
    context.obj = SaidPlace(path, cluster, store=store)


def placed(verb: Callable[..., None]) -> Callable[..., None]:
    """For a verb with a parameter `place: StorePlace`."""

    def resolve(context: typer.Context, given: Mapping[str, Any]) -> StorePlace:
        return store_place(SaidPlace(given["path"], given["cluster"], store=given["store"]), context.obj)

    options = {"path": (PathOption, None), "store": (StoreOption, None), "cluster": (ClusterOption, None)}
    return _with_options(verb, options, resolve)


def cluster_placed(verb: Callable[..., None]) -> Callable[..., None]:
    """For a verb with a parameter `place: ClusterPlace`: it looks at a cluster, and at nothing else."""

    def resolve(context: typer.Context, given: Mapping[str, Any]) -> ClusterPlace:
        levels = (
            SaidPlace(cluster=given["cluster"]),
            context.obj or SaidPlace(),
            _said_by_environment(),
            _said_by_file(),
        )
        said = next((each.cluster for each in levels if each.cluster is not None), None)
        if said is None:
            raise InvalidArgument(
                f"say which cluster: --cluster HOST:PORT, or STELAE_CLUSTER, or a {SETTINGS_FILE} with cluster = ..."
            )
        return cluster_place(said)

    return _with_options(verb, {"cluster": (ClusterOption, None)}, resolve)


def _etcd(*names: str, **settings: Any) -> Any:
    return typer.Option(*names, rich_help_panel="A store on etcd", **settings)


_METASTORE_OPTIONS: Mapping[str, tuple[Any, Any]] = {
    "path": (PathOption, None),
    "etcd": (
        Annotated[
            str | None,
            _etcd("--etcd", metavar="HOST:PORT", help="A cluster's etcd, several with commas. Or: STELAE_ETCD."),
        ],
        None,
    ),
    "etcd_namespace": (
        Annotated[str, _etcd("--etcd-namespace", help="What the store's keys in etcd begin with.")],
        ETCD_NAMESPACE,
    ),
    "etcd_user": (
        Annotated[
            str | None,
            _etcd("--etcd-user", envvar="STELAE_ETCD_USER", help="NAME; the password is in STELAE_ETCD_PASSWORD."),
        ],
        None,
    ),
    "etcd_password": (Annotated[str, _etcd("--etcd-password", envvar="STELAE_ETCD_PASSWORD", hidden=True)], ""),
    "etcd_ca": (Annotated[Path | None, _etcd("--etcd-ca", help="TLS: the authority's certificate, PEM.")], None),
    "etcd_cert": (Annotated[Path | None, _etcd("--etcd-cert", help="TLS: this client's certificate, PEM.")], None),
    "etcd_key": (Annotated[Path | None, _etcd("--etcd-key", help="TLS: this client's key, PEM.")], None),
}


def metastore_placed(verb: Callable[..., None]) -> Callable[..., None]:
    """For a verb with a parameter `place: MetastorePlace`: it looks at what a store or a whole cluster agrees on."""
    return _with_options(verb, _METASTORE_OPTIONS, _metastore_place)


def _metastore_place(context: typer.Context, given: Mapping[str, Any]) -> MetastorePlace:
    path, ca = given["path"], given["etcd_ca"]
    etcd = given["etcd"] or _etcd_of_environment(path, context.obj)
    if etcd is None:
        try:
            place = store_place(SaidPlace(path), context.obj)
        except InvalidArgument as error:
            raise InvalidArgument(f"{error}; or --etcd HOST:PORT") from None
        if isinstance(place, ClusterPlace):
            raise InvalidArgument(
                f"the cluster {place.masters}: its catalog is read from its metastore; name that with --etcd "
                "HOST:PORT, or with --path the directory that it lies in"
            )
        return InDirectory(place.path)
    if path is not None:
        raise InvalidArgument("say where the store is: --path DIR or --etcd HOST:PORT (one of them)")
    endpoints = tuple(endpoint.strip() for endpoint in etcd.split(",") if endpoint.strip())
    if ca is None and (given["etcd_cert"] or given["etcd_key"]):
        raise InvalidArgument("--etcd-cert and --etcd-key go with --etcd-ca")
    from stelae.adapters.etcd.cluster import EtcdTls, EtcdUser

    tls = None if ca is None else EtcdTls(ca, given["etcd_cert"], given["etcd_key"])
    user = None if given["etcd_user"] is None else EtcdUser(given["etcd_user"], given["etcd_password"])
    return OnEtcd(endpoints, given["etcd_namespace"], tls, user)


def _etcd_of_environment(path: Path | None, before: SaidPlace | None) -> str | None:
    if path is not None or (before is not None and before.path is not None):
        return None
    etcd = os.environ.get("STELAE_ETCD")
    if etcd and os.environ.get("STELAE_PATH"):
        raise InvalidArgument("STELAE_PATH and STELAE_ETCD are both set: say which with --path or --etcd")
    return etcd


_Resolve = Callable[[typer.Context, Mapping[str, Any]], Any]


def _with_options(
    verb: Callable[..., None], options: Mapping[str, tuple[Any, Any]], resolve: _Resolve
) -> Callable[..., None]:
    """The verb with options in the place of its parameter `place`; the others stand before and behind as they did."""
    signature = inspect.signature(verb, eval_str=True)
    others = [each for name, each in signature.parameters.items() if name != "place"]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in options.items()
    ]
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)

    @wraps(verb)
    def wrapped(**given: Any) -> None:
        place = resolve(given.pop("context"), {name: given.pop(name) for name in options})
        verb(place=place, **given)

    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in others] + shared + [context]
    wrapped.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": None}
    return wrapped
