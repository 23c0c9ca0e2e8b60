"""A reader of Parquet for Spark that says of each row whether it is hidden: Spark's own, with a class of ours inside.

Spark counts the rows of a file with an object for each, and what is hidden must then be looked up for each.
`HidingFormat.java` says a number of every row, -1 for those that are seen, many rows at a time (decision 34). It is
compiled once for a context by the compiler that Spark has for the code it generates, and sent to the workers as a jar.
Where that does not work, in a Spark whose reader is another, rows are filtered by their places.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from stelae.adapters.java import write_jar
from stelae.spark.driver.failures import is_of_spark
from stelae.spark.reading.plans import HiddenRows

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

SEEN = "~{place} = 0"
"""That -1 stands in place of a row's place, as SQL: all of its bits are set. Said so, Spark does not take it for a
filter that Parquet could answer."""

_SOURCE = "HidingFormat.java"
_CLASS = "stelae.spark.HidingFormat$Frames"
_JAR = "stelae-hiding.jar"
_WORD_BYTES = 8
_log = logging.getLogger("stelae.spark")


def hiding_frame(spark: SparkSession, frame: DataFrame, hidden: Sequence[HiddenRows]) -> DataFrame | None:
    """The same files read by a reader that says what of them is hidden, of a frame that is nothing but files; None: it
    cannot be had here."""
    from pyspark.sql import DataFrame

    frames = _frames.of(spark.sparkContext)
    if frames is None:
        return None
    names = "\n".join(each.file.rpartition("/")[2] for each in hidden)
    words = b"".join((len(each.bits) // _WORD_BYTES).to_bytes(4, "little") for each in hidden)
    bits = b"".join(each.bits for each in hidden)
    identity = sha256(names.encode() + words + bits).hexdigest()
    seen = sum(each.records for each in hidden) - int.from_bytes(bits, "little").bit_count()
    return DataFrame(frames.of(frame._jdf, identity, names, words, bits, seen), spark)


class _Frames:
    """What makes such frames, by context; None: it could not be compiled there. Safe for threads."""

    def __init__(self) -> None:
        self._made: WeakKeyDictionary[SparkContext, Any] = WeakKeyDictionary()
        self._lock = Lock()

    def of(self, context: SparkContext) -> Any:
        with self._lock:
            if context not in self._made:
                try:
                    self._made[context] = _compile(context)
                except Exception as error:
                    if not (is_of_spark(error) or isinstance(error, OSError)):
                        raise
                    _log.info("hidden rows are filtered by their places in this Spark: %s", error)
                    self._made[context] = None
            return self._made[context]


_frames = _Frames()


def _compile(context: SparkContext) -> Any:
    jvm: Any = context._jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader())
    compiler.cook((files("stelae.spark.reading") / _SOURCE).read_text())
    frames = (
        compiler.getClassLoader()
        .loadClass(_CLASS)
        .getConstructors()[0]
        .newInstance(context._gateway.new_array(jvm.java.lang.Object, 0))
    )
    frames.check()
    compiled = {name: bytes(code) for name, code in dict(compiler.getBytecodes()).items()}
    context._jsc.addJar(write_jar(context._temp_dir, _JAR, compiled))
    return frames
