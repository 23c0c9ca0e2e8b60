"""The documents tell the truth: their code runs and prints what they say, and their links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.docs.player import LANGUAGES, NOT_RUN, ROOT, blocks_of, needs_spark, play_file, reason_not_to_run
from tests.effort import HANG_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PLACES = ("*.md", "docs/**/*.md", "examples/*.md", "src/stelae/**/README.md")
DOCUMENTS = sorted(path for place in _PLACES for path in ROOT.glob(place))
GENERATED = ("docs/api.md", "docs/api-aio.md")
"""Their examples run in test_api_reference.py, each on a store of its own."""
PLAYED = [
    path
    for path in DOCUMENTS
    if str(path.relative_to(ROOT)) not in GENERATED and any(True for _ in blocks_of(path.read_text("utf-8")))
]
ON_SPARK = [path for path in PLAYED if needs_spark(path.read_text("utf-8"))]
LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]*)(#[^)\s]*)?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_PLAY_S_MAX = 2 * HANG_S
_BARE = """
import sys
class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name in ("pandas", "polars", "pyspark", "duckdb"):
            raise ModuleNotFoundError(f"no {name} here", name=name)
sys.meta_path.insert(0, NotInstalled())
"""


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", [path for path in PLAYED if path not in ON_SPARK], ids=named)
def test_code_runs_and_prints_what_is_said(path: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "tests.docs.player", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=_PLAY_S_MAX)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", ON_SPARK, ids=named)
def test_code_on_spark_runs_and_prints_what_is_said(path: Path, spark: SparkSession) -> None:
    """In this process, whose session the document finds."""
    assert list(play_file(path)) == []


def test_the_quick_start_needs_nothing_but_the_package(tmp_path: Path) -> None:
    """Not pandas, not polars: they are not among its dependencies."""
    first = next(block for block in blocks_of((ROOT / "README.md").read_text("utf-8")) if block.language == "python")
    done = subprocess.run(
        [sys.executable, "-c", _BARE + first.text], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_what_a_newcomer_reads_is_played() -> None:
    assert {"README.md", "docs/tutorial.md", "docs/modelling.md", "docs/operating.md", "docs/spark.md"} <= {
        named(path) for path in PLAYED
    }


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_every_block_is_of_a_kind_that_is_run(path: Path) -> None:
    assert {block.language for block in blocks_of(path.read_text("utf-8"))} <= LANGUAGES
    assert path.read_text("utf-8").count("```") == 2 * len(list(blocks_of(path.read_text("utf-8"))))


def test_what_is_not_run_stands_in_some_document() -> None:
    lines = {
        line.strip().removeprefix("$ ")
        for path in PLAYED
        for block in blocks_of(path.read_text("utf-8"))
        if block.language in ("sh", "console")
        for line in block.text.splitlines()
    }
    assert {reason for line in lines if (reason := reason_not_to_run(line))} == set(NOT_RUN.values())


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_links_lead_somewhere(path: Path) -> None:
    broken = []
    for target, anchor in LINK.findall(path.read_text("utf-8")):
        if "://" in target:
            continue
        found = path.parent / target if target else path
        if not found.exists() or (anchor and anchor not in anchors_of(found)):
            broken.append(target + anchor)
    assert broken == []


def anchors_of(path: Path) -> set[str]:
    headings = HEADING.findall(path.read_text("utf-8"))
    return {"#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
