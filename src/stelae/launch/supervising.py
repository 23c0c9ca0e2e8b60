"""A node: it starts the processes of its shards, and starts each again when it has ended by itself.

A node serves nobody and holds no lease: who asks a shard asks the shard's own process. Its shards end with it, whatever
way it ends (`adapters.children`). One that cannot be started holds up no other: it is tried again, after ever longer
pauses. Only if none has served yet, and none can, does the node end, and says why.

    DIR/node.json        which node it is
    DIR/owner            which process it is; where its shards serve, while all do that can
    DIR/shard-N/         a directory for each shard: see `processes`
"""

from __future__ import annotations

import asyncio
import logging
import re
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from stelae.adapters.children import Child, stelae_command
from stelae.adapters.clock import SystemClock
from stelae.adapters.event_log import show_events
from stelae.adapters.ownership import Ownership, read_owner
from stelae.adapters.rng import SystemRng
from stelae.adapters.signals import watch_stops, words_of_end
from stelae.adapters.sockets.addresses import PORT_MAX, host_and_port, with_port
from stelae.launch.identity import SHARD_FILE, NodeIdentity, read_node
from stelae.launch.restarts import PAUSE_S_MAX, PAUSE_S_MIN, next_pause_s
from stelae.model.errors import AlreadyExists, InvalidArgument, StelaeError, Unavailable
from stelae.model.schema_checks import check_name

SHARDS_MAX = 64
"""So many a node can run: more processes than a machine has cores for are a mistake."""

_SHARD_DIRECTORY = re.compile(r"shard-([0-9]{1,4})")

_log = logging.getLogger("stelae")


class NodeOptions(msgspec.Struct, frozen=True):
    """`host`: where its shards serve; the system chooses the ports. `metastore`, `store`: as of `ProcessOptions`.
    `access`: the words that tell each shard what lets others in; what is in the environment it inherits. `metrics`:
    where its first shard tells its numbers; each other one does on the port behind; None: nowhere. `sharing`: so many
    shards share the machine's memory; 0: those of this node. `rack`: where it stands; empty: that is not said."""

    name: str
    directory: Path
    metastore: str
    store: str | None = None
    host: str = "127.0.0.1"
    shards: int = 1
    access: tuple[str, ...] = ()
    metrics: str | None = None
    sharing: int = 0
    release: str = ""
    rack: str = ""


