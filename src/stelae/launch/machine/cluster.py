"""Starts the processes of a cluster on one machine, looks after them, and stops them in order.

What is started runs apart: the end of who started it, whatever way it comes, ends nobody. What is found running is left
alone.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from itertools import groupby
from pathlib import Path

import msgspec

from stelae.adapters.children import Apart
from stelae.adapters.clock import SystemClock
from stelae.adapters.liveness import ProcessMark, mark_process, send_signal, wait_for_end
from stelae.adapters.signals import StopAsked, words_of_end
from stelae.launch.machine.members import EtcdMember, Member, members_of
from stelae.launch.machine.plan import ClusterPlan, write_plan
from stelae.launch.restarts import PAUSE_S_MIN, next_pause_s
from stelae.model.errors import StelaeError, Unavailable

START_S_MAX = 300.0
"""A process that does not serve by then is given up: on the busiest machine it takes less."""
STOP_S_MAX = 60.0
"""A process that was asked to stop and has not by then is ended: what was acknowledged is safe all the same."""

_LOOK_S = 0.05
_ERROR = "error: "


class Happening(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a person who watches is told: what became of which process."""

    name: str
    what: str
    pid: int | None = None
    words: str = ""


Tell = Callable[[Happening], None]
Nap = Callable[[float], bool]
"""Waits so many seconds, or until somebody wants all to end; whether somebody does."""


def heard_or_not(tell: Tell) -> Tell:
    """The same. Whoever listened may be gone, as the reader of a pipe: processes are looked after, and stopped, all the
    same."""

    def tell_if_heard(happening: Happening) -> None:
        with suppress(BrokenPipeError):
            tell(happening)

    return tell_if_heard


