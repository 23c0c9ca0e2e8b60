"""Ctrl-C later, and plainly; signals that ask a program to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from threading import Thread

import pytest

from stelae.adapters.signals import (
    STOPS,
    interrupts_later,
    plain_interrupts,
    started_without_interrupts,
    words_of_end,
)
from tests.effort import HANG_S


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


# -- signals that ask to stop, in processes of their own

_WAITING = """
import sys
from stelae.adapters.signals import StopAsked, StopSignals
with StopSignals() as stops:
    print("waits", flush=True)
    print(stops.wait(), stops.wait(0), flush=True)
    sys.stdin.read()
"""
_BEGINNING = """
import sys
from stelae.adapters.signals import StopAsked, StopSignals
with StopSignals() as stops:
    try:
        with stops.interrupting():
            print("begins", flush=True)
            sys.stdin.read()
    except StopAsked:
        print("asked", flush=True)
    try:
        with stops.interrupting():
            print("never")
    except StopAsked:
        print("asked again", stops.wait(), flush=True)
"""


_HEARING = f"import signal\nfor each in {[int(each) for each in STOPS]}: signal.signal(each, signal.SIG_DFL)\n"
"""Whatever the tests were started with: by nohup, or in the background."""


@pytest.mark.parametrize("number", STOPS)
def test_the_first_asks_and_the_second_ends(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _HEARING + _WAITING], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        process.send_signal(number)
        assert process.stdout.readline() == "True True\n"
        process.send_signal(number)
        assert process.wait(HANG_S) == 128 + number


def test_a_beginning_is_broken_off() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _HEARING + _BEGINNING], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begins\n"
        process.terminate()
        assert process.stdout.read() == "asked\nasked again True\n"
        assert process.wait(HANG_S) == 0


def test_who_was_started_with_nohup_stays_when_its_terminal_goes() -> None:
    code = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + _WAITING
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        process.send_signal(signal.SIGHUP)
        process.terminate()
        assert process.stdout.readline() == "True True\n"
        process.send_signal(signal.SIGHUP)
        process.communicate()
        assert process.returncode == 0


def test_how_a_process_ended_in_words() -> None:
    assert words_of_end(3) == "exit code 3"
    assert words_of_end(-9) == "killed by SIGKILL"
    assert words_of_end(-99) == "killed by signal 99"


_UNTIL_TOLD = "import sys; print('runs', flush=True); sys.exit(7 if sys.stdin.readline() == 'end\\n' else 1)"


def test_a_process_that_is_started_without_interrupts_does_not_hear_them() -> None:
    pipe = subprocess.PIPE
    with started_without_interrupts():
        started = subprocess.Popen([sys.executable, "-c", _UNTIL_TOLD], stdin=pipe, stdout=pipe, text=True)
    os.kill(started.pid, signal.SIGINT)
    assert started.stdout is not None
    assert started.stdout.readline() == "runs\n"
    os.kill(started.pid, signal.SIGINT)
    started.communicate("end\n")
    assert started.returncode == 7
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ()), "this one hears them as before"
