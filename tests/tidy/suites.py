"""Rules on tests: a test module tests something, and what does not run says why."""

from __future__ import annotations

import ast
from pathlib import PurePosixPath

from tests.tidy.names import resolved
from tests.tidy.sources import Source

# Of these, what stands first in the brackets is the reason; of the others it is a condition.
_REASON_FIRST = ("pytest.mark.skip", "pytest.skip", "pytest.xfail")
_REASON_NAMED = ("pytest.mark.skipif", "pytest.mark.xfail")


def without_tests(source: Source) -> list[str]:
    """A module that pytest collects holds a test: a function, or a class (a state machine's TestCase counts)."""
    if not PurePosixPath(source.path).name.startswith("test_"):
        return []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            return []
        if isinstance(node, ast.Assign) and any(ast.unparse(target).startswith("Test") for target in node.targets):
            return []
    return [f"{source.path}: a test module without a test"]


def silent_skips(source: Source) -> list[str]:
    """Whatever skips or expects failure gives a reason that is not empty."""
    calls = {node.func: node for node in ast.walk(source.tree) if isinstance(node, ast.Call)}
    complaints = []
    for line, name, node in resolved(source.tree):
        if name in _REASON_FIRST + _REASON_NAMED:
            call = calls.get(node)
            reasons = [keyword.value for keyword in call.keywords if keyword.arg == "reason"] if call else []
            if call and name in _REASON_FIRST:
                reasons += call.args[:1]
            if not any(_says_something(reason) for reason in reasons):
                complaints.append(f"{source.path}:{line}: {name} without a reason")
    return complaints


def _says_something(reason: ast.expr) -> bool:
    return not isinstance(reason, ast.Constant) or (isinstance(reason.value, str) and bool(reason.value.strip()))
