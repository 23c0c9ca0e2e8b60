"""What a user's type checker says: the README's own examples pass the strictest, and misspelt names do not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.player import ROOT, blocks_of

_SETTINGS = """
[mypy]
strict = True
mypy_path = {src}
python_version = 3.11
[mypy-pyarrow.*,pandas.*,pyspark.*,xxhash.*]
ignore_missing_imports = True
follow_imports = skip
"""
_TYPOS = """
import stelae
import stelae.aio
import stelae.spark

stelae.opne("data")
stelae.Tabel
stelae.spark.laod
stelae.aio.opne
db = stelae.open("data", raed_only=True)
users = stelae.open("data").table("users")
users.gte("ann")
users.put({"id": "ann"}, if_absnt=True)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One place, so that the package is read once."""
    return tmp_path_factory.mktemp("typing")


def checked(place: Path, name: str, text: str) -> list[str]:
    """The errors in a file of that text."""
    settings, file = place / "mypy.ini", place / name
    settings.write_text(_SETTINGS.format(src=ROOT / "src"), "utf-8")
    file.write_text(text, "utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", str(settings), "--cache-dir", str(place / "cache")]
    done = subprocess.run([*command, name], cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if ": error: " in line]


def test_the_examples_of_the_readme_are_well_typed(place: Path) -> None:
    document = (ROOT / "README.md").read_text("utf-8")
    code = "\n".join(block.text for block in blocks_of(document) if block.language == "python")
    assert "stelae.open" in code
    assert checked(place, "readme.py", code) == []


def test_misspelt_names_are_found(place: Path) -> None:
    found = checked(place, "typos.py", _TYPOS)
    lines = [int(each.split(":")[1]) for each in found]
    first = _TYPOS.splitlines().index('stelae.opne("data")') + 1
    assert any('"Table" has no attribute "gte"' in each for each in found)  # the name that users know
    assert sorted(set(lines)) == [first, first + 1, first + 2, first + 3, first + 4, first + 6, first + 7]
