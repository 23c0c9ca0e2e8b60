"""CRC-32C: the checksum of whatever is written.

It is a function of the extension module in the package `crc32c`, which is loaded by itself: the package also makes a
command line and reads its own version from the disk, which takes as long as to open a store.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import TYPE_CHECKING, Any

_EXTENSION = "crc32c._crc32c"


def _load() -> Any:
    package = PathFinder.find_spec("crc32c")
    spec = package and PathFinder.find_spec(_EXTENSION, package.submodule_search_locations)
    if _EXTENSION in sys.modules or not spec or not spec.loader:
        import crc32c

        return crc32c
    module = sys.modules[_EXTENSION] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from crc32c import crc32c as crc32c
else:
    crc32c = _load().crc32c
