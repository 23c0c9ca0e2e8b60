"""Classes of ours in Spark's Java: compiled in the session by the compiler that Spark has for the code it generates.

So there is no jar to install. The source lies in the package; the classes go to the workers as a jar of the context.
"""

from __future__ import annotations

import logging
from importlib.resources import files
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from stelae.adapters.java import write_jar
from stelae.spark.driver.failures import is_of_spark

if TYPE_CHECKING:
    from pyspark import SparkContext

_log = logging.getLogger("stelae.spark")


class Compiled:
    """One object of a class of ours for each context, made when it is first asked for. Safe for threads."""

    def __init__(self, package: str, source: str, name: str, jar: str, without: str) -> None:
        """`source`: a file of the package; `name`: of the class, which has a method `check` that fails where Spark is
        not as the source expects it. `without`: what is done where it cannot be had, for the log."""
        self._package = package
        self._source = source
        self._name = name
        self._jar = jar
        self._without = without
        self._made: WeakKeyDictionary[SparkContext, Any] = WeakKeyDictionary()
        self._lock = Lock()

    def of(self, context: SparkContext) -> Any:
        """None: this Spark cannot compile it, or is another than it was written for."""
        with self._lock:
            if context not in self._made:
                try:
                    self._made[context] = self._compile(context)
                except Exception as error:
                    if not (is_of_spark(error) or isinstance(error, OSError)):
                        raise
                    _log.info("%s in this Spark: %s", self._without, error)
                    self._made[context] = None
            return self._made[context]

    def _compile(self, context: SparkContext) -> Any:
        jvm: Any = context._jvm
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader())
        compiler.cook((files(self._package) / self._source).read_text())
        class_ = compiler.getClassLoader().loadClass(self._name)
        made = class_.getConstructors()[0].newInstance(context._gateway.new_array(jvm.java.lang.Object, 0))
        made.check()
        compiled = {name: bytes(code) for name, code in dict(compiler.getBytecodes()).items()}
        context._jsc.addJar(write_jar(context._temp_dir, self._jar, compiled))
        return made
