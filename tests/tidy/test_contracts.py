"""The linters' settings hold the shape: every room is placed, and each contract breaks when it should."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.tidy.sources import PACKAGE, ROOT, rooms

PURE = {"model", "format", "wire", "catalog", "topology", "storage", "service"}
ROOMS_WITH_THE_SYSTEM = {"adapters", "launch", "cli"}
ROOMS_OF_THE_REAL_WORLD = {"adapters", "launch", "cli", "spark", "console", "gateway"}


def contract(name: str) -> dict[str, Any]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (found,) = (entry for entry in contracts if entry["id"] == name)
    return dict(found)


def existing() -> set[str]:
    return {room.name for room in rooms() if (room / "__init__.py").is_file()}


@pytest.mark.parametrize(
    "name, covered",
    [
        ("pure", existing() & PURE),
        ("system", existing() - PURE - ROOMS_WITH_THE_SYSTEM),
        ("pyspark", existing() - {"spark"}),
        ("universes", existing() & {"sim", "assembly"}),
    ],
)
def test_every_room_is_in_its_contracts(name: str, covered: set[str]) -> None:
    assert {module.removeprefix("stelae.") for module in contract(name)["source_modules"]} == covered


def test_a_room_that_exists_is_not_optional() -> None:
    layers = [room.strip() for line in contract("layers")["layers"] for room in line.split("|")]
    assert {room for room in layers if not room.startswith("(")} == existing()


def test_every_part_of_storage_but_one_is_closed_to_spark() -> None:
    storage = PACKAGE / "storage"
    parts = {path.parent.name for path in storage.glob("*/__init__.py")} | {path.stem for path in storage.glob("*.py")}
    closed = {f"stelae.storage.{part}" for part in parts - {"__init__", "offline"}}
    assert set(contract("offline")["forbidden_modules"]) == closed


def lint(tree: Path) -> subprocess.CompletedProcess[str]:
    """import-linter on a copy of the package, with this repository's contracts."""
    program = "import sys; from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", program, "--no-cache", "--config", str(ROOT / "pyproject.toml")],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "file, line, complaint",
    [
        ("model/bad.py", "import stelae.format", "stelae.model is not allowed to import stelae.format"),
        ("sim/bad.py", "import stelae.adapters", "stelae.sim is not allowed to import stelae.adapters"),
        ("model/bad.py", "import time", "stelae.model is not allowed to import time"),
        ("format/bad.py", "from os import path", "stelae.format is not allowed to import os"),
        ("ports/bad.py", "import socket", "stelae.ports is not allowed to import socket"),
        ("adapters/bad.py", "import pyspark.sql", "stelae.adapters is not allowed to import pyspark"),
        (
            "spark/bad.py",
            "import stelae.storage.log.wal",
            "stelae.spark is not allowed to import stelae.storage.log",
        ),
        ("spark/bad.py", "import stelae.storage.shard", "stelae.spark is not allowed to import stelae.storage.shard"),
        ("nowhere/__init__.py", "", "stelae.nowhere"),
    ],
)
def test_a_contract_can_break(tmp_path: Path, file: str, line: str, complaint: str) -> None:
    shutil.copytree(PACKAGE, tmp_path / "stelae", ignore=shutil.ignore_patterns("__pycache__"))
    bad = tmp_path / "stelae" / file
    bad.parent.mkdir(exist_ok=True)
    bad.write_text(f"{line}\n")
    done = lint(tmp_path)
    assert done.returncode == 1, done.stdout
    assert complaint in done.stdout


@pytest.mark.parametrize(
    "file, text, code",
    [
        ("src/stelae/model/bad.py", "assert True\n", "S101"),
        ("src/stelae/model/bad.py", "print(1)\n", "T201"),
        ("src/stelae/model/bad.py", "try:\n    x = 1\nexcept Exception:\n    x = 2\n", "BLE001"),
        ("src/stelae/cli/good.py", "print(1)\n", None),
        ("tests/model/test_good.py", "assert True\n", None),
    ],
)
def test_ruff_holds_what_no_rule_here_repeats(file: str, text: str, code: str | None) -> None:
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--no-cache",
        "--output-format=concise",
        "--stdin-filename",
        file,
        "-",
    ]
    done = subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True, check=False)
    assert (code in done.stdout) if code else done.returncode == 0, done.stdout + done.stderr
