"""What this process takes of the machine."""

from __future__ import annotations

import os
import time
from pathlib import Path

_STARTED_S = time.time()
_PAGES = Path("/proc/self/statm")


def process_usage() -> dict[str, float]:
    """Processor time, memory where the system tells it, and when the process began: for metrics."""
    found: dict[str, float] = {"cpu_seconds": time.process_time(), "started_seconds": _STARTED_S}
    if _PAGES.exists():
        resident_pages = int(_PAGES.read_text().split()[1])
        found["resident_bytes"] = resident_pages * os.sysconf("SC_PAGESIZE")
    return found
