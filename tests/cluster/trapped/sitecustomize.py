"""Run by Python before the program, in the processes of a cluster whose masters have traps (`tests.cluster.traps`)."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def _lay() -> None:
    if "master" in sys.orig_argv:
        from tests.cluster.traps import TRAPS, lay_traps

        lay_traps(Path(os.environ[TRAPS]))


_lay()
