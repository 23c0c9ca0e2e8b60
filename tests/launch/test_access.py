"""Where a token and the files of TLS come from: the first level that says anything about each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stelae.adapters.sockets.tls import TlsFiles
from stelae.launch.access import Access, find_access
from stelae.model.errors import InvalidArgument, NotFound
from stelae.wire.proofs import ClusterToken, Prover

GIVEN, AROUND, IN_FILE, IN_SETTINGS = ("g" * 16, "a" * 16, "f" * 16, "s" * 16)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    for name, text in (("around", IN_FILE), ("settings", IN_SETTINGS)):
        (tmp_path / name).write_text(f"  {text}\n")
    return {"around": str(tmp_path / "around"), "settings": str(tmp_path / "settings")}


def is_of(token: ClusterToken | None, text: str) -> bool:
    return token is not None and token.prove(Prover.ACCEPTING, b"", b"") == ClusterToken(text).prove(
        Prover.ACCEPTING, b"", b""
    )


def test_nothing_said_is_nothing() -> None:
    assert find_access(environment={}) == Access()
    assert find_access(environment={"STELAE_TOKEN": "", "STELAE_TLS_CA": ""}, settings={}) == Access()


def test_the_first_level_that_speaks_counts(files: dict[str, str]) -> None:
    around = {"STELAE_TOKEN_FILE": files["around"]}
    settings = {"token_file": files["settings"]}
    assert is_of(find_access(GIVEN, environment=around, settings=settings).token, GIVEN)
    assert is_of(find_access(token_file=files["settings"], environment=around).token, IN_SETTINGS)
    assert is_of(find_access(environment=around, settings=settings).token, IN_FILE)
    assert is_of(find_access(environment={"STELAE_TOKEN": AROUND}, settings=settings).token, AROUND)
    assert is_of(find_access(environment={}, settings=settings).token, IN_SETTINGS)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"token": GIVEN, "token_file": "x"}, "not both"),
        ({"token": "short"}, "from 16"),
        ({"token": 7}, "is text, not int"),
        ({"environment": {"STELAE_TOKEN": AROUND, "STELAE_TOKEN_FILE": "x"}}, "both set"),
        ({"environment": {"STELAE_TOKEN": "short"}}, "STELAE_TOKEN: a cluster's token has from 16"),
        ({"settings": {"token": GIVEN}}, "write token_file"),
        ({"settings": {"token_file": 7}}, "token_file is 7; write text"),
        ({"tls": {"cafile": "x"}}, "not 'cafile'"),
        ({"tls": {"ca": 7}}, "ca is the path of a file, not 7"),
        ({"tls": "ca.pem"}, "tls is files"),
        ({"tls": {"key": "k.pem"}}, "name that, too"),
        ({"settings": {"tls_ca": ""}}, "tls_ca is ''"),
    ],
)
def test_what_cannot_be_meant_is_said(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words) as refused:
        find_access(**{"environment": {}, **options})
    assert GIVEN not in str(refused.value)
    assert AROUND not in str(refused.value)


def test_files_that_hold_no_token(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="none"):
        find_access(token_file=tmp_path / "none", environment={})
    for data in (b"", b"two words of it here", b"\xff" * 20, b"x" * 5_000):
        (tmp_path / "token").write_bytes(data)
        with pytest.raises(InvalidArgument, match=r"token: .*a cluster's token"):
            find_access(token_file=tmp_path / "token", environment={})


@pytest.mark.parametrize(
    ("given", "environment", "settings", "found"),
    [
        ({"ca": "a", "cert": "b", "key": "c"}, {"STELAE_TLS_CA": "x"}, {}, TlsFiles("a", "b", "c")),
        ({"ca": Path("a")}, {}, {}, TlsFiles("a")),
        (TlsFiles("a"), {"STELAE_TLS_CA": "x"}, {}, TlsFiles("a")),
        (True, {}, {}, TlsFiles()),
        (False, {"STELAE_TLS_CA": "x"}, {"tls_ca": "y"}, None),
        (None, {"STELAE_TLS_CA": "x", "STELAE_TLS_CERT": "y", "STELAE_TLS_KEY": "z"}, {}, TlsFiles("x", "y", "z")),
        (None, {"STELAE_TLS_CERT": "y"}, {"tls_ca": "z"}, TlsFiles(None, "y")),
        (None, {}, {"tls_ca": "z"}, TlsFiles("z")),
    ],
)
def test_files_of_tls(
    given: Any, environment: Mapping[str, str], settings: Mapping[str, object], found: TlsFiles | None
) -> None:
    assert find_access(tls=given, environment=environment, settings=settings).tls == found


def test_a_token_is_not_shown() -> None:
    assert GIVEN not in repr(find_access(GIVEN, environment={}))
