"""The command line as a person meets it: a real process, its output and its exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stelae.format.log.positions import segment_name
from tests.golden.samples import HERE, RECORDS, SEGMENT, segment


def stelae(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from stelae.cli.app import main; main()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", [["--help"], ["inspect", "--help"], ["demo", "--help"]])
def test_help(arguments: list[str]) -> None:
    done = stelae(*arguments)
    assert done.returncode == 0
    assert "Usage" in done.stdout
    if len(arguments) > 1:
        assert "Example: stelae" in done.stdout


def test_version() -> None:
    assert stelae("--version").stdout.startswith("stelae 0.")


def test_a_wrong_option_is_wrong_usage() -> None:
    done = stelae("inspect", "--no-such-option")
    assert done.returncode == 2
    assert "No such option" in done.stderr


def test_inspect_a_fragment() -> None:
    done = stelae("inspect", HERE / "v1" / "profile.parquet", "--json")
    assert done.returncode == 0
    facts = json.loads(done.stdout)
    assert facts["records"] == 3
    assert facts["erasures"] == 1
    assert facts["key"] == {"id": "string", "day": "date"}
    assert facts["data_pages_whole"] is True
    shown = stelae("inspect", HERE / "v1" / "profile.parquet").stdout
    assert "vector(float32, 2)" in shown


def test_inspect_a_segment_with_a_torn_tail(tmp_path: Path) -> None:
    file = tmp_path / segment_name(SEGMENT)
    file.write_bytes(segment() + b"torn")
    facts = json.loads(stelae("inspect", file, "--json").stdout)
    assert (facts["version"], facts["records"], facts["torn_tail_bytes"]) == (2, len(RECORDS), 4)
    assert file.read_bytes() == segment() + b"torn"


def test_inspect_says_what_is_wrong(tmp_path: Path) -> None:
    missing = stelae("inspect", tmp_path / "no.parquet")
    assert missing.returncode == 1
    assert "error: no file" in missing.stderr
    damaged = tmp_path / "x.parquet"
    data = bytearray((HERE / "v1" / "profile.parquet").read_bytes())
    data[100] ^= 1
    damaged.write_bytes(data)
    done = stelae("inspect", damaged)
    assert done.returncode == 1
    assert "x.parquet at byte 0" in done.stderr
    odd = tmp_path / "[red] a b.parquet"
    odd.write_bytes(data)
    assert "[red] a b.parquet at byte 0" in stelae("inspect", odd).stderr
    assert "no file [/x]" in stelae("inspect", "[/x]").stderr
    empty_words = tmp_path / segment_name(SEGMENT)
    empty_words.write_bytes(b"hi")
    assert "no whole segment header" in stelae("inspect", empty_words).stderr
    assert "Traceback" not in done.stderr
