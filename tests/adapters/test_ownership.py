"""Who has a directory open, where the disk is full."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from stelae.adapters.ownership import Ownership
from stelae.model.errors import StelaeError


def test_who_cannot_leave_a_note_does_not_own_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises((StelaeError, OSError), match="No space left"):
            Ownership.take(tmp_path, "1.0")
    again = Ownership.take(tmp_path, "1.0")
    assert again is not None
    again.release()
