"""The files that the style rules look at."""

from __future__ import annotations

import ast
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "stelae"
TESTS = ROOT / "tests"


@dataclass(frozen=True)
class Source:
    """A Python file, by its path under the package (or under tests), as text."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @property
    def room(self) -> str:
        """The first directory of its path; empty for what lies beside the rooms."""
        parts = PurePosixPath(self.path).parts
        return parts[0] if len(parts) > 1 else ""

    @property
    def is_init(self) -> bool:
        return PurePosixPath(self.path).name == "__init__.py"


def read(directory: Path) -> list[Source]:
    files = sorted(directory.rglob("*.py"))
    return [Source(file.relative_to(directory).as_posix(), file.read_text("utf-8")) for file in files]


def rooms() -> list[Path]:
    """Every room that exists: a directory of the package with anything in it but what Python left there."""

    def has_content(path: Path) -> bool:
        return any(child.name != "__pycache__" for child in path.iterdir())

    found = [path for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"]
    return sorted(path for path in found if has_content(path))


def kept_files() -> list[Path]:
    """What is in the repository or would be added to it; where there is no git, whatever is not hidden."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        files = [path for path in ROOT.rglob("*") if "/." not in f"/{path.relative_to(ROOT).as_posix()}"]
    else:
        files = [ROOT / name for name in listing.split("\0") if name]
    return [path for path in files if path.is_file()]