class LocalCluster:
    """For who has its directory (`machine.directory`): one process at a time starts and stops others."""

    def __init__(self, directory: Path, plan: ClusterPlan, tell: Tell, nap: Nap, *, is_new: bool = False) -> None:
        self._is_new = is_new
        self.directory = directory
        self.plan = plan
        self._tell = heard_or_not(tell)
        self._nap = nap
        self._clock = SystemClock()
        self._started: dict[str, Apart] = {}

    def members(self) -> list[Member]:
        """All processes of the cluster, in the order in which they are started."""
        return members_of(self.directory, self.plan)

    def start_missing(self) -> None:
        """Return when all serve. If one does not, those that were started here are ended again, and its error is
        raised; if somebody wants to end meanwhile, StopAsked."""
        try:
            for together in self._by_turns():
                for member in together:
                    if member.process() is None:
                        self._start(member)
                for member in together:
                    self._wait_until_serving(member)
        except BaseException:
            self.stop_started()
            raise

    def stop_started(self) -> None:
        """Those that were started here, and no others."""
        self._stop([each for each in self.members() if each.name in self._started])

    def _by_turns(self) -> list[list[Member]]:
        """Those of one turn are started at once. What the others need to be there comes first: etcd, and the first
        master of a new cluster, who writes down that it is one."""
        members = self.members()
        etcd: list[Member] = [member for member in members if isinstance(member, EtcdMember)]
        first = len(etcd) + 1 if self._is_new else len(etcd)
        return [etcd, members[len(etcd) : first], members[first:]]

    def _start(self, member: Member) -> None:
        """It is written down before anything else is done."""
        for words in member.doubts():
            self._tell(Happening(member.name, "note", words=words))
        process = self._started[member.name] = Apart(member.command(), member.log)
        member.started = mark_process(process.pid)
        self.plan = member.with_process(self.plan, member.started)
        write_plan(self.directory, self.plan)

    def _wait_until_serving(self, member: Member) -> None:
        until_s = self._clock.monotonic_s() + START_S_MAX
        while not member.is_serving():
            if member.process() is None:
                raise Unavailable(f"{member.name} did not start: {self._words_of_end(member)}")
            if self._clock.monotonic_s() > until_s:
                raise Unavailable(f"{member.name} does not serve after {START_S_MAX:.0f} seconds; see {member.log}")
            if self._nap(_LOOK_S):
                raise StopAsked
        what = "serves" if member.name in self._started else "was serving already"
        self._tell(Happening(member.name, what, member.last_pid()))
        for name in member.missing():
            self._tell(Happening(name, "does not serve", words=f"see {member.log}"))

    def _words_of_end(self, member: Member) -> str:
        """Why a process has ended, as it says itself, or as the system does."""
        process = self._started.get(member.name)
        code = None if process is None else process.exit_code()
        if process is None or code is None:
            return f"see {member.log}"
        said = [line for line in process.said().splitlines() if line.startswith(_ERROR)]
        return said[-1].removeprefix(_ERROR) if said else f"{words_of_end(code)}; see {member.log}"

    def look_after(self, every_s: float) -> None:
        """Start masters and nodes again when they end, until somebody wants all to end."""
        watches = {member.name: _Watch(self._clock.monotonic_s(), member.last_pid()) for member in self.members()}
        parts = {name: part.pid for member in self.members() for name, part in member.parts().items()}
        while not self._nap(every_s):
            for member in self.members():
                self._look_at(member, watches[member.name])
                for name, part in member.parts().items():
                    if parts.get(name) != part.pid:
                        parts[name] = part.pid
                        self._tell(Happening(name, "serves again", part.pid))

    def _look_at(self, member: Member, watch: _Watch) -> None:
        now_s, process = self._clock.monotonic_s(), member.process()
        if process is None and watch.start_at_s is None:
            watch.pause_s = next_pause_s(watch.pause_s, now_s - watch.began_s)
            watch.start_at_s = now_s + watch.pause_s
            self._tell(Happening(member.name, "has ended", watch.pid, self._words_of_end(member)))
        elif process is None and watch.start_at_s is not None and now_s >= watch.start_at_s:
            watch.start_at_s, watch.began_s, watch.pid = None, now_s, None
            try:
                self._start(member)
            except StelaeError as error:  # a full disk, say: it is tried again
                self._tell(Happening(member.name, "cannot be started", words=str(error)))
        elif process is not None and process.pid != watch.pid and member.is_serving():
            watch.start_at_s, watch.pid = None, process.pid
            self._tell(Happening(member.name, "serves again", process.pid))

    def stop(self) -> None:
        """All that run, in the reverse of the order in which they are started."""
        self._stop(self.members())

    def _stop(self, members: list[Member]) -> None:
        """Those of one kind at once: nodes, then masters, then etcd."""
        for _, some in groupby(reversed(members), type):
            running = [(member, process) for member in some if (process := member.process()) is not None]
            for _, process in running:
                send_signal(process, signal.SIGTERM)
            until_s = self._clock.monotonic_s() + STOP_S_MAX
            for member, process in running:
                if wait_for_end(process, max(0.0, until_s - self._clock.monotonic_s())):
                    self._tell(Happening(member.name, "stopped", process.pid))
                else:
                    _end_process(process, member)
                    words = f"it did not stop within {STOP_S_MAX:.0f} seconds"
                    self._tell(Happening(member.name, "was killed", process.pid, words))

    def leave(self) -> None:
        """Watch no more, and leave the processes running when this one ends."""
        for process in self._started.values():
            process.leave()


class _Watch:
    """One member, as it was last seen. `start_at_s`: when it is to be started again; None while it runs."""

    def __init__(self, began_s: float, pid: int | None) -> None:
        self.began_s = began_s
        self.pid = pid
        self.pause_s = PAUSE_S_MIN
        self.start_at_s: float | None = None


def _end_process(process: ProcessMark, member: Member) -> None:
    """Kill a member that did not stop in time, and the processes that it has started."""
    for each in (process, *member.parts().values()):
        send_signal(each, signal.SIGKILL)
        wait_for_end(each, STOP_S_MAX)
