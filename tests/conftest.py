"""Hypothesis profiles, where directories of tests lie, the one Spark session of a test run, and the one server that
speaks S3.

STELAE_PROFILE chooses how hard properties are tried:
  dev   few examples, random: while writing code
  ci    the default; derandomized, so that a red run is the fault of the change at hand and repeats on any machine
  soak  many examples, random: this is where new cases are hunted. A failure prints a blob for @reproduce_failure
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.effort import HANG_S
from tests.s3 import KEYS
from tests.s3 import s3_endpoint as s3_endpoint
from tests.s3 import s3_settings as s3_settings
from tests.s3 import s3_url as s3_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Time limits on single examples fail on a busy machine, not on a fault.
_PATIENT = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("dev", _PATIENT, max_examples=20)
settings.register_profile("ci", _PATIENT, max_examples=30, derandomize=True)
settings.register_profile("soak", _PATIENT, max_examples=5_000)


_COLLECT_AFTER = 10_000
"""New objects until cycles among them are looked for: with the 700 of Python a fifteenth of a simulation is that."""

_MEMORY = Path("/dev/shm")
_MEMORY_BYTES_MIN = 4 * 1024**3


def _use_memory() -> None:
    """Directories of tests, and of what they start, lie in memory if there is plenty, unless TMPDIR says otherwise:
    thousands of stores are synced, and no test takes the power away from a real disk."""
    if "TMPDIR" in os.environ or not os.access(_MEMORY, os.W_OK | os.X_OK):
        return
    runs_programs = not os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC
    if runs_programs and shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES_MIN:
        os.environ["TMPDIR"] = str(_MEMORY)
        tempfile.tempdir = None


def _hear_ctrl_c() -> None:
    """What a shell starts in the background ignores Ctrl-C, and so would all that tests start to send it one."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure() -> None:
    _use_memory()
    _hear_ctrl_c()
    profile = os.environ.get("STELAE_PROFILE", "ci")
    if profile not in ("dev", "ci", "soak"):
        raise pytest.UsageError(f"STELAE_PROFILE={profile}: use dev, ci or soak")
    settings.load_profile(profile)
    os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).with_name("spark_settings")))


def _shares_set_up(item: pytest.Item) -> bool:
    known = getattr(item, "_fixtureinfo", None)
    return known is not None and any(found[-1].scope == "module" for found in known.name2fixturedefs.values() if found)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Whatever needs Spark runs on one worker: a second JVM would cost more than it saves. So do tests that share what
    their module sets up once: each worker would set it up."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        if item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif not item.get_closest_marker("xdist_group") and _shares_set_up(item):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
    yield
    # xdist 3.8 writes the group where pytest before 9.2 had the id of a test; the scheduler looks at the id.
    for item in items if hasattr(config, "workerinput") and config.getvalue("loadgroup") else ():
        known: Any = getattr(item, "_id", None)
        marker = item.get_closest_marker("xdist_group")
        group = "" if marker is None else f"@{marker.args[0]}"
        if known is not None and not item.nodeid.endswith(group):
            item._id = type(known).parse(item.nodeid + group)


def pytest_collection_finish() -> None:
    """What there is before the first test stays to the end: the collector of cycles need not look at it again and
    again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Nor at what the tests of a module have left, once their fixtures have ended: a tenth of a run went into that. Of
    Spark's frames it must: whose plans are forgotten is found out by collecting them."""
    yield
    if nextitem is not None and nextitem.path != item.path and not item.get_closest_marker("spark"):
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, s3_endpoint: str) -> Iterator[SparkSession]:
    """One local session for all tests of a run; its JVM has ended when the run has. Its workers have the environment
    that it was started in, so that says where the server is that speaks S3."""
    from stelae.spark.driver.sessions import session

    warehouse = tmp_path_factory.mktemp("warehouse")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (KEYS | {"AWS_ENDPOINT_URL": s3_endpoint}).items():
            patch.setenv(name, value)
        running = session(
            "stelae-tests",
            "local[2]",
            **{
                "spark.sql.shuffle.partitions": "2",
                "spark.sql.warehouse.dir": warehouse.as_uri(),
                "spark.driver.memory": "1g",
            },
        )
    gateway = running.sparkContext._gateway
    yield running
    running.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout=HANG_S)


@pytest.fixture
def on_s3(spark: SparkSession, s3_settings: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """The session, whose workers have in their environment what a cluster's would (`spark.executorEnv.*`)."""
    for name, value in s3_settings.items():
        monkeypatch.setitem(spark.sparkContext.environment, name, value)
    return spark
