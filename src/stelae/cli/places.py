"""Where the store is: the options every verb shares that looks at one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stelae.adapters.etcd_cluster import EtcdTls, EtcdUser
from stelae.launch.metastores import ETCD_NAMESPACE, InDirectory, MetastorePlace, OnEtcd
from stelae.model.errors import InvalidArgument

PathOption = Annotated[
    Path | None, typer.Option("--path", envvar="STELAE_PATH", help="The directory of an embedded store.")
]
EtcdOption = Annotated[
    str | None, typer.Option("--etcd", envvar="STELAE_ETCD", help="A cluster's etcd: HOST:PORT, several with commas.")
]
NamespaceOption = Annotated[str, typer.Option("--etcd-namespace", help="What the store's keys in etcd begin with.")]
UserOption = Annotated[
    str | None,
    typer.Option("--etcd-user", envvar="STELAE_ETCD_USER", help="NAME; the password is in STELAE_ETCD_PASSWORD."),
]
PasswordOption = Annotated[str, typer.Option("--etcd-password", envvar="STELAE_ETCD_PASSWORD", hidden=True)]
CaOption = Annotated[Path | None, typer.Option("--etcd-ca", help="TLS: the authority's certificate, PEM.")]
CertOption = Annotated[Path | None, typer.Option("--etcd-cert", help="TLS: this client's certificate, PEM.")]
KeyOption = Annotated[Path | None, typer.Option("--etcd-key", help="TLS: this client's key, PEM.")]
JsonOption = Annotated[bool, typer.Option("--json", help="For programs.")]

DEFAULT_NAMESPACE_OPTION = ETCD_NAMESPACE


def place_of(
    path: Path | None,
    etcd: str | None,
    namespace: str,
    user: str | None,
    password: str,
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
) -> MetastorePlace:
    if (path is None) == (etcd is None):
        raise InvalidArgument("say where the store is: --path DIR or --etcd HOST:PORT (one of them)")
    if path is not None:
        return InDirectory(path)
    endpoints = tuple(endpoint.strip() for endpoint in (etcd or "").split(",") if endpoint.strip())
    if ca is None and (cert or key):
        raise InvalidArgument("--etcd-cert and --etcd-key go with --etcd-ca")
    tls = None if ca is None else EtcdTls(ca, cert, key)
    return OnEtcd(endpoints, namespace, tls, None if user is None else EtcdUser(user, password))
