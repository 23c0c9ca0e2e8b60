"""Ctrl-C later, and plainly."""

from __future__ import annotations

import os
import signal
from threading import Thread

import pytest

from stelae.adapters.signals import interrupts_later, plain_interrupts


def test_an_interrupt_comes_at_the_end() -> None:
    done = []
    before = signal.getsignal(signal.SIGINT)

    def work() -> None:
        with interrupts_later():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("all of it")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["all of it"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_handler_that_somebody_sets_stays() -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        with interrupts_later():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        plain_interrupts()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_have_none() -> None:
    done = []

    def work() -> None:
        with interrupts_later():
            plain_interrupts()
            done.append("all of it")

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert done == ["all of it"]
