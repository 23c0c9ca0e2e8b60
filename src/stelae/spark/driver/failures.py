"""Why a job on Spark failed, in a line, and whether the same job may succeed later.

A task that lost its worker, its disk or its network may. What was raised by code, ours or the user's, or by Spark about
the data or the question, will be raised again: that is a `JobFailed`, which nobody repeats.
"""

from __future__ import annotations

import builtins

from stelae.model import errors
from stelae.model.errors import JobFailed, Retryable, StelaeError, Unavailable

_TOLD_LENGTH_MAX = 500
_MAY_PASS = (OSError, EOFError, MemoryError)
_NETWORKS = ("botocore.", "urllib3.", "aiohttp.", "socket.")
_FOR_GOOD = (
    "AnalysisException",
    "ArithmeticException",
    "ArrayIndexOutOfBoundsException",
    "ClassCastException",
    "DateTimeException",
    "IllegalArgumentException",
    "NumberFormatException",
    "ParseException",
    "SparkNoSuchElementException",
    "SparkRuntimeException",
    "UnsupportedOperationException",
)
"""How the names end of what Java raises about the question or the data."""


def failure_of(what: str, error: Exception) -> StelaeError:
    """What is raised for a job that ended with the error."""
    kind = Unavailable if may_pass(error) else JobFailed
    return kind(f"{what}: the Spark job failed: {short_story(error)}")


def is_of_spark(error: Exception) -> bool:
    """Whether Spark raised it, or the way to it, and not our code."""
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j")


def may_pass(error: Exception) -> bool:
    """Whether the same job, run again, may do better."""
    told = _raised_in_python(error)
    if told:
        name = told.partition(":")[0].strip()
        return _python_may_pass(name)
    names = (type(error).__name__, _cause(error).partition(":")[0])
    return not any(name.endswith(_FOR_GOOD) for name in names)


def _python_may_pass(name: str) -> bool:
    short = name.rpartition(".")[2]
    known = getattr(errors, short, None) if name.startswith("stelae.") else getattr(builtins, name, None)
    if isinstance(known, type) and issubclass(known, Exception):
        return issubclass(known, (Retryable, *_MAY_PASS))
    return name.startswith(_NETWORKS)


def short_story(error: Exception) -> str:
    """What Spark's long story comes to: the error that ended the task's own traceback, or what Java says it is all due
    to, or the first line."""
    lines = [line.rstrip() for line in str(error).splitlines() if line.strip()]
    text = _raised_in_python(error) or _cause(error) or (lines[0] if lines else type(error).__name__)
    return text if len(text) <= _TOLD_LENGTH_MAX else f"{text[:_TOLD_LENGTH_MAX]}..."


def _raised_in_python(error: Exception) -> str:
    """The line that ends the last traceback in the story; empty if there is none."""
    text, is_trace = "", False
    for line in str(error).splitlines():
        if line.lstrip().startswith("Traceback"):
            is_trace = True
        elif is_trace and line.strip() and not line.startswith(" "):
            text, is_trace = line.rstrip(), False
    return text


def _cause(error: Exception) -> str:
    """The first of Java's errors that led to this one; empty if there is none."""
    thrown = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    if thrown is None:
        return ""
    while thrown.getCause() is not None:
        thrown = thrown.getCause()
    return str(thrown.toString()).splitlines()[0]
