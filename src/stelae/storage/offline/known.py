"""Files that are read again and again in one process: what their footers say is looked at once.

Every read of a held table opens the files that it needs, and lets go of them at its end. A file never changes, so the
next read goes by what is known of it, and opens it only for blocks that it needs.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from stelae.format.fragment.footer import FragmentFile
from stelae.ports.blobs import BlobStore
from stelae.ports.executor import Executor
from stelae.storage.files.blocks import Block
from stelae.storage.files.cache import BlockCache
from stelae.storage.files.fragments import Fragment, Fragments
from stelae.storage.offline.tablets import CACHE_BYTES

_FOOTERS_BYTES_MAX = 32 * 2**20
_NO_BLOCKS: BlockCache[Block] = BlockCache(CACHE_BYTES)
"""Nobody reads blocks by what is kept here."""


class KnownFiles:
    """What was read lately, up to so many bytes of footers. Safe for threads."""

    def __init__(self, bytes_max: int = _FOOTERS_BYTES_MAX) -> None:
        self._known: OrderedDict[tuple[str, str], Fragment] = OrderedDict()
        self._bytes = 0
        self._bytes_max = bytes_max
        self._lock = Lock()

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def find(self, root: str, file: FragmentFile) -> Fragment | None:
        """A file of a store by its place; None if it is not known, or known as another one of that name."""
        with self._lock:
            found = self._known.get((root, file.name))
            if found is None or found.file != file:
                return None
            self._known.move_to_end((root, file.name))
            return found

    def add(self, root: str, fragment: Fragment) -> None:
        """Forgets what was not used for longest, if there is too much."""
        with self._lock:
            before = self._known.pop((root, fragment.file.name), None)
            self._known[root, fragment.file.name] = fragment
            self._bytes += _footer_bytes(fragment) - (0 if before is None else _footer_bytes(before))
            while self._bytes > self._bytes_max and len(self._known) > 1:
                self._bytes -= _footer_bytes(self._known.popitem(last=False)[1])


def _footer_bytes(fragment: Fragment) -> int:
    seal = fragment.file.seal
    return seal.size_bytes - seal.footer_start


class KnownFragments(Fragments):
    """The fragments of a store, for one read: `close` them at its end."""

    def __init__(self, known: KnownFiles, root: str, blobs: BlobStore, reading: Executor | None = None) -> None:
        """`reading`: reads several blocks at once."""
        super().__init__(blobs, BlockCache(CACHE_BYTES), reading)
        self._known = known
        self._root = root

    def _opened(self, file: FragmentFile) -> Fragment:
        found = self._known.find(self._root, file)
        if found is not None:
            return self._again(found, self._cache)
        opened = super()._opened(file)
        self._known.add(self._root, self._again(opened, _NO_BLOCKS))
        return opened
