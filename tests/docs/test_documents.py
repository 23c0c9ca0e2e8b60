"""Every Python block in the documents runs, and every link inside the repository leads somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/stelae/**/README.md")])
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]+\]\(([^)#]+)[^)]*\)")
BLOCKS = [
    pytest.param(block, id=f"{path.relative_to(ROOT)}-{n}")
    for path in DOCUMENTS
    for n, block in enumerate(PYTHON.findall(path.read_text()))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_code_runs(block: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_there_is_code_to_run() -> None:
    assert BLOCKS


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    targets = [target for target in LINK.findall(path.read_text()) if "://" not in target]
    assert [target for target in targets if not (path.parent / target).exists()] == []
