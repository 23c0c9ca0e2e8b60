"""What all plans made of a frame refer to in the JVM, known by weak references: when it is gone, nobody can run them.

Of files that Spark reads itself that is the index of the files, of what tasks merge the function that they run: plans
are copied when they are changed, but these are not. A view, a cached plan and every frame made of the frame refer to
them; an RDD, or an iterator that has begun, does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FILES, _NUMBERS, _NO_ROWS, _UNITED = "LogicalRelation", "Range", "LocalRelation", "Union"


class Referents:
    """`references`: weak ones of the JVM; None: it is not known what the plans refer to."""

    def __init__(self, references: Sequence[Any] | None) -> None:
        self._references = references

    def are_alive(self) -> bool:
        """Whether somebody may still have a plan of the frame that reads something."""
        return self._references is None or any(each.get() is not None for each in self._references)


def referents_of(frame: DataFrame) -> Referents:
    """Of a frame as `frames` makes them."""
    jvm: Any = frame.sparkSession._jvm
    weak_reference = _weak_reference_class(jvm)
    found = _referents(frame._jdf)
    return Referents(None if found is None else [weak_reference(each) for each in found])


@lru_cache(maxsize=1)
def _weak_reference_class(jvm: Any) -> Any:
    """Kept, since the way to it through the JVM's packages asks the JVM at every step."""
    return jvm.java.lang.ref.WeakReference


def _referents(frame: Any) -> list[Any] | None:
    plan = frame.queryExecution().analyzed()
    leaves = plan.collectLeaves()
    found = []
    for at in range(leaves.size()):
        leaf = leaves.apply(at)
        kind = leaf.nodeName()
        if kind == _FILES:
            found.append(leaf.relation().location())
        elif kind == _NUMBERS:
            # What tasks merge is the last of what is united.
            merged = plan.children().last() if plan.nodeName() == _UNITED else plan
            found.append(merged.functionExpr().func())
        elif kind != _NO_ROWS:
            return None
    return found
