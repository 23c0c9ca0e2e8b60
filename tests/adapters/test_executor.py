"""What the contract of executors does not say: the collector of Python may run in the middle of anything."""

from __future__ import annotations

from concurrent.futures import Future
from threading import Event, Thread
from typing import Any

import pytest

from stelae.adapters.executor import ThreadExecutor
from tests.effort import HANG_S


def test_a_job_is_cancelled_while_another_is_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by the end of a scan that is collected just then."""
    executor, gate = ThreadExecutor(1, 2), Event()
    running = executor.submit(gate.wait, HANG_S)
    waiting = executor.submit(int)
    found: list[Future[int]] = []
    submit = executor._pool.submit

    def collect_and_submit(*args: Any) -> Any:
        assert waiting.cancel()
        return submit(*args)

    monkeypatch.setattr(executor._pool, "submit", collect_and_submit)
    thread = Thread(target=lambda: found.append(executor.submit(int)), daemon=True)
    thread.start()
    thread.join(HANG_S)
    gate.set()
    assert not thread.is_alive()
    assert found[0].result(HANG_S) == 0
    assert running.result(HANG_S)
    executor.close()
