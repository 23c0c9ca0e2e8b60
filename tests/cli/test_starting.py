"""The command line starts quickly: what it does not need, it does not import. Held to by names, not by time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import stelae
from tests.cli.running import Cli, run

_PROGRAM = """
import atexit, sys
atexit.register(lambda: print("\\nLOADED", *sorted(sys.modules), file=sys.stderr))
from stelae.cli.app import main
main()
"""


def loaded(*words: str | Path) -> set[str]:
    """The modules of a process that has run these words."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.rpartition("LOADED ")[2].split())


def test_the_version_needs_next_to_nothing() -> None:
    found = loaded("--version")
    heavy = {"pyarrow", "numpy", "rich", "msgspec", "asyncio", "sqlite3", "pandas", "pyspark", "pydantic"}
    assert found.isdisjoint(heavy)
    assert "stelae.cli.rows" not in found
    assert not any(name.startswith(("stelae.client", "stelae.storage", "stelae.tserver")) for name in found)


def test_help_needs_no_store() -> None:
    for words in (["--help"], ["scan", "--help"], ["table", "create", "--help"], ["stats", "--help"], ["up", "--help"]):
        found = loaded(*words)
        assert found.isdisjoint({"pyarrow", "numpy", "pandas", "asyncio", "sqlite3", "pyspark"})
        assert not any(name.startswith(("stelae.storage", "stelae.tserver", "stelae.spark")) for name in found)


@pytest.mark.parametrize("words", [["get", "users", "ann"], ["scan", "users"], ["put", "users", "dan", "name=Dan"]])
def test_rows_need_neither_pandas_nor_the_other_verbs(users: Cli, words: list[str]) -> None:
    found = loaded("--path", users.path, *words)
    assert found.isdisjoint({"pandas", "polars", "pyspark", "py4j", "rich.progress", "rich._emoji_codes"})
    assert found.isdisjoint({"pydantic", "crc32c", "importlib.metadata", "pyarrow.parquet"})
    others = {"stelae.cli.jobs.bulk", "stelae.cli.catalog", "stelae.cli.demo.verb", "stelae.cli.benchmark"}
    assert found.isdisjoint(others)


def test_a_row_that_is_read_needs_nothing_that_serves_others(users: Cli) -> None:
    found = loaded("--path", users.path, "get", "users", "ann")
    assert not any(name.startswith(("stelae.tserver.serving", "stelae.spark")) for name in found)
    assert found.isdisjoint({"pyarrow.compute", "stelae.client.remote.store"})


def test_options_that_are_numbers_are_still_checked(users: Cli) -> None:
    refused = users.run("get", "users", "ann", "--history", "many")
    assert refused.exit_code == 2
    assert "--history" in refused.stderr
    assert "Ann" in users.done("get", "users", "ann", "--history", "2")


@pytest.mark.parametrize("words", [["get", "users", "ann"], ["scan", "users"], ["table", "list"]])
def test_a_reader_of_a_store_that_is_open_elsewhere_needs_none_of_its_own(users: Cli, words: list[str]) -> None:
    with stelae.open(users.path):
        found = loaded("--path", users.path, *words)
    assert "stelae.client.remote.store" in found
    rooms = ("stelae.assembly", "stelae.tserver", "stelae.master", "stelae.storage.shard", "stelae.storage.upkeep")
    assert not any(name.startswith(rooms) for name in found)


def test_to_import_the_package_needs_next_to_nothing() -> None:
    heavy = {"pyarrow", "numpy", "msgspec", "asyncio", "sqlite3", "typer", "rich", "dataclasses", "inspect", "difflib"}
    code = "import sys, stelae; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert heavy.isdisjoint(found)


_FIRST_ROW = """
import dataclasses, inspect, sys, stelae
with stelae.open(sys.argv[1]) as db:
    table = db.create_table("t", {"id": "string"}, [stelae.columns("g", {"v": "int64"})])
    table.put({"id": "a", "v": 1})
    assert table.get("a")["v"] == 1
    print(*sys.modules)
made = {
    each.__module__
    for name, module in list(sys.modules.items())
    if name.startswith("stelae.")
    for _, each in inspect.getmembers(module, dataclasses.is_dataclass)
}
print(*made)
"""


