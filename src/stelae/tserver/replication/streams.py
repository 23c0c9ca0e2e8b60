"""What a leader sends to other shards: one stream to each, with the records of all tablets that it has replicas of.

A stream has one request under way. Meanwhile more becomes durable here; all of it goes with the next. What is sent, and
what follows from answers, is decided by `step`, in a thread of its own; the event loop only carries both.

What a member has answered counts as long as its process lives, which is known by the connection. When that is lost, the
member is asked for nothing until it answers again; by then it may have been started anew and have lost what it had, and
be in doubt because of that: so it is asked then for each of its tablets what it has, though there may be nothing new.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from stelae.format.log.copies import copy_record
from stelae.format.log.records import LogRecord
from stelae.model.errors import DiskFailed, DiskFull, Retryable, StelaeError, UnknownOutcome
from stelae.model.ids import Index, TabletId
from stelae.ports.clock import Clock
from stelae.registry.peers import Peer
from stelae.registry.replication.appending import APPEND, HOST, PARTS_MAX, AppendAnswer, AppendPart
from stelae.registry.replication.comparing import REPLICA_IMAGES
from stelae.registry.replication.members import CHANGE_MEMBERS, MembersNow, MembersWanted, log_of, server_of
from stelae.service.deadlines import Deadline
from stelae.storage.replicas.comparing import ReplicaImage
from stelae.storage.shard import Shard
from stelae.tserver.replication.leading import Leading, tell_deposed
from stelae.tserver.replication.led import Led

APPEND_S = 2.0
IMAGES_S = 10.0
BEHIND_S = 3.0
STUCK_S = 9.0
"""A leader that has not reached enough members for so long wishes that another leads."""
LOOK_S = 0.5
_PAUSE_S = 0.1
_REQUEST_BYTES_MAX = 4 * 2**20
_PENDING_BYTES_MIN = _REQUEST_BYTES_MAX // 8
"""So much of what is brought up to date has room in a request, however much else there is to be sent."""

MASTER = ""
"""The leading master, among those that requests go to."""


class _Appended(msgspec.Struct, frozen=True):
    """Records; without parts it was only asked whether anybody answers."""

    parts: list[tuple[Led, AppendPart, list[LogRecord]]]


class _Sent(msgspec.Struct, frozen=True):
    """A replica as a whole."""

    led: Led


_Asked = _Appended | _Sent | None
"""None: the master was asked for other members."""

_Answer = tuple[AppendAnswer, ...] | AppendAnswer | tuple[MembersNow, ...] | StelaeError | None
"""None: no answer came. An error: why it cannot be done there."""


class Streams:
    """`step` is for one thread, `start` and `close` for the event loop; `on_answer` is set by whoever runs the steps:
    it has `step` called soon, from any thread. `open_peer` connects to a shard by name; `master`: that leads."""

    def __init__(self, shard: Shard, clock: Clock, open_peer: Callable[[str], Peer], master: Peer) -> None:
        self._shard = shard
        self._clock = clock
        self._open_peer = open_peer
        self._master = master
        self._loop: asyncio.AbstractEventLoop | None = None
        self._peers: dict[str, Peer] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way: set[str] = set()
        self._answers: deque[tuple[str, _Asked, _Answer, int]] = deque()
        """Each with how many connections there had been to whom it is of."""
        self._met: dict[str, int] = {}
        """How many there had been when a member answered last."""
        self._first: dict[str, TabletId] = {}
        """With which tablet the next request to a member begins, because the last had no room for it."""
        self._is_whole_next: set[str] = set()
        """Members whose last request was of records: next a replica as a whole goes before more of them."""
        self._look_s = 0.0
        self.on_answer: Callable[[], None] = _call_nobody

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def close(self) -> None:
        """What is under way is given up."""
        self._loop = None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for peer in self._peers.values():
            await peer.close()

    async def ask_images(self, member: str, tablets: Sequence[TabletId]) -> tuple[ReplicaImage | None, ...]:
        """What the shard with that replica says of tablets, for a check."""
        peer = self._open_peer(server_of(member))
        try:
            return await peer.ask(REPLICA_IMAGES, Deadline(self._clock, IMAGES_S), log_of(member), tablets)
        finally:
            await peer.close()

    # -- what is decided, in a thread

    def step(self, leading: Leading) -> bool:
        """Take what was answered, and send what is to be sent now. Whether there is more to do at once."""
        while self._answers:
            name, asked, answer, connections = self._answers.popleft()
            self._under_way.discard(name)
            self._take(leading, name, asked, answer)
            if answer is not None:
                self._meet(leading, name, connections)
        now_s = self._clock.monotonic_s()
        if now_s >= self._look_s:
            self._look_s = now_s + LOOK_S
            self._look(leading, now_s)
        with self._shard.lock:
            names = sorted({name for led in leading.led.values() for name in led.others} - self._under_way)
        for name in names:
            self._send(leading, name)
        return bool(self._answers)

    def _send(self, leading: Leading, name: str) -> None:
        with self._shard.lock:
            lacking = _lacking(leading, name) if name in self._is_whole_next else None
            parts = [] if lacking is not None else self._gather(leading, name)
            if not parts and lacking is None:
                lacking = _lacking(leading, name)
        self._is_whole_next.discard(name)
        if parts:
            self._is_whole_next.add(name)
            asked = [part for _, part, _ in parts]
            copies = [[copy_record(record) for record in records] for _, _, records in parts]
            until = Deadline(self._clock, APPEND_S)
            self._ask(name, _Appended(parts), lambda peer: peer.ask(APPEND, until, log_of(name), asked, copies))
        elif lacking is not None:
            self._send_whole(name, lacking)
        elif not self._is_met(name):
            until = Deadline(self._clock, APPEND_S)
            self._ask(name, _Appended([]), lambda peer: peer.ask(APPEND, until, log_of(name), [], []))

    def _send_whole(self, name: str, led: Led) -> None:
        """What a replica begins with. Its records follow as those of others do, a part in each request: however many
        there are, none is too large, and what others wait for goes along."""
        with self._shard.lock:
            begun = led.replica.begun()
        until = Deadline(self._clock, APPEND_S)
        ids = (log_of(name), led.table, led.tablet, led.lead.epoch)
        self._ask(name, _Sent(led), lambda peer: peer.ask(HOST, until, *ids, begun))

    def _is_met(self, name: str) -> bool:
        """Whether the process that has answered last is still there, or none has so far."""
        before, peer = self._met.get(name), self._peers.get(name)
        return before is None or peer is None or (peer.is_connected and peer.connections == before)

    def _meet(self, leading: Leading, name: str, connections: int) -> None:
        """It has answered, on the last of so many connections."""
        before = self._met.get(name, connections)
        self._met[name] = connections
        if before != connections:
            with self._shard.lock:
                for led in leading.led.values():
                    led.doubt(name)

    def _gather(self, leading: Leading, name: str) -> list[tuple[Led, AppendPart, list[LogRecord]]]:
        """What a member is sent next: first of the tablets in which it counts, whose writes wait for it, then of those
        in which it is being brought up to date. Whoever had no room is the first next time, so a tablet that always has
        more holds up no other for long."""
        parts: list[tuple[Led, AppendPart, list[LogRecord]]] = []
        room_bytes, is_pending = _REQUEST_BYTES_MAX, False
        for led in self._in_turn(leading, name):
            if led.others[name].is_pending and not is_pending:
                room_bytes, is_pending = max(room_bytes, _PENDING_BYTES_MIN), True
            if room_bytes <= 0 or len(parts) == PARTS_MAX:
                self._first.setdefault(name, led.tablet)
                continue
            found = led.next_part(name, room_bytes)
            if found is not None:
                parts.append((led, *found))
                room_bytes -= sum(len(record.payload) for record in found[1])
        return parts

    def _in_turn(self, leading: Leading, name: str) -> list[Led]:
        found = [led for led in leading.led.values() if name in led.others]
        first = self._first.pop(name, None)
        at = next((at for at, led in enumerate(found) if led.tablet == first), 0)
        found = found[at:] + found[:at]
        if any(led.others[name].is_pending for led in found):
            found.sort(key=lambda led: led.others[name].is_pending)
        return found

    def _take(self, leading: Leading, name: str, asked: _Asked, answer: _Answer) -> None:
        """Without an answer nothing follows: whoever stays behind for long is dropped."""
        if isinstance(answer, StelaeError):
            self._take_error(name, asked, answer)
        elif isinstance(asked, _Sent):
            if isinstance(answer, AppendAnswer):
                self._take_host(leading, name, asked.led, answer)
            else:
                with self._shard.lock:
                    asked.led.pause(name)
        elif isinstance(answer, tuple):
            parts = () if asked is None else asked.parts
            for at, each in enumerate(answer):
                if isinstance(each, MembersNow):
                    leading.take_members(each)
                elif isinstance(each, AppendAnswer) and at < len(parts):
                    self._take_append(leading, name, *parts[at][:2], each)

    def _take_error(self, name: str, asked: _Asked, error: StelaeError) -> None:
        now_s, is_full = self._clock.monotonic_s(), isinstance(error, DiskFull | DiskFailed)
        with self._shard.lock:
            if isinstance(asked, _Sent):
                asked.led.note_refused(name, str(error), now_s if is_full else None)
                asked.led.pause(name)
            elif asked is not None:
                for led, _, _ in asked.parts:
                    led.note_refused(name, str(error), now_s if is_full else None)

    def _take_append(self, leading: Leading, name: str, led: Led, part: AppendPart, answer: AppendAnswer) -> None:
        with self._shard.lock:
            matched = led.take_answer(name, part, answer, self._clock.monotonic_s())
        if answer.promised > part.epoch:
            tell_deposed(leading, led.tablet, answer.promised)
        elif matched is not None:
            self._shard.acknowledge(led.tablet, led.quorum, name, matched)

    def _take_host(self, leading: Leading, name: str, led: Led, answer: AppendAnswer) -> None:
        if answer.promised > led.lead.epoch:
            tell_deposed(leading, led.tablet, answer.promised)
            return
        with self._shard.lock:
            member = led.others.get(name)
            if member is not None:
                member.needs_all = False
                if answer.matched is not None:
                    member.sent = Index(answer.matched)
                elif answer.last is not None:
                    member.sent = Index(answer.last[1])

    def _look(self, leading: Leading, now_s: float) -> None:
        wanted = [led.wanted for led in leading.look(now_s, BEHIND_S, STUCK_S) if led.wanted is not None]
        if wanted and MASTER not in self._under_way:
            self._ask_master(wanted)

    def _ask_master(self, wanted: list[MembersWanted]) -> None:
        until = Deadline(self._clock, APPEND_S)
        self._ask(MASTER, None, lambda peer: peer.ask(CHANGE_MEMBERS, until, wanted))

    # -- what is carried, on the loop

    def _ask(self, name: str, asked: _Asked, ask: Callable[[Peer], Coroutine[Any, Any, _Answer]]) -> None:
        loop = self._loop
        if loop is None:
            return
        self._under_way.add(name)
        with suppress(RuntimeError):  # the loop has ended, and so has the shard
            loop.call_soon_threadsafe(self._begin, name, asked, ask)

    def _begin(self, name: str, asked: _Asked, ask: Callable[[Peer], Coroutine[Any, Any, _Answer]]) -> None:
        if self._loop is None:
            return
        peer = self._peers.get(name) or (self._master if name == MASTER else self._open_peer(server_of(name)))
        if name != MASTER:
            self._peers[name] = peer
        task = asyncio.create_task(self._carry(name, asked, ask, peer), name=f"replication-{name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(
        self, name: str, asked: _Asked, ask: Callable[[Peer], Coroutine[Any, Any, _Answer]], peer: Peer
    ) -> None:
        answer: _Answer = None
        try:
            answer = await ask(peer)
        except (DiskFull, DiskFailed) as error:
            answer = error
        except (Retryable, UnknownOutcome):
            pass
        except StelaeError as error:
            answer = error
        connections = peer.connections
        if answer is None or isinstance(answer, StelaeError):
            await asyncio.sleep(_PAUSE_S)
        self._answers.append((name, asked, answer, connections))
        self.on_answer()


def _lacking(leading: Leading, name: str) -> Led | None:
    """A tablet of which a member lacks what the leader has no records of any more."""
    for led in leading.led.values():
        member = led.others.get(name)
        if member is not None and member.needs_all and not member.is_paused:
            return led
    return None


def _call_nobody() -> None:
    """What `on_answer` is until somebody runs the steps: an answer wakes nobody."""