class ShardWord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a shard's process tells its node, once, as a line of JSON: where it serves, and tells its numbers, if it
    does; or why it does not serve, and whether trying again may help."""

    address: str = ""
    metrics: str = ""
    error: str = ""
    is_passing: bool = False


class ServingShard(msgspec.Struct, frozen=True):
    """`metrics`: where it tells its numbers; empty if nowhere."""

    number: int
    pid: int
    address: str
    metrics: str = ""


def word_of_failure(error: StelaeError) -> ShardWord:
    """Somebody else may have what it needs, or something is not there yet: that passes. All else is for people."""
    return ShardWord(error=str(error), is_passing=isinstance(error, Unavailable | AlreadyExists))


def shard_directory(node: Path, number: int) -> Path:
    return node / f"shard-{number}"


def check_shards(shards: int) -> None:
    """InvalidArgument if a node cannot run so many."""
    if not 1 <= shards <= SHARDS_MAX:
        raise InvalidArgument(f"--shards {shards}: a node runs 1 to {SHARDS_MAX} shards, each a process of its own")


def known_shards(node: Path) -> int:
    """So many shards the node in a directory must have to serve all that were started in it."""
    found = (_SHARD_DIRECTORY.fullmatch(each.parent.name) for each in node.glob(f"*/{SHARD_FILE}"))
    return max((int(each[1]) + 1 for each in found if each), default=0)


def metrics_of(first: str | None, number: int) -> str | None:
    """Where a shard tells its numbers, by where the first one does. Port 0: the system chooses each."""
    if first is None:
        return None
    host, port = host_and_port(first)
    if port + number > PORT_MAX:
        raise InvalidArgument(f"--metrics {first}: there is no port {port + number} for shard {number}")
    return with_port(host, port + number if port else 0)


def run_node(options: NodeOptions, tell: Callable[[tuple[ServingShard, ...]], None]) -> None:
    """Until SIGTERM, SIGINT or SIGHUP, which its shards get, too: it ends when they have closed in order. A second
    signal ends all at once. `tell` is called once, when all shards serve that can. If none can, the error of one is
    raised, unless it may pass."""
    check_shards(options.shards)
    if options.rack:
        check_name("--rack", options.rack)
    metrics_of(options.metrics, options.shards - 1)
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
        known = known_shards(options.directory)
        if known > options.shards:
            raise InvalidArgument(
                f"--shards {options.shards}: {options.directory} has the directories of {known} shards, and what is in "
                f"them would not be served: start it with --shards {known}, or more"
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
        self._failed: set[int] = set()
        """Those that could not be started when it was tried last, for what does not pass by itself."""
        self._saying: asyncio.TimerHandle | None = None
        """When it is said once more where shards serve, because that could not be written down."""
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
                await asyncio.gather(*(child.wait() for child in self._children.values()))

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
        pause_s, clock = PAUSE_S_MIN, SystemClock()
        while not self._stopping.is_set():
            began_s = clock.monotonic_s()
            what = await self._run_once(number)
            if self._stopping.is_set():
                return
            _log.warning("shard %s/%d %s; it is started again", self._options.name, number, what)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)
            pause_s = next_pause_s(pause_s, clock.monotonic_s() - began_s)

    async def _run_once(self, number: int) -> str:
        """Until the shard has ended; what is to be said of that."""
        try:
            child = self._children[number] = await Child.start(self._command(number))
        except StelaeError as error:  # the machine has no room for a process now, or this one for a descriptor
            return f"could not be started: {error}"
        if self._stopping.is_set():
            child.signal(signal.SIGTERM)
        word = _read_word(await child.first_line())
        if word.address:
            self._note_serving(ServingShard(number, child.pid, word.address, word.metrics))
        code = await child.wait()
        self._note_end(number, word)
        return f"(process {child.pid}) has ended: {word.error or words_of_end(code)}"

    def _note_serving(self, shard: ServingShard) -> None:
        self._serving[shard.number] = shard
        self._failed.discard(shard.number)
        name = f"{self._options.name}/{shard.number}"
        _log.info("shard %s (process %d) serves on %s", name, shard.pid, shard.address)
        self._say_where()

    def _note_end(self, number: int, word: ShardWord) -> None:
        """InvalidArgument if no shard of this node has served, and each said why it never will."""
        self._serving.pop(number, None)
        if word.error and not word.is_passing:
            self._failed.add(number)
            if len(self._failed) == self._options.shards and not self._is_told:
                raise InvalidArgument(word.error)
        self._say_where()

    def _say_where(self) -> None:
        """Say in the node's directory where its shards serve, if all do that can."""
        serving = tuple(self._serving[number] for number in sorted(self._serving))
        is_whole = bool(serving) and len(serving) + len(self._failed) == self._options.shards
        if self._saying is not None:
            self._saying.cancel()
        try:
            self._owned.note(",".join(each.address for each in serving) if is_whole else "")
        except StelaeError as error:  # its disk is full, or fails: that ends no shard
            _log.warning("node %s cannot say where its shards serve: %s", self._options.name, error)
            self._saying = asyncio.get_running_loop().call_later(PAUSE_S_MAX, self._say_where)
            return
        if is_whole and not self._is_told:
            self._is_told = True
            self._tell(serving)

    def _command(self, number: int) -> list[str]:
        options, metrics = self._options, metrics_of(self._options.metrics, number)
        words = ["shard", "--name", options.name, "--node", self._identity.node, "--number", str(number)]
        words += ["--dir", str(shard_directory(options.directory, number)), "--listen", f"{options.host}:0"]
        words += ["--metastore", options.metastore, "--sharing", str(options.sharing or options.shards)]
        words += [] if metrics is None else ["--metrics", metrics]
        words += ["--rack", options.rack] if options.rack else []
        return stelae_command(*words, *options.access, *([] if options.store is None else ["--store", options.store]))


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