def test_a_first_row_needs_no_vectors_no_files_and_no_other_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _FIRST_ROW, str(tmp_path / "store")]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found, made = (set(line.split()) for line in shown.splitlines())
    heavy = {"pandas", "pyarrow.compute", "pyarrow.parquet", "pyarrow.fs", "crc32c", "importlib.metadata", "email"}
    assert found.isdisjoint({*heavy, "html", "difflib", "argparse", "stelae.client.remote.store", "pydantic"})
    # A dataclass takes as long to make as thirty structs of msgspec.
    rooms = ("stelae.storage.read.", "stelae.storage.upkeep.", "stelae.storage.shard")
    still = (*rooms, "stelae.model.predicate.build", "stelae.launch.metastores")
    assert [each for each in sorted(made) if not each.startswith(still)] == []


_LIBRARY = """
import sys, stelae
with stelae.open(sys.argv[1]) as db:
    table = db.create_table("t", {"id": "string"}, [stelae.columns("g", {"v": "int64", "f": "float64"})])
    table.put_many([{"id": str(n), "v": n} for n in range(1_000)])
    table.flush()
    assert table.get("7")["v"] == 7 and len(list(table.scan())) == 1_000
    assert "pandas" not in sys.modules, "pandas"
    frame = table.scan().to_pandas()
    assert list(frame["v"][:2]) == [0, 1] and frame["f"].isna().all()
    import pandas as pd, pyarrow as pa
    assert pa.array(pd.Series([1.0, float("nan")])).null_count == 1  # pyarrow knows pandas again
    table.put_many(pd.DataFrame({"id": ["x"], "f": [float("nan")]}))
    assert table.get("x")["f"] is None
print("done")
"""


def test_a_store_needs_no_pandas_until_somebody_wants_a_frame(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _LIBRARY, str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_pandas_that_is_there_is_left_alone() -> None:
    code = (
        "import pandas, sys; before = list(sys.meta_path); import stelae; from stelae.adapters.pandas_later import *; "
    )
    code += "leave_pandas_for_later(); assert sys.meta_path == before"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_package_shows_its_names() -> None:
    assert set(stelae.__all__) <= set(dir(stelae))


# -- shells


def completed(words: str, path: Path) -> list[str]:
    """What bash is offered behind these words."""
    environment = {**os.environ, "_STELAE_COMPLETE": "complete_bash", "COMP_WORDS": words}
    environment |= {"COMP_CWORD": str(len(words.split(" ")) - 1), "STELAE_PATH": str(path)}
    command = [sys.executable, "-c", "from stelae.cli.app import app; app(prog_name='stelae')"]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment).stdout.split()


def test_shells_complete_verbs_options_and_tables(users: Cli) -> None:
    assert completed("stelae tab", users.path) == ["table", "tablet"]
    assert "--columns" in completed("stelae get users --col", users.path)
    assert completed("stelae get us", users.path) == ["users"]
    assert completed("stelae get us", users.path / "nothing") == []
    assert completed("stelae table des", users.path) == ["describe"]


def test_completion_can_be_installed() -> None:
    shown = run("--help").stdout
    assert "--install-completion" in shown
    assert "--cluster" in shown
    assert "--cluster" in run("get", "--help").stdout


def test_small_tables_need_no_java(users: Cli, tmp_path: Path) -> None:
    for words in (["compact", "users"], ["stats", "users"], ["backup", "users", str(tmp_path / "backups")]):
        found = loaded("--path", users.path, *words)
        assert found.isdisjoint({"pyspark", "py4j"})
    assert len(users.lines("backup", "--list", str(tmp_path / "backups"))) == 1
    assert users.json("compact", "users")["table"] == "users"
    assert users.json("stats", "users")["rows"] == 3
