"""What lets a process into a cluster, and others to it: the cluster's token, and the files of TLS.

Each comes from the first level that says anything about it: what the program was given; the environment; `stelae.toml`
in the current directory, for the command line. A token is given by a program, by the environment, or in a file: never
as a word of a command line, which everybody on a machine can read.

    STELAE_TOKEN, or STELAE_TOKEN_FILE                   the token, or the file that it is in
    STELAE_TLS_CA, STELAE_TLS_CERT, STELAE_TLS_KEY       PEM files: see `adapters.sockets.tls`
    token_file, tls_ca, tls_cert, tls_key                in stelae.toml: the same, relative to it
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import msgspec

from stelae.adapters.files import os_errors
from stelae.adapters.sockets.tls import TlsFiles
from stelae.model.errors import InvalidArgument, nearest
from stelae.model.values import show
from stelae.wire.proofs import TOKEN_CHARS_MAX, ClusterToken

TlsGiven: TypeAlias = TlsFiles | Mapping[str, str | os.PathLike[str]] | bool | None
"""Files; or which file is the "ca", the "cert" and its "key"; or whether there is TLS, with what the system trusts."""

_TLS_NAMES = ("ca", "cert", "key")
_TOKEN, _TOKEN_FILE, _TLS = "STELAE_TOKEN", "STELAE_TOKEN_FILE", "STELAE_TLS_"


class Access(msgspec.Struct, frozen=True):
    """None: no token is proved, or wanted; no TLS is spoken."""

    token: ClusterToken | None = None
    tls: TlsFiles | None = None


NO_ACCESS = Access()


def find_access(
    token: str | None = None,
    tls: TlsGiven = None,
    *,
    token_file: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
    settings: Mapping[str, object] | None = None,
) -> Access:
    """`token`, `tls`, `token_file`: what the program was given; None: nothing was said. `environment`: None: this
    process's. `settings`: of a `stelae.toml` in the current directory."""
    around = os.environ if environment is None else environment
    return Access(_find_token(token, token_file, around, settings or {}), _find_tls(tls, around, settings or {}))


def environment_of(settings: Mapping[str, object], environment: Mapping[str, str]) -> dict[str, str]:
    """What a `stelae.toml` in the current directory says, in the words of the environment: for processes that are
    started elsewhere. Nothing about what the environment says something about itself."""
    said: dict[str, str] = {}
    if not any(environment.get(name) for name in (_TOKEN, _TOKEN_FILE)):
        said[_TOKEN_FILE] = _token_file(settings) or ""
    if not any(environment.get(f"{_TLS}{name.upper()}") for name in _TLS_NAMES):
        said |= {f"{_TLS}{name.upper()}": _text(settings, f"tls_{name}") or "" for name in _TLS_NAMES}
    return {name: os.path.abspath(os.path.expanduser(file)) for name, file in said.items() if file}


def read_token(path: str | os.PathLike[str]) -> ClusterToken:
    """Of a file that holds nothing else; spaces and line ends around it do not count."""
    place = str(Path(path).expanduser())
    with os_errors(place), open(place, "rb") as file:
        data = file.read(TOKEN_CHARS_MAX + 100)
    try:
        return ClusterToken(data.decode("ascii").strip())
    except UnicodeDecodeError:
        raise InvalidArgument(f"{place}: a cluster's token is ASCII text") from None
    except InvalidArgument as error:
        raise InvalidArgument(f"{place}: {error}") from None


def _find_token(
    given: str | None,
    file: str | os.PathLike[str] | None,
    around: Mapping[str, str],
    settings: Mapping[str, object],
) -> ClusterToken | None:
    if given is not None:
        if file is not None:
            raise InvalidArgument("give a token or a file that it is in, not both")
        return ClusterToken(given)
    if file is not None:
        return read_token(file)
    said, said_file = around.get(_TOKEN), around.get(_TOKEN_FILE)
    if said and said_file:
        raise InvalidArgument(f"{_TOKEN} and {_TOKEN_FILE} are both set: unset one")
    if said:
        try:
            return ClusterToken(said)
        except InvalidArgument as error:
            raise InvalidArgument(f"{_TOKEN}: {error}") from None
    if said_file:
        return read_token(said_file)
    found = _token_file(settings)
    return None if found is None else read_token(found)


def _token_file(settings: Mapping[str, object]) -> str | None:
    if "token" in settings:
        raise InvalidArgument("stelae.toml: token: write token_file, and the token into a file that only you can read")
    return _text(settings, "token_file")


def _find_tls(given: TlsGiven, around: Mapping[str, str], settings: Mapping[str, object]) -> TlsFiles | None:
    if isinstance(given, TlsFiles):
        return given
    if isinstance(given, bool):
        return TlsFiles() if given else None
    if given is not None:
        return _tls_of(given)
    said = {name: found for name in _TLS_NAMES if (found := around.get(f"{_TLS}{name.upper()}"))}
    if not said:
        said = {name: found for name in _TLS_NAMES if (found := _text(settings, f"tls_{name}"))}
    return _tls_of(said) if said else None


def _tls_of(given: object) -> TlsFiles:
    if not isinstance(given, Mapping):
        raise InvalidArgument(f'tls is files, as in {{"ca": "ca.pem"}}, or True or False, not {show(given)}')
    found: dict[str, str] = {}
    for name, file in given.items():
        if name not in _TLS_NAMES:
            hint = nearest(str(name), _TLS_NAMES)
            raise InvalidArgument(f"tls has files by the names of {', '.join(_TLS_NAMES)}, not {show(name)}{hint}")
        if not isinstance(file, str | os.PathLike) or not os.fspath(file):
            raise InvalidArgument(f"tls: {name} is the path of a file, not {show(file)}")
        found[name] = os.fspath(Path(file).expanduser())
    if "key" in found and "cert" not in found:
        raise InvalidArgument("tls: a key is of a certificate: name that, too (cert)")
    return TlsFiles(found.get("ca"), found.get("cert"), found.get("key"))


def _text(settings: Mapping[str, object], name: str) -> str | None:
    found = settings.get(name)
    if found is not None and (not isinstance(found, str) or not found):
        raise InvalidArgument(f'stelae.toml: {name} is {show(found)}; write text, as in {name} = "file"')
    return found
