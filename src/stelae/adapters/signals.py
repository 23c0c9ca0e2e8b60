"""Ctrl-C, where it must not come in the middle of something, and where another's way with it is of no use."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interrupts_later() -> Iterator[None]:
    """An interrupt in here is raised at the end. Only the main thread gets any; elsewhere this does nothing. A handler
    that somebody sets in here stays."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupts: list[bool] = []

    def noted(*_: Any) -> None:
        interrupts.append(True)

    before = signal.signal(signal.SIGINT, noted)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is noted:
            signal.signal(signal.SIGINT, before)
    if interrupts:
        raise KeyboardInterrupt


def plain_interrupts() -> None:
    """Ctrl-C raises KeyboardInterrupt and does nothing else."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
