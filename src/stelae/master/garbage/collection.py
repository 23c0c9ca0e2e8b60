"""The removal of files that nobody needs, for a store of many servers. No server knows by itself what others need, so
the master asks all of them.

1. It lists what is on the store. Then it reads its clock, and which changes of tables are under way
   (`registry.changes`), whose files no tablet has yet; then every server is asked what it needs, and says by its own
   clock since when. A file that was listed, and whose name is older than all of these times, was begun before they were
   asked: whoever began it has named it, or has given it up. A load is recorded before it writes anything, but after
   its files' names were thought of: so a file that is not on the list is none of the collection's business.
2. What is on the list, older than that, and needed by none, goes: aside first, and later for good (`files.trash`).

A server that does not answer may need anything: then nothing goes. A master that another one has followed in the midst
does no harm: what nobody needs, nobody can come to need, because names are never given twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from stelae.model.errors import Corruption, NotFound
from stelae.model.events import Collected, Listener, UnknownFilesFound
from stelae.model.hybrid import HybridClock
from stelae.model.ids import TableId, Txn
from stelae.ports.blobs import BlobStore
from stelae.ports.loop import Loop
from stelae.ports.metastore import Metastore
from stelae.registry.changes.sessions import read_sessions
from stelae.registry.control_operations import FilesNeeded
from stelae.registry.leftovers import drop_staged, overlay_tickets
from stelae.service.deadlines import Deadline
from stelae.service.tickets import overlay_directory
from stelae.storage.files.names import fragment_sizes, table_of_name, txn_of_name
from stelae.storage.files.trash import Trash

_TRASH_BYTES_MIN = 256 * 2**20


class NeededBy(Protocol):
    """The servers of a store."""

    async def files_needed(self, deadline: Deadline | None = None) -> Sequence[FilesNeeded]:
        """What each of them needs; Unavailable if one does not answer."""
        ...


class Needs(msgspec.Struct, frozen=True):
    """What all servers need together. Of names from `since` on nothing is known."""

    since: Txn
    names: frozenset[str]
    prefixes: tuple[str, ...]
    holds: frozenset[str]

    def keeps(self, name: str) -> bool:
        return txn_of_name(name) >= self.since or name in self.names or name.startswith(self.prefixes)


def put_together(asked: Txn, answers: Iterable[FilesNeeded], prefixes: Iterable[str] = ()) -> Needs:
    """`asked`: the clock before anybody was. `prefixes`: of changes that were under way then."""
    answers = list(answers)
    return Needs(
        Txn(min([asked, *(each.since for each in answers)])),
        frozenset(name for each in answers for name in each.names),
        (*prefixes, *(prefix for each in answers for prefix in each.prefixes)),
        frozenset(ticket for each in answers for ticket in each.holds),
    )


class Collection:
    """Blocking, one at a time: for a thread that is not the loop's. `is_known`: whether there ever was such a table."""

    def __init__(
        self,
        store: Metastore,
        blobs: BlobStore,
        loop: Loop,
        time: HybridClock,
        now_ms: Callable[[], int],
        trash_s: float,
        is_known: Callable[[TableId], bool],
        tell: Listener,
    ) -> None:
        self._store = store
        self._blobs = blobs
        self._run = loop.run
        self._time = time
        self._now_ms = now_ms
        self._is_known = is_known
        self._tell = tell
        self._trash = Trash(blobs, now_ms, int(trash_s * 1_000))
        self._has_told_of_unknown = False

    def collect(
        self, servers: NeededBy, *, for_good: bool = False, deadline: Deadline | None = None
    ) -> tuple[int, int]:
        """How many files went, and their bytes. `for_good`: deleted now, with all that lies aside. Unavailable if a
        server does not answer, before the deadline if there is one."""
        overlays = overlay_tickets(self._blobs)  # before it is asked who holds what: a hold is older than its overlay
        self._trash.look_anew()  # another master may have led since
        sizes = fragment_sizes(self._blobs)
        needs = self._ask(servers, deadline)
        unknown = [name for name in sizes if not self._is_known(table_of_name(name))]
        if unknown:
            self._tell_of_unknown(unknown)
            if for_good:
                raise Corruption("is of a table that the catalog does not know: no file is removed", unknown[0])
            return 0, 0
        taken = taken_bytes = 0
        for name in (each for each in sizes if not needs.keeps(each)):
            with suppress(NotFound):  # somebody was quicker
                self._take(name, sizes[name], for_good)
                taken, taken_bytes = taken + 1, taken_bytes + sizes[name]
        if taken:
            self._tell(Collected(taken, taken_bytes))
        if for_good:
            self._trash.empty()
        else:
            self._trash.tidy(max(_TRASH_BYTES_MIN, sum(sizes.values()) - taken_bytes))
        for ticket in overlays:
            if ticket not in needs.holds:
                self._blobs.delete_below(overlay_directory(ticket))
        drop_staged(self._blobs, self._now_ms())
        return taken, taken_bytes

    def unneeded(self, servers: NeededBy, deadline: Deadline | None = None) -> tuple[int, int]:
        """How many files no server needs, and their bytes: what would go now. Unavailable as for `collect`."""
        sizes = fragment_sizes(self._blobs)
        needs = self._ask(servers, deadline)
        found = [size_bytes for name, size_bytes in sizes.items() if not needs.keeps(name)]
        return len(found), sum(found)

    def _ask(self, servers: NeededBy, deadline: Deadline | None) -> Needs:
        asked = self._time.tick()
        loading = [held.session.prefix for held in self._run(read_sessions(self._store)) if held.session.prefix]
        return put_together(asked, self._run(servers.files_needed(deadline)), loading)

    def _take(self, name: str, size_bytes: int, for_good: bool) -> None:
        if for_good:
            self._blobs.delete(name)
        else:
            self._trash.put(name, size_bytes)

    def _tell_of_unknown(self, unknown: list[str]) -> None:
        if not self._has_told_of_unknown:
            self._has_told_of_unknown = True
            self._tell(UnknownFilesFound(len(unknown), unknown[0]))
