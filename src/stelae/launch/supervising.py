"""A node: it starts the processes of its shards, and starts each again when it has ended by itself.

A node serves nobody and holds no lease: who asks a shard asks the shard's own process. Its shards end with it, whatever
way it ends (`adapters.children`).

    DIR/node.json        which node it is
    DIR/owner            which process it is; where its shards serve, while all of them do
    DIR/shard-N/         a directory for each shard: see `processes`
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from stelae.adapters.children import Child, stelae_command
from stelae.adapters.clock import SystemClock
from stelae.adapters.event_log import show_events
from stelae.adapters.ownership import Ownership, read_owner
from stelae.adapters.rng import SystemRng
from stelae.adapters.signals import watch_stops, words_of_end
from stelae.launch.identity import NodeIdentity, read_node
from stelae.launch.restarts import PAUSE_S_MIN, next_pause_s
from stelae.model.errors import AlreadyExists, InvalidArgument, StelaeError, Unavailable

SHARDS_MAX = 1
"""So many a node can run in this release."""

_log = logging.getLogger("stelae")


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """`host`: where its shards serve; the system chooses the ports. `metastore`, `store`: as of `ProcessOptions`.
    `access`: the words that tell each shard what lets others in; what is in the environment it inherits."""

    name: str
    directory: Path
    metastore: str
    store: str | None = None
    host: str = "127.0.0.1"
    shards: int = 1
    access: tuple[str, ...] = ()
    release: str = ""


class ShardWord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a shard's process tells its node, once, as a line of JSON: where it serves; or why it does not, and whether
    trying again may help."""

    address: str = ""
    error: str = ""
    is_passing: bool = False


@dataclass(frozen=True, slots=True)
class ServingShard:
    number: int
    pid: int
    address: str


def word_of_failure(error: StelaeError) -> ShardWord:
    """Somebody else may have what it needs, or something is not there yet: that passes. All else is for people."""
    return ShardWord(error=str(error), is_passing=isinstance(error, Unavailable | AlreadyExists))


def shard_directory(node: Path, number: int) -> Path:
    return node / f"shard-{number}"


def check_shards(shards: int) -> None:
    """InvalidArgument if this release cannot run so many on a node."""
    if not 1 <= shards <= SHARDS_MAX:
        raise InvalidArgument(
            f"--shards {shards}: a node runs one shard in this release; several come with a later one"
        )


def run_node(options: NodeOptions, tell: Callable[[tuple[ServingShard, ...]], None]) -> None:
    """Until SIGTERM, SIGINT or SIGHUP, which its shards get, too: it ends when they have closed in order. A second
    signal ends all at once. `tell` is called when all shards serve for the first time. The error of a shard that cannot
    even start is raised, unless it may pass."""
    check_shards(options.shards)
    owned = Ownership.take(options.directory, options.release)
    if owned is None:
        who = read_owner(options.directory) or "another process"
        raise AlreadyExists(f"{options.directory} is in use: {who} has it")
    try:
        identity = read_node(options.directory, options.name, SystemRng())
        if identity.name != options.name:
            raise InvalidArgument(
                f"{options.directory} is of the node {identity.name!r}, not of {options.name!r}: start it by its name"
            )
        show_events()
        asyncio.run(_Supervisor(options, identity, owned, tell).run())
    finally:
        owned.release()


class _Supervisor:
    def __init__(
        self,
        options: NodeOptions,
        identity: NodeIdentity,
        owned: Ownership,
        tell: Callable[[tuple[ServingShard, ...]], None],
    ) -> None:
        self._options = options
        self._identity = identity
        self._owned = owned
        self._tell = tell
        self._is_told = False
        self._children: dict[int, Child] = {}
        self._serving: dict[int, ServingShard] = {}
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        with watch_stops(self._stop, self._kill):
            try:
                async with asyncio.TaskGroup() as group:
                    for number in range(self._options.shards):
                        group.create_task(self._keep(number))
            except BaseExceptionGroup as failed:
                raise _first(failed) from None
            finally:
                self._kill()

    def _stop(self) -> None:
        _log.info("node %s is asked to stop", self._options.name)
        self._stopping.set()
        for child in self._children.values():
            child.signal(signal.SIGTERM)

    def _kill(self) -> None:
        for child in self._children.values():
            child.signal(signal.SIGKILL)

    async def _keep(self, number: int) -> None:
        """Run one shard for as long as the node runs."""
        has_served, pause_s, clock = False, PAUSE_S_MIN, SystemClock()
        while not self._stopping.is_set():
            began_s = clock.monotonic_s()
            child = self._children[number] = await Child.start(self._command(number))
            if self._stopping.is_set():
                child.signal(signal.SIGTERM)
            word = _read_word(await child.first_line())
            if word.address:
                has_served = True
                self._note(number, ServingShard(number, child.pid, word.address))
            code = await child.wait()
            self._note(number, None)
            if self._stopping.is_set():
                return
            if word.error and not word.is_passing and not has_served:
                raise InvalidArgument(word.error)
            name, why = f"{self._options.name}/{number}", word.error or words_of_end(code)
            _log.warning("shard %s (process %d) has ended: %s; it is started again", name, child.pid, why)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)
            pause_s = next_pause_s(pause_s, clock.monotonic_s() - began_s)

    def _note(self, number: int, shard: ServingShard | None) -> None:
        """Say in the node's directory where its shards serve, if all do."""
        if shard is None:
            self._serving.pop(number, None)
        else:
            self._serving[number] = shard
            _log.info("shard %s/%d (process %d) serves on %s", self._options.name, number, shard.pid, shard.address)
        serving = tuple(self._serving[number] for number in sorted(self._serving))
        is_whole = len(serving) == self._options.shards
        self._owned.note(",".join(each.address for each in serving) if is_whole else "")
        if is_whole and not self._is_told:
            self._is_told = True
            self._tell(serving)

    def _command(self, number: int) -> list[str]:
        options = self._options
        words = ["shard", "--name", options.name, "--node", self._identity.node, "--number", str(number)]
        words += ["--dir", str(shard_directory(options.directory, number)), "--listen", f"{options.host}:0"]
        words += ["--metastore", options.metastore, *options.access]
        return stelae_command(*words, *(["--store", options.store] if options.store is not None else []))


def _read_word(line: bytes) -> ShardWord:
    try:
        return msgspec.json.decode(line, type=ShardWord)
    except msgspec.MsgspecError:
        return ShardWord()


def _first(failed: BaseExceptionGroup) -> BaseException:
    found: BaseException = failed
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
