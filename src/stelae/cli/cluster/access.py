"""Options by which a server is told what lets others in: the token and TLS. See `launch.access`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import replace

from stelae.cli.places import read_settings
from stelae.model.errors import InvalidArgument

if TYPE_CHECKING:
    from stelae.launch.access import Access


def _option(*names: str, **settings: Any) -> Any:
    return typer.Option(*names, rich_help_panel="Who is let in", **settings)


TokenFileOption = Annotated[
    Path | None,
    _option(
        "--token-file",
        metavar="FILE",
        help="Holds the cluster's token, which all its processes and programs prove. Or: STELAE_TOKEN_FILE, or "
        "stelae.toml.",
    ),
]
TlsCaOption = Annotated[
    Path | None,
    _option("--tls-ca", metavar="FILE", help="PEM: who signs the certificates of the cluster. Or: STELAE_TLS_CA."),
]
TlsCertOption = Annotated[
    Path | None, _option("--tls-cert", metavar="FILE", help="PEM: this server's certificate. Or: STELAE_TLS_CERT.")
]
TlsKeyOption = Annotated[
    Path | None, _option("--tls-key", metavar="FILE", help="PEM: the key of that. Or: STELAE_TLS_KEY.")
]
TlsMutualOption = Annotated[
    bool, _option("--tls-mutual", help="Let in only who shows a certificate that the same authority signed.")
]
InsecureOption = Annotated[
    bool, _option("--insecure", help="Serve other machines though there is no token, or no TLS. It is said each time.")
]


@dataclass(frozen=True, slots=True)
class SaidAccess:
    """What the words of a command say. What they do not may be in the environment or in `stelae.toml`."""

    token_file: Path | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    is_mutual: bool = False
    insecure: bool = False

    def find(self) -> Access:
        from stelae.launch.access import find_access

        files = {name: file for name, file in (("ca", self.ca), ("cert", self.cert), ("key", self.key)) if file}
        found = find_access(token_file=self.token_file, tls=files or None, settings=read_settings())
        if not self.is_mutual:
            return found
        if found.tls is None:
            raise InvalidArgument("--tls-mutual: there is no TLS: name its files, with --tls-ca, --tls-cert, --tls-key")
        return replace(found, tls=replace(found.tls, is_mutual=True))

    def words(self) -> list[str]:
        """The same, for a command that is started here."""
        named = {
            "--token-file": self.token_file,
            "--tls-ca": self.ca,
            "--tls-cert": self.cert,
            "--tls-key": self.key,
        }
        said = [word for name, file in named.items() if file is not None for word in (name, str(file))]
        return said + ["--tls-mutual"] * self.is_mutual + ["--insecure"] * self.insecure
