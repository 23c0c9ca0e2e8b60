"""Rules on who waits for whom: in the rooms that serve rows waiting stands on a list, and nobody waits under a lock; in
the client whoever tries something again stands on a list, beside the one loop of its sessions."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

from tests.tidy.sources import Source

ROOMS = ("storage", "tserver")

WAITS = frozenset({"result", "exception", "wait", "wait_for"})
"""Of futures, events and conditions."""

LONG = WAITS | {"run", "_run", "ask", "save", "save_first", "drain", "drain_all", "flush", "flush_down_to", "compact"}
"""What may take as long as a disk, the metastore or another process takes."""

_LOCKS = ("Lock", "RLock", "Condition")

ALLOWED: Mapping[str, str] = {
    "storage/files/cache.py:BlockCache.load": "for the thread that reads the very block that is asked for",
    "storage/log/futures.py:all_done.finish": "all futures are done: this is called when they are",
    "storage/log/futures.py:wait_for": "what its callers are on this list for: they say why",
    "storage/replicas/log.py:ReplicaLog._note_kept": "the future is done: this is called when it is",
    "storage/replicas/log.py:ReplicaLog.note_lost_end": "for this disk, when the shard begins and serves nobody yet",
    "storage/replicas/log.py:ReplicaLog.wait_committed": "a flush waits for other replicas, for a bounded time",
    "storage/upkeep/saving.py:ConfigSaving._note_logged": "the future is done: this is called when it is",
    "storage/upkeep/saving.py:ConfigSaving._wait_logged": "whoever needs a config saved waits for it, bounded",
    "tserver/replication/following.py:Following._wait": "for this disk, until the leader's deadline",
    "tserver/replication/leading.py:Leading._begin": "for a record of this shard's log, when that was drained",
    "tserver/replication/leading.py:Leading._note_logged": "the future is done: this is called when it is",
    "tserver/replication/leading.py:Leading._wait_decided": "who resigns waits a while for writes that are under way",
    "tserver/replication/leading.py:Leading.lead": "the master's request waits a while for the tablets to open",
    "storage/log/wal.py:Wal._wait": "for the thread that writes the log, and no longer than the caller's deadline",
    "storage/offline/writing.py:FileCutter.write": "in a Spark task, for the files that it wrote itself",
    "storage/read/scans/windows.py:_result": "for what has begun on the reading pool; what has not is done here",
    "storage/turns.py:Turn.__enter__": "for the turn, on a thread of the caller's",
    "tserver/configs.py:MetaConfigs._write": "for META rows of this shard, when its log was drained",
    "tserver/jobs/loads.py:Loads.commit": "for a record of this shard's log, when that was drained",
    "tserver/jobs/loads.py:Loads._wait_if_failed": "for the same record, which is decided by then",
    "tserver/server.py:TabletServer.submit": "the future is done",
    "tserver/server.py:TabletServer.wait_for_room": "a writer that was refused waits, until its own deadline",
    "tserver/serving/connection.py:ServedConnection.answer_write": "the future is done: this is called when it is",
    "tserver/serving/connection.py:ServedConnection._scan": "the task is done: it was awaited",
    "tserver/serving/connection.py:ServedConnection._answer_aside": "the task is done: it was awaited",
    "tserver/serving/answers.py:outcome_of": "the task is done: it was awaited",
    "tserver/serving/jobs.py:begin_task": "the task is done: this is called when it is",
    "tserver/upkeep.py:TableUpkeep.move_horizon": "a user's compaction naps, until its own deadline",
    "tserver/upkeep.py:TableUpkeep._rewrite_all": "a user's compaction naps, until its own deadline",
    "tserver/visits.py:Visits.end": "who closes a server waits for those who are inside",
    "tserver/writing.py:TableWriter._outcome": "a writer waits for its own rows, until its own deadline",
    "tserver/writing.py:TableWriter.write": "a writer waits for its own row, when the log was drained",
    "tserver/writing.py:_pass_on.finish": "the future is done: this is called when it is",
    "tserver/writing.py:wait_durable": "a writer waits for its own rows, until its own deadline",
    "tserver/writing.py:wait_decided": "a reader waits for rows below its snapshot, until its own deadline",
}
"""Who waits, and why that holds nobody up."""

ALLOWED_UNDER_LOCKS: Mapping[str, str] = {
    "tserver/cluster.py:ClusterShard._end": "the last thing that a shard does: whoever closes it, too, waits for that",
    "tserver/server.py:TabletServer.close": "the last thing that a server does: whoever closes it, too, waits for that",
    "tserver/visits.py:Visits.end": "for the condition whose lock it is: it is let go meanwhile",
}


RESTS = frozenset({"delay_s", "wait_to_repeat", "pause", "sleep"})
"""What is called between two tries of the same, but for what begins with an underscore."""

REPEATING: Mapping[str, str] = {
    "client/calls/aio_session.py:AsyncSession._carry_out": "the loop, for event loops",
    "client/calls/aio_session.py:AsyncSession._look_for_store": "a try of the loop, which needs the store first",
    "client/calls/aio_session.py:AsyncSession._rest": "the loop's rest",
    "client/calls/aio_session.py:AsyncSession._wait_to_repeat": "the loop's rest",
    "client/calls/aio_session.py:AsyncSession.run": "the loop, for event loops",
    "client/calls/aio_session.py:AsyncSession.submit_by": "until this program's own threads have room",
    "client/calls/scans.py:ScanRun._streamed": "a scan gives out rows while it runs: it goes on behind the last one",
    "client/calls/session.py:Session._carry_out": "the loop",
    "client/calls/session.py:Session._look_for_store": "a try of the loop, which needs the store first",
    "client/calls/session.py:Session._rest": "the loop's rest",
    "client/calls/session.py:Session._write": "the loop, for writes, which have numbers",
    "client/calls/session.py:Session.run": "the loop",
    "client/calls/session.py:Session.wait_to_repeat": "the loop's rest",
    "client/remote/cluster/routing.py:Routing.ask_present.ask": "a report of all shards waits a while for each",
    "client/remote/places.py:_wait_to_attach": "a store is being opened, or looked for: there is nothing to ask yet",
}
"""Who in the client tries something again after a while, and why."""


def unlisted_repeats(sources: Iterable[Source], allowed: Mapping[str, str] = REPEATING) -> list[str]:
    """One loop of the client repeats what failed, the session's; where else something is tried again, a list says why.
    A reason for what does not is one too many."""
    words = "says {}(): raise what is Retryable, which the session repeats, or say on the list why it cannot"
    return _held_to(allowed, words, _rests(sources))


def _rests(sources: Iterable[Source]) -> Iterator[tuple[str, int, str]]:
    for source in sources:
        if source.room == "client":
            for place, function in functions_of(source):
                for node in _own(function):
                    if isinstance(node, ast.Call) and (name := name_at_end(node.func)).lstrip("_") in RESTS:
                        yield place, node.lineno, name


def unlisted_waits(sources: Iterable[Source], allowed: Mapping[str, str] = ALLOWED) -> list[str]:
    """A thread of storage or of a server waits for others only where a list says why. What is awaited holds no thread.
    A reason for what does not wait is one too many."""
    return _held_to(allowed, "says .{}(): come back when it is done, or say on the list why it waits", _waits(sources))


def waits_under_locks(sources: Iterable[Source], allowed: Mapping[str, str] = ALLOWED_UNDER_LOCKS) -> list[str]:
    """Under a lock nobody waits, saves, flushes, or asks another process: see `stelae.storage.turns`."""
    return _held_to(allowed, "says .{}() under a lock: take a Turn, or let go of the lock first", _locked(sources))


def _held_to(allowed: Mapping[str, str], words: str, found: Iterator[tuple[str, int, str]]) -> list[str]:
    seen: set[str] = set()
    complaints = []
    for place, line, name in found:
        seen.add(place)
        if place not in allowed:
            complaints.append(f"{place} (line {line}) {words.format(name)}")
    return [*complaints, *(f"{place} has a reason, and needs none" for place in allowed if place not in seen)]


def _waits(sources: Iterable[Source]) -> Iterator[tuple[str, int, str]]:
    for source in _of_rooms(sources):
        for place, function in functions_of(source):
            for call in _calls(function):
                name = _name_of(call)
                if name in WAITS:
                    yield place, call.lineno, name


def _locked(sources: Iterable[Source]) -> Iterator[tuple[str, int, str]]:
    for source in _of_rooms(sources):
        locks = _locks_of(source.tree)
        for place, function in functions_of(source):
            for block in _own(function):
                if isinstance(block, ast.With) and any(name_at_end(item.context_expr) in locks for item in block.items):
                    for call in _calls(ast.Module(block.body, [])):
                        name = _name_of(call)
                        if name in LONG:
                            yield place, call.lineno, name


def _of_rooms(sources: Iterable[Source]) -> Iterator[Source]:
    return (source for source in sources if source.room in ROOMS)


def _locks_of(tree: ast.Module) -> set[str]:
    """What a module calls its locks, and what others call the shard's."""
    found = {"lock", "_lock"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and name_at_end(node.value.func) in _LOCKS:
            found |= {name_at_end(target) for target in node.targets}
    return found


def functions_of(source: Source) -> Iterator[tuple[str, ast.AST]]:
    """Every function by its path and name; what is nested in another is a function of its own."""

    def below(node: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[str, ast.AST]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = (*names, child.name)
                if not isinstance(child, ast.ClassDef):
                    yield f"{source.path}:{'.'.join(inner)}", child
                yield from below(child, inner)
            else:
                yield from below(child, names)

    return below(source.tree, ())


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """What is below a node, without the functions in it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield child
            yield from _own(child)


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    """The calls in it that are not awaited."""
    awaited = {id(each.value) for each in _own(node) if isinstance(each, ast.Await)}
    return (each for each in _own(node) if isinstance(each, ast.Call) and id(each) not in awaited)


def _name_of(call: ast.Call) -> str:
    """Of a method, or of `storage.log.futures.wait_for`."""
    is_plain = isinstance(call.func, ast.Name) and call.func.id != "wait_for"
    return "" if is_plain else name_at_end(call.func)


def name_at_end(node: ast.AST) -> str:
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""
