"""Copies of what a store keeps about itself, to be read where its directory may not be changed: SQLite and recovery
write even where nothing changes. Errors that name a copy are made to name what was copied."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from stelae.adapters.files import os_errors
from stelae.model.errors import StelaeError


def copy_files(directory: Path, *patterns: str) -> Path:
    """All that has such a name, in a new directory, which the caller removes."""
    copy = Path(tempfile.mkdtemp(prefix="stelae-"))
    try:
        with os_errors(str(directory)):
            for part in (part for pattern in patterns for part in directory.glob(pattern)):
                if part.is_dir():
                    shutil.copytree(part, copy / part.name)
                else:
                    shutil.copyfile(part, copy / part.name)
    except BaseException:
        shutil.rmtree(copy, ignore_errors=True)
        raise
    return copy


def name_original(directory: Path, copy: Path, error: StelaeError) -> StelaeError:
    """Put the directory wherever the error names the copy; return the error."""

    def renamed(value: object) -> object:
        return value.replace(str(copy), str(directory)) if isinstance(value, str) else value

    error.args = tuple(renamed(value) for value in error.args)
    error.__dict__.update({name: renamed(value) for name, value in error.__dict__.items()})
    return error
