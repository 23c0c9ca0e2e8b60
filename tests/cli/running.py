"""Runs the command line in this process, as a person would type it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from stelae.cli.app import app


def run(*words: str | Path, given: str | bytes | None = None) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], input=given)


class Cli:
    """On one store."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, *words: str | Path, given: str | bytes | None = None) -> Result:
        return run("--path", self.path, *words, given=given)

    def done(self, *words: str | Path, given: str | bytes | None = None) -> str:
        """What it says of something that it does."""
        result = self.run(*words, given=given)
        assert result.exit_code == 0, (result.stderr, result.exception)
        return result.stdout

    def refused(self, *words: str | Path, given: str | bytes | None = None, code: int = 1) -> str:
        """The one error of something that it refuses."""
        result = self.run(*words, given=given)
        assert result.exit_code == code, (result.output, result.exception)
        assert "Traceback" not in result.stderr
        before, found, message = result.stderr.rpartition("error: ")
        assert found, result.stderr
        assert "error: " not in before
        return message.rstrip("\n")

    def json(self, *words: str | Path, given: str | bytes | None = None) -> Any:
        """Of a verb that gives one document."""
        return json.loads(self.done(*words, "--json", given=given))

    def lines(self, *words: str | Path) -> list[Any]:
        """Of a verb that gives JSON lines."""
        return [json.loads(line) for line in self.done(*words, "--json").splitlines()]
