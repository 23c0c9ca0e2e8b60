"""Arrow without pandas, for as long as the program has none.

pyarrow imports pandas, if it is installed, as soon as the first array is made: it has to know a Series when it meets
one. That takes longer than opening a store. A program that has not imported pandas has no Series, so nothing is lost if
pyarrow looks for pandas when the program imports it, and not before.

`leave_pandas_for_later` has pyarrow look now, for this thread in vain, and look again once pandas was imported by
anybody (`to_pandas` does that, too). Other threads are not in its way: they import what they like.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from threading import get_ident
from types import ModuleType
from typing import Any

_PANDAS = "pandas"


class _Finder:
    """Stands first among those that find modules, until pandas is imported."""

    def __init__(self, shim: Any, thread: int) -> None:
        self._shim = shim
        self.refused: int | None = thread

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - as importlib calls it
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if name != _PANDAS:
            return None
        if self.refused == get_ident():
            raise ModuleNotFoundError("pandas is left for later", name=_PANDAS)
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = find_spec(_PANDAS)
        if spec is not None and spec.loader is not None:
            _look_again_after(self._shim, spec.loader)
        return spec


def _look_again_after(shim: Any, loader: Any) -> None:
    load = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        load(module)
        shim.__init__()  # as it was before it looked

    loader.exec_module = exec_module


def leave_pandas_for_later() -> None:
    """Before the first array is made. Where pandas is there already, or pyarrow has another way, nothing is done."""
    if _PANDAS in sys.modules or any(isinstance(each, _Finder) for each in sys.meta_path):
        return
    import pyarrow as pa

    shim = getattr(pa.lib, "_pandas_api", None)
    if shim is None:
        return
    finder = _Finder(shim, get_ident())
    sys.meta_path.insert(0, finder)
    try:
        pa.scalar(None)
    finally:
        finder.refused = None
