"""The Spark session that jobs run in: the caller's own if there is one, else a quiet local one."""

from __future__ import annotations

from importlib.resources import as_file, files
from typing import TYPE_CHECKING, Any

from stelae.adapters.java import environment, inside_spark_submit, jvm_options, python_for_workers, python_has
from stelae.adapters.signals import interrupts_later
from stelae.model.errors import InvalidArgument, JobFailed, Unavailable
from stelae.model.public import public
from stelae.model.words import how_to_install
from stelae.spark.driver.failures import is_of_spark, may_pass, short_story
from stelae.spark.driver.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ALWAYS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
# A cluster's executors must reach the driver, so only a local one hides behind the loopback address.
_LOCAL = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}

_FORKING = {"spark.python.daemon.module": "stelae.spark.driver.workers"}
_WORKERS = "spark/driver/workers.py"
"""Of the package: what local workers are forked from, if their Python has it too."""


@public("session", "stelae.spark")
def session(app_name: str = "stelae", master: str | None = None, **conf: str) -> SparkSession:
    """The active session as it is, whatever the arguments say; if there is none, a new one.

    A new one runs on `master`, `local[*]` if that is None (under spark-submit: what was submitted to), shows no UI and
    logs only errors; local workers begin with this package imported; `conf` goes over these defaults. Java is found as
    `find_java` says; what Spark is told through the environment is gone from it afterwards.
    """
    try:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise InvalidArgument(f"pyspark is not installed; {how_to_install('spark')}") from error

    active = SparkSession.getActiveSession()
    if active is not None:
        return active

    builder = SparkSession.builder.appName(app_name)
    settings = dict(_ALWAYS)
    variables: dict[str, str] = {}
    if master is None and not inside_spark_submit():
        master = "local[*]"
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            python = python_for_workers()
            settings |= _LOCAL | (_FORKING if python_has(python, "stelae", _WORKERS) else {})
            variables |= {"PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": _LOCAL["spark.driver.host"]}
    for key, value in (settings | conf).items():
        builder = builder.config(key, value)
    with as_file(files("stelae.spark") / "log4j2.properties") as logging:
        if SparkContext._gateway is None and not inside_spark_submit():
            variables["JAVA_HOME"] = str(find_java().home)
            variables["SPARK_SUBMIT_OPTS"] = jvm_options(f"-Dlog4j2.configurationFile={logging.as_uri()}")
        with environment(**variables):
            return _start_session(builder)


def _start_session(builder: Any) -> SparkSession:
    """A Ctrl-C while Java starts would leave a process that nobody knows of."""
    started: SparkSession | None = None
    try:
        with interrupts_later():
            started = builder.getOrCreate()
    except KeyboardInterrupt:
        if started is not None:
            started.stop()
        raise
    except Exception as error:
        if not is_of_spark(error):
            raise
        kind = Unavailable if may_pass(error) else JobFailed
        raise kind(f"Spark could not be started: {short_story(error)}") from error
    return started
