"""Which etcd is found, and whether it may be trusted with what must not be lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from stelae.adapters.etcd.server import find_etcd
from stelae.model.errors import Unavailable


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "etcd"


def write_program(place: Path, says: str) -> None:
    place.write_text(f"#!/bin/sh\necho '{says}'\n")
    place.chmod(0o755)


@pytest.mark.parametrize(
    ("version", "is_sound"),
    [("3.4.30", False), ("3.5.0", False), ("3.5.2", False), ("3.5.3", True), ("3.5.21", True), ("3.6.0", True)],
)
def test_releases_that_may_lose_data_are_known(on_path: Path, version: str, is_sound: bool) -> None:
    write_program(on_path, f"etcd Version: {version}")
    program = find_etcd()
    assert (program.path, program.is_sound) == (on_path, is_sound)
    assert version in program.words


def test_what_does_not_say_which_release_it_is_is_not_started(on_path: Path) -> None:
    write_program(on_path, "no such option")
    with pytest.raises(Unavailable, match="does not say which etcd it is: no such option"):
        find_etcd()
